// A packed batch: rows of features and the layout that says whose they are.
#pragma once

#include "packrnn/runtime/packed_layout.hpp"
#include "packrnn/runtime/tensor.hpp"

namespace packrnn {

class PackedSequence {
 public:
  /// Empty: defined() is false. So is a moved-from object.
  PackedSequence() = default;
  /// data [layout->total(), ...]: any trailing dimensions, none included. Throws InvalidArgument
  /// when the rows do not match or the layout is null.
  PackedSequence(Tensor data, PackedLayoutPtr layout);

  bool defined() const noexcept { return layout_ != nullptr; }
  TensorView data() const noexcept { return data_.view(); }
  TensorSpan data_span() noexcept { return data_.span(); }
  const PackedLayout& layout() const noexcept { return *layout_; }
  const PackedLayoutPtr& layout_ptr() const noexcept { return layout_; }
  std::span<const std::int64_t> lengths() const noexcept { return layout_->lengths(); }

  PackedSequence clone() const { return {data_.clone(), layout_}; }
  /// Gives up the data; *this becomes empty.
  Tensor take_data() &&;

 private:
  Tensor data_;
  PackedLayoutPtr layout_;
};

}  // namespace packrnn

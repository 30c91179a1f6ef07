// A packed batch: rows of features and the layout that says whose they are.
#pragma once

#include "packrnn/runtime/context.hpp"
#include "packrnn/runtime/packed_layout.hpp"
#include "packrnn/runtime/tensor.hpp"

namespace packrnn {

class PackedSequence {
 public:
  /// Empty: defined() is false. So is a moved-from object.
  PackedSequence() = default;
  /// data [layout->total(), ...], on any device: any trailing dimensions, none included. Throws
  /// InvalidArgument when the rows do not match or the layout is null.
  PackedSequence(Tensor data, PackedLayoutPtr layout);

  bool defined() const noexcept { return layout_ != nullptr; }
  TensorView data() const noexcept { return data_.view(); }
  TensorSpan data_span() noexcept { return data_.span(); }
  const PackedLayout& layout() const noexcept { return *layout_; }
  const PackedLayoutPtr& layout_ptr() const noexcept { return layout_; }
  /// Unsupported where only a device knows them: to_host() then brings them too.
  std::span<const std::int64_t> lengths() const { return layout_->lengths(); }

  /// A copy of data on the host.
  PackedSequence clone() const { return {data_.clone(), layout_}; }
  /// Gives up the data; *this becomes empty.
  Tensor take_data() &&;

 private:
  Tensor data_;
  PackedLayoutPtr layout_;
};

/// The same rows on the context's device, over the same layout.
PackedSequence to_device(Context& context, const PackedSequence& packed);
/// The same rows on the host, once they are there: waits as Context::to_host() does. Lengths that
/// only the device knew come along: the result's layout is known().
PackedSequence to_host(Context& context, const PackedSequence& packed);

}  // namespace packrnn

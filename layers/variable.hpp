// A tensor that takes part in training: its value, and a place where its gradient adds up.
#pragma once

#include <memory>
#include <utility>

#include "packrnn/layers/packed_sequence.hpp"
#include "packrnn/runtime/context.hpp"
#include "packrnn/runtime/packed_layout.hpp"
#include "packrnn/runtime/tensor.hpp"

namespace packrnn {

/// d loss / d value of one Variable, summed over its uses while a Tape goes backward. Of the
/// value's shape; of its dtype, where 16-bit values have 16-bit gradients (those of parameters are
/// f32).
class Gradient {
 public:
  /// `keep`: it stays for the caller after the backward, who asked for it.
  Gradient(Shape shape, Dtype dtype, bool keep) : shape_(shape), dtype_(dtype), keep_(keep) {}

  const Shape& shape() const noexcept { return shape_; }
  Dtype dtype() const noexcept { return dtype_; }
  bool keep() const noexcept { return keep_; }
  /// Undefined while nothing was added, which means zeros.
  const Tensor& sum() const noexcept { return sum_; }

  /// Adds one use's part: the first is kept as it is, later ones are added to it, in the order in
  /// which they come. Throws InvalidArgument for another shape or dtype.
  void add(Context& context, Tensor part);
  /// What was added up, undefined for zeros. The sum moves out; a kept one is copied.
  Tensor take(Context& context);

 private:
  Shape shape_;
  Dtype dtype_;
  bool keep_;
  Tensor sum_;
};

/// A handle: copies are the same variable. Made by a Tape and by the operations on it. The value
/// lives as long as a handle, or a backward that still needs it; the tape may be gone.
class Variable {
 public:
  /// Not defined.
  Variable() = default;
  /// For authors of operations. `gradient` null: a constant.
  explicit Variable(std::shared_ptr<const Tensor> value,
                    std::shared_ptr<Gradient> gradient = nullptr)
      : value_(std::move(value)), gradient_(std::move(gradient)) {}

  bool defined() const noexcept { return value_ != nullptr; }
  TensorView value() const noexcept { return value_ ? value_->view() : TensorView{}; }
  const Shape& shape() const noexcept { return value_->shape(); }
  std::int64_t size(int dim) const { return value_->size(dim); }
  Dtype dtype() const noexcept { return value_->dtype(); }
  /// Whether something that wants a gradient is behind it.
  bool needs_gradient() const noexcept { return gradient_ != nullptr; }

  /// d loss / d value after Tape::backward(), of a variable made by Tape::input() (InvalidArgument
  /// for others: theirs are gone). Undefined when the loss does not depend on it.
  TensorView gradient() const;

  /// The same value as a constant, shared: where truncated back-propagation cuts.
  Variable detach() const { return Variable(value_); }

  // For authors of operations: what a backward keeps. Keep only the part that it needs.
  const std::shared_ptr<const Tensor>& value_ptr() const noexcept { return value_; }
  const std::shared_ptr<Gradient>& gradient_ptr() const noexcept { return gradient_; }

 private:
  std::shared_ptr<const Tensor> value_;
  std::shared_ptr<Gradient> gradient_;
};

/// A variable whose rows are packed sequences.
struct PackedVariable {
  Variable data;           // [total, ...]
  PackedLayoutPtr layout;  // over the same total

  bool defined() const noexcept { return data.defined() && layout != nullptr; }
  PackedVariable detach() const { return {data.detach(), layout}; }
};

}  // namespace packrnn

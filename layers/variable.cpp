#include "packrnn/layers/variable.hpp"

#include "packrnn/kernels/elementwise.hpp"
#include "packrnn/runtime/expects.hpp"

namespace packrnn {

void Gradient::add(Context& context, Tensor part) {
  expects(part.shape() == shape_ && part.dtype() == dtype_,
          "a gradient of shape {} and dtype {} was added to one of {} and {}", part.shape(),
          part.dtype(), shape_, dtype_);
  if (!sum_.defined())
    sum_ = std::move(part);
  else
    kernels::add_scaled(context, sum_, 1.0, part, sum_);
}

Tensor Gradient::take(Context& context) {
  if (!keep_ || !sum_.defined()) return std::exchange(sum_, Tensor{});
  Tensor copy = context.empty(shape_, dtype_);
  context.copy(sum_, copy);
  return copy;
}

TensorView Variable::gradient() const {
  expects(defined(), "the variable is not defined");
  expects(gradient_ != nullptr && gradient_->keep(),
          "the gradient of this variable was not asked for; Tape::input() makes one that keeps it");
  return gradient_->sum().defined() ? gradient_->sum().view() : TensorView{};
}

}  // namespace packrnn

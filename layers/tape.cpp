#include "packrnn/layers/tape.hpp"

#include <utility>

#include "packrnn/kernels/elementwise.hpp"
#include "packrnn/layers/arguments.hpp"
#include "packrnn/runtime/expects.hpp"

namespace packrnn {

Tape::Tape(Context& context, const TapeOptions& options) : context_(&context), options_(options) {}

void Tape::expects_unused() const {
  expects(!used_,
          "this tape has gone backward already, and what it recorded is freed; make a new Tape for "
          "each step");
}

Variable Tape::constant(Tensor value) const {
  expects(value.defined(), "value is not defined");
  expects_on_device("value", value, *context_);
  return Variable(std::make_shared<const Tensor>(std::move(value)));
}

PackedVariable Tape::constant(PackedSequence value) const {
  expects(value.defined(), "value is not defined");
  PackedLayoutPtr layout = value.layout_ptr();
  return {constant(std::move(value).take_data()), std::move(layout)};
}

Variable Tape::input(Tensor value) {
  expects_unused();
  expects(value.defined(), "value is not defined");
  expects_on_device("value", value, *context_);
  expects(is_floating(value.dtype()), "value has dtype {}, and only floating ones have a gradient",
          value.dtype());
  auto gradient = std::make_shared<Gradient>(value.shape(), value.dtype(), true);
  return Variable(std::make_shared<const Tensor>(std::move(value)), std::move(gradient));
}

PackedVariable Tape::input(PackedSequence value) {
  expects(value.defined(), "value is not defined");
  PackedLayoutPtr layout = value.layout_ptr();
  return {input(std::move(value).take_data()), std::move(layout)};
}

Variable Tape::result(Tensor value, bool needs_gradient) const {
  expects_unused();
  std::shared_ptr<Gradient> gradient;
  if (needs_gradient) gradient = std::make_shared<Gradient>(value.shape(), value.dtype(), false);
  return Variable(std::make_shared<const Tensor>(std::move(value)), std::move(gradient));
}

void Tape::record(const Variable& result, std::function<void(Context&, Tensor)> backward) {
  if (!result.needs_gradient()) return;
  record([dy = result.gradient_ptr(), backward = std::move(backward)](Context& context) {
    if (Tensor gradient = dy->take(context); gradient.defined())
      backward(context, std::move(gradient));
  });
}

void Tape::record(Backward backward) {
  expects_unused();
  recorded_.push_back(std::move(backward));
}

void Tape::backward(const Variable& loss, double scale) {
  expects(loss.defined(), "loss is not defined");
  expects(loss.shape().elements() == 1,
          "loss has shape {}, expected one element; reduce it, or give its gradient", loss.shape());
  Tensor gradient = context_->empty(loss.shape(), loss.dtype());
  kernels::fill(*context_, scale, gradient);
  backward({{loss, gradient}});
}

void Tape::backward(std::span<const Start> starts) {
  expects_unused();
  for (const auto& [result, gradient] : starts) {
    expects(result.defined(), "a result to go backward from is not defined");
    expects(result.needs_gradient(),
            "the result depends on nothing that has a gradient: no parameter, no Tape::input()");
    expects(gradient.defined() && gradient.shape() == result.shape() &&
                gradient.dtype() == result.dtype(),
            "the gradient has shape {} and dtype {}, expected {} and {}", gradient.shape(),
            gradient.dtype(), result.shape(), result.dtype());
    expects_on_device("the gradient", gradient, *context_);
  }
  used_ = true;
  for (const auto& [result, gradient] : starts) {
    Tensor copy = context_->empty(gradient.shape(), gradient.dtype());
    context_->copy(gradient, copy);
    result.gradient_ptr()->add(*context_, std::move(copy));
  }
  // Should one throw, the rest is freed all the same: half a backward is of no use.
  std::vector<Backward> recorded = std::exchange(recorded_, {});
  while (!recorded.empty()) {
    const Backward step = std::move(recorded.back());
    recorded.pop_back();
    step(*context_);
  }
}

}  // namespace packrnn

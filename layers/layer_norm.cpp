#include "packrnn/layers/layer_norm.hpp"

#include <memory>
#include <utility>
#include <vector>

#include "packrnn/kernels/layer_norm.hpp"
#include "packrnn/layers/arguments.hpp"
#include "packrnn/runtime/expects.hpp"

namespace packrnn {
namespace {

Parameters make_parameters(const LayerNormOptions& options) {
  expects(options.features >= 1, "features is {}, expected 1 or more", options.features);
  expects(options.eps >= 0.0, "eps is {}, expected 0 or more", options.eps);
  expects(options.dtype == Dtype::f32 || options.dtype == Dtype::f64,
          "dtype is {}, expected f32 or f64", options.dtype);
  std::vector<Parameters::Declaration> list = {{"weight", {options.features}}};
  if (options.bias) list.push_back({"bias", {options.features}});
  Parameters parameters(std::move(list), options.dtype);
  const std::vector<double> ones(static_cast<std::size_t>(options.features), 1.0);
  parameters.set("weight", TensorView(ones.data(), {options.features}));
  return parameters;
}

}  // namespace

LayerNorm::LayerNorm(const LayerNormOptions& options)
    : options_(options), parameters_(make_parameters(options)) {}

PackedSequence LayerNorm::forward(Context& context, const PackedSequence& x) const {
  expects(x.defined(), "x is not defined");
  return {forward(context, x.data()), x.layout_ptr()};
}

Tensor LayerNorm::forward(Context& context, const TensorView& x) const {
  const std::int64_t F = options_.features;
  expects(x.defined(), "x is not defined");
  expects(x.shape().rank() >= 1 && x.size(-1) == F,
          "x has shape {}, expected features = {} in the last dimension", x.shape(), F);
  expects(x.dtype() == options_.dtype, "x has dtype {}, the layer {}", x.dtype(), options_.dtype);
  expects_on_device("x", x, context);
  Tensor y = context.empty(x.shape(), options_.dtype);
  const Shape rows = {x.elements() / F, F};
  kernels::layer_norm(context, x.reshape(rows), parameters_.value("weight"),
                      options_.bias ? parameters_.value("bias") : TensorView{}, options_.eps,
                      y.span().reshape(rows));
  return y;
}

PackedVariable LayerNorm::forward(Tape& tape, const PackedVariable& x) {
  expects(x.defined(), "x is not defined");
  return {forward(tape, x.data), x.layout};
}

Variable LayerNorm::forward(Tape& tape, const Variable& x) {
  const bool trains = parameters_.trainable();
  Variable y = tape.result(std::as_const(*this).forward(tape.context(), x.value()),
                           x.needs_gradient() || trains);
  if (!y.needs_gradient()) return y;
  const std::int64_t F = options_.features;
  tape.record([rows = Shape{y.value().elements() / F, F}, trains, options = options_,
               value = x.value_ptr(), dx = x.gradient_ptr(), dy = y.gradient_ptr(),
               parameters = std::make_shared<Parameters>(parameters_.shared()),
               version = parameters_.version()](Context& context) {
    Tensor gradient = dy->take(context);
    if (!gradient.defined()) return;
    expects_unchanged(*parameters, version);
    // In place: dx is where dy was.
    const TensorSpan from = gradient.span().reshape(rows);
    kernels::layer_norm_backward(
        context, value->view().reshape(rows), parameters->value("weight"), options.eps, from,
        dx ? from : TensorSpan{}, trains ? parameters->gradient("weight") : TensorSpan{},
        trains && options.bias ? parameters->gradient("bias") : TensorSpan{});
    if (dx) dx->add(context, std::move(gradient));
  });
  return y;
}

}  // namespace packrnn

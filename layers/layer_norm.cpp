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
  expects(is_floating(options.dtype), "dtype is {}, expected a floating one", options.dtype);
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

std::shared_ptr<const LayerNorm::Affine> LayerNorm::affine(Context& context) const {
  if (parameters_.device() == context.device()) return nullptr;
  return affine_.get(context, parameters_.version(), [&] {
    const auto copy = [&](const TensorView& from) {
      Tensor there = Tensor::empty(from.shape(), from.dtype(), context.device());
      context.copy(from, there);
      return there;
    };
    return Affine{copy(parameters_.value("weight")),
                  options_.bias ? copy(parameters_.value("bias")) : Tensor()};
  });
}

Tensor LayerNorm::apply(Context& context, const TensorView& x, const Affine* affine) const {
  const std::int64_t F = options_.features;
  Tensor y = context.empty(x.shape(), options_.dtype);
  const Shape rows = {x.elements() / F, F};
  TensorView bias;
  if (options_.bias) bias = affine ? affine->bias.view() : parameters_.value("bias");
  kernels::layer_norm(context, x.reshape(rows),
                      affine ? affine->weight.view() : parameters_.value("weight"), bias,
                      options_.eps, y.span().reshape(rows));
  return y;
}

void LayerNorm::check(Context& context, const TensorView& x, bool trains) const {
  const std::int64_t F = options_.features;
  expects(x.defined(), "x is not defined");
  expects(x.shape().rank() >= 1 && x.size(-1) == F,
          "x has shape {}, expected features = {} in the last dimension", x.shape(), F);
  expects(x.dtype() == options_.dtype, "x has dtype {}, the layer {}", x.dtype(), options_.dtype);
  expects_on_device("x", x, context);
  expects_computable("LayerNorm", options_.dtype, context);
  expects_usable(parameters_, context, trains);
}

Tensor LayerNorm::forward(Context& context, const TensorView& x) const {
  check(context, x, false);
  return apply(context, x, affine(context).get());
}

PackedVariable LayerNorm::forward(Tape& tape, const PackedVariable& x) {
  expects(x.defined(), "x is not defined");
  return {forward(tape, x.data), x.layout};
}

Variable LayerNorm::forward(Tape& tape, const Variable& x) {
  Context& context = tape.context();
  const bool trains = parameters_.trainable();
  check(context, x.value(), trains);
  const auto copies = affine(context);
  Variable y = tape.result(apply(context, x.value(), copies.get()), x.needs_gradient() || trains);
  const std::int64_t F = options_.features;
  tape.record(y, [rows = Shape{y.value().elements() / F, F}, trains, copies, options = options_,
                  value = x.value_ptr(), dx = x.gradient_ptr(),
                  parameters = std::make_shared<Parameters>(parameters_.shared()),
                  version = parameters_.version()](Context& c, Tensor gradient) {
    expects_unchanged(*parameters, version);
    // In place: dx is where dy was.
    const TensorSpan from = gradient.span().reshape(rows);
    kernels::layer_norm_backward(
        c, value->view().reshape(rows),
        copies ? copies->weight.view() : parameters->value("weight"), options.eps, from,
        dx ? from : TensorSpan{}, trains ? parameters->gradient("weight") : TensorSpan{},
        trains && options.bias ? parameters->gradient("bias") : TensorSpan{});
    if (dx) dx->add(c, std::move(gradient));
  });
  return y;
}

}  // namespace packrnn

#include "packrnn/layers/linear.hpp"

#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "packrnn/kernels/linear.hpp"
#include "packrnn/layers/arguments.hpp"
#include "packrnn/runtime/expects.hpp"

namespace packrnn {
namespace {

Parameters make_parameters(const LinearOptions& options) {
  expects(options.in_features >= 1, "in_features is {}, expected 1 or more", options.in_features);
  expects(options.out_features >= 1, "out_features is {}, expected 1 or more",
          options.out_features);
  expects(is_floating(options.dtype), "dtype is {}, expected a floating one", options.dtype);
  std::vector<Parameters::Declaration> list = {
      {"weight", {options.out_features, options.in_features}}};
  if (options.bias) list.push_back({"bias", {options.out_features}});
  Parameters parameters(std::move(list), options.dtype);
  Generator generator(options.seed);
  parameters.fill_uniform(generator, 1.0 / std::sqrt(static_cast<double>(options.in_features)));
  return parameters;
}

}  // namespace

Linear::Linear(const LinearOptions& options)
    : options_(options), parameters_(make_parameters(options)) {}

PackedSequence Linear::forward(Context& context, const PackedSequence& x) const {
  expects(x.defined(), "x is not defined");
  return {forward(context, x.data()), x.layout_ptr()};
}

void Linear::check(Context& context, const TensorView& x, bool trains) const {
  const std::int64_t I = options_.in_features;
  expects(x.defined(), "x is not defined");
  expects(x.shape().rank() >= 1 && x.size(-1) == I,
          "x has shape {}, expected in_features = {} in the last dimension", x.shape(), I);
  expects(x.dtype() == options_.dtype, "x has dtype {}, the layer {}", x.dtype(), options_.dtype);
  expects_on_device("x", x, context);
  expects_computable("Linear", options_.dtype, context);
  expects_usable(parameters_, context, trains);
}

std::int64_t Linear::panel_elements(Device device, Way way) const {
  const std::int64_t I = options_.in_features, O = options_.out_features;
  return way == Way::forward ? kernels::linear_panel_elements(device, O, I, options_.dtype)
                             : kernels::linear_panel_elements(device, I, O, options_.dtype);
}

Tensor Linear::pack(Context& context, Way way, Tensor panels) const {
  const TensorView weight = parameters_.value("weight");
  if (way == Way::forward)
    kernels::pack_linear(context, weight, options_.bias ? parameters_.value("bias") : TensorView{},
                         panels);
  else
    kernels::pack_linear_backward(context, weight, panels);
  return panels;
}

std::shared_ptr<const Tensor> Linear::panels(Context& context, Way way) const {
  return panels_[static_cast<std::size_t>(way)].get(context, parameters_.version(), [&] {
    const Device device = context.device();
    return pack(context, way, Tensor::empty({panel_elements(device, way)}, options_.dtype, device));
  });
}

std::shared_ptr<const Tensor> Linear::panels_for_step(Context& context, Way way) {
  if (parameters_.device() == Device::cpu()) return panels(context, way);
  return step_panels_[static_cast<std::size_t>(way)].get(context, parameters_.version(), [&] {
    return pack(context, way,
                context.empty({panel_elements(context.device(), way)}, options_.dtype));
  });
}

Tensor Linear::apply(Context& context, const TensorView& x, const Tensor& panels) const {
  const std::int64_t I = options_.in_features, O = options_.out_features;
  auto extents = std::vector(x.shape().extents().begin(), x.shape().extents().end());
  extents.back() = O;
  Tensor y = context.empty(Shape(extents), options_.dtype);
  const std::int64_t rows = x.elements() / I;
  if (rows > 0) kernels::linear(context, x.reshape({rows, I}), panels, y.span().reshape({rows, O}));
  return y;
}

Tensor Linear::forward(Context& context, const TensorView& x) const {
  check(context, x, false);
  return apply(context, x, *panels(context, Way::forward));
}

PackedVariable Linear::forward(Tape& tape, const PackedVariable& x) {
  expects(x.defined(), "x is not defined");
  return {forward(tape, x.data), x.layout};
}

Variable Linear::forward(Tape& tape, const Variable& x) {
  Context& context = tape.context();
  const std::int64_t I = options_.in_features, O = options_.out_features;
  const bool trains = parameters_.trainable();
  check(context, x.value(), trains);
  const auto panels = panels_for_step(context, Way::forward);
  Variable y = tape.result(apply(context, x.value(), *panels), x.needs_gradient() || trains);
  const std::int64_t rows = y.value().elements() / O;
  if (!y.needs_gradient() || rows == 0) return y;

  const auto backward_panels =
      x.needs_gradient() ? panels_for_step(context, Way::backward) : nullptr;
  // `kept`: for other uses of the layer in this step.
  tape.record(y, [=, kept = panels, shape = x.shape(), value = trains ? x.value_ptr() : nullptr,
                  dx = x.gradient_ptr(), bias = options_.bias,
                  parameters = std::make_shared<Parameters>(parameters_.shared()),
                  version = parameters_.version()](Context& c, const Tensor& upstream) {
    expects_unchanged(*parameters, version);
    const TensorView from = upstream.view().reshape({rows, O});
    if (value)
      kernels::linear_weight_gradient(c, value->view().reshape({rows, I}), from,
                                      parameters->gradient("weight"),
                                      bias ? parameters->gradient("bias") : TensorSpan{});
    if (dx) {
      Tensor result = c.empty(shape, upstream.dtype());
      kernels::linear(c, from, *backward_panels, result.span().reshape({rows, I}));
      dx->add(c, std::move(result));
    }
  });
  return y;
}

}  // namespace packrnn

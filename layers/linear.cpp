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

Tensor Linear::forward(Context& context, const TensorView& x) const {
  const std::int64_t I = options_.in_features, O = options_.out_features;
  expects(x.defined(), "x is not defined");
  expects(x.shape().rank() >= 1 && x.size(-1) == I,
          "x has shape {}, expected in_features = {} in the last dimension", x.shape(), I);
  expects(x.dtype() == options_.dtype, "x has dtype {}, the layer {}", x.dtype(), options_.dtype);
  expects_on_device("x", x, context);
  expects_computable("Linear", options_.dtype, context);

  const auto panels = panels_.get(context, parameters_.version(), [&] {
    const Device device = context.device();
    Tensor packed = Tensor::empty({kernels::linear_panel_elements(device, O, I, options_.dtype)},
                                  options_.dtype, device);
    kernels::pack_linear(context, parameters_.value("weight"),
                         options_.bias ? parameters_.value("bias") : TensorView{}, packed);
    return packed;
  });
  auto extents = std::vector(x.shape().extents().begin(), x.shape().extents().end());
  extents.back() = O;
  Tensor y = context.empty(Shape(extents), options_.dtype);
  const std::int64_t rows = x.elements() / I;
  if (rows > 0)
    kernels::linear(context, x.reshape({rows, I}), *panels, y.span().reshape({rows, O}));
  return y;
}

PackedVariable Linear::forward(Tape& tape, const PackedVariable& x) {
  expects(x.defined(), "x is not defined");
  return {forward(tape, x.data), x.layout};
}

Variable Linear::forward(Tape& tape, const Variable& x) {
  Context& context = tape.context();
  const std::int64_t I = options_.in_features, O = options_.out_features;
  const bool trains = parameters_.trainable();
  Variable y =
      tape.result(std::as_const(*this).forward(context, x.value()), x.needs_gradient() || trains);
  const std::int64_t rows = y.value().elements() / O;
  if (!y.needs_gradient() || rows == 0) return y;

  std::shared_ptr<const Tensor> panels;
  if (x.needs_gradient())
    panels = backward_panels_.get(context, parameters_.version(), [&] {
      Tensor packed =
          Tensor::empty({kernels::linear_panel_elements(context.device(), I, O, options_.dtype)},
                        options_.dtype, context.device());
      kernels::pack_linear_backward(context, parameters_.value("weight"), packed);
      return packed;
    });
  tape.record([=, shape = x.shape(), value = trains ? x.value_ptr() : nullptr,
               dx = x.gradient_ptr(), dy = y.gradient_ptr(), bias = options_.bias,
               parameters = std::make_shared<Parameters>(parameters_.shared()),
               version = parameters_.version()](Context& c) {
    const Tensor upstream = dy->take(c);
    if (!upstream.defined()) return;
    expects_unchanged(*parameters, version);
    const TensorView from = upstream.view().reshape({rows, O});
    if (value)
      kernels::linear_weight_gradient(c, value->view().reshape({rows, I}), from,
                                      parameters->gradient("weight"),
                                      bias ? parameters->gradient("bias") : TensorSpan{});
    if (dx) {
      Tensor result = c.empty(shape, upstream.dtype());
      kernels::linear(c, from, *panels, result.span().reshape({rows, I}));
      dx->add(c, std::move(result));
    }
  });
  return y;
}

}  // namespace packrnn

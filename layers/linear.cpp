#include "packrnn/layers/linear.hpp"

#include <cmath>
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

}  // namespace packrnn

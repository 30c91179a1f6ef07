#include "packrnn/layers/linear.hpp"

#include <cmath>
#include <utility>
#include <vector>

#include "packrnn/kernels/linear.hpp"
#include "packrnn/runtime/expects.hpp"

namespace packrnn {
namespace {

Parameters make_parameters(const LinearOptions& options) {
  expects(options.in_features >= 1, "in_features is {}, expected 1 or more", options.in_features);
  expects(options.out_features >= 1, "out_features is {}, expected 1 or more",
          options.out_features);
  if (options.dtype != Dtype::f32 && options.dtype != Dtype::f64)
    throw Unsupported(fmt::format("Linear computes in f32 or f64, not {}", options.dtype));
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
  expects(x.device() == context.device(), "x is on {}, the context on {}", x.device(),
          context.device());

  const auto panels = panels_.get(parameters_.version(), [&] {
    Tensor packed = Tensor::empty({kernels::linear_panel_elements(O, I, options_.dtype)},
                                  options_.dtype, context.device());
    kernels::pack_linear(parameters_.value("weight"), packed);
    return packed;
  });
  auto extents = std::vector(x.shape().extents().begin(), x.shape().extents().end());
  extents.back() = O;
  Tensor y = Tensor::empty(Shape(extents), options_.dtype, context.device());
  const std::int64_t rows = x.elements() / I;
  if (rows > 0)
    kernels::linear(context, x.reshape({rows, I}), *panels,
                    options_.bias ? parameters_.value("bias") : TensorView{},
                    y.span().reshape({rows, O}));
  return y;
}

}  // namespace packrnn

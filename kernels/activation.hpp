// Functions of one element, as layers are separated by. Common errors as in pack.hpp.
#pragma once

#include "packrnn/runtime/context.hpp"
#include "packrnn/runtime/tensor.hpp"

namespace packrnn::kernels {

enum class Activation { relu, tanh, sigmoid };

/// Assigns y from x of the same shape and dtype, f32 or f64, on a GPU also 16-bit; y may be x. NaN
/// stays NaN. An element's bits do not depend on where it stands.
void activate(Context& context, Activation activation, const TensorView& x, const TensorSpan& y);

/// Assigns dx from the results y of activate() and their gradients dy; dx may be dy. The gradient
/// of relu at 0 is 0.
void activate_backward(Context& context, Activation activation, const TensorView& y,
                       const TensorView& dy, const TensorSpan& dx);

}  // namespace packrnn::kernels

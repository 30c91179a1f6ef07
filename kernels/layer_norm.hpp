// Each row shifted and scaled to mean 0 and variance 1, then times a weight plus a bias per
// feature.
#pragma once

#include "packrnn/runtime/context.hpp"
#include "packrnn/runtime/tensor.hpp"

namespace packrnn::kernels {

/// Assigns y [M, F] = (x - mean) / sqrt(variance + eps) * weight [F] + bias [F] (undefined: none)
/// from x [M, F]; mean and variance (divided by F) are those of the row, summed in double, so a
/// row's bits depend on it alone. f32 and f64, on a GPU also 16-bit, all of one dtype; y may be x.
void layer_norm(Context& context, const TensorView& x, const TensorView& weight,
                const TensorView& bias, double eps, const TensorSpan& y);

/// From the upstream dy [M, F]: assigns dx [M, F], adds to dweight [F] and dbias [F]; an undefined
/// one is not wanted. dx may be dy, the others may not overlap; dweight and dbias are f32 where x
/// is 16-bit. Sums over M run in blocks in an order that follows from the shapes: the same bits on
/// any number of threads; on a GPU those of another order.
void layer_norm_backward(Context& context, const TensorView& x, const TensorView& weight,
                         double eps, const TensorView& dy, const TensorSpan& dx,
                         const TensorSpan& dweight, const TensorSpan& dbias);

}  // namespace packrnn::kernels

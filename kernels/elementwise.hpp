// Whole tensors: another dtype, another order of axes, one value, sums and products. Common errors
// as in pack.hpp.
#pragma once

#include "packrnn/runtime/context.hpp"
#include "packrnn/runtime/tensor.hpp"

namespace packrnn::kernels {

/// Assigns target from source of the same shape, each element rounded to nearest even; may not
/// overlap. Equal dtypes are a copy. On a GPU other pairs must both be floating (Unsupported).
void convert_elements(Context& context, const TensorView& source, const TensorSpan& target);

/// Assigns target [B, A, ...] from source [A, B, ...] of the same dtype; may not overlap.
void swap_axes(Context& context, const TensorView& source, const TensorSpan& target);

/// Assigns y = a + factor * b, y = a * b, y = factor * x, element by element; f32 and f64, on a GPU
/// also 16-bit, computed in f32. Equal shapes and dtypes; y may be an argument.
void add_scaled(Context& context, const TensorView& a, double factor, const TensorView& b,
                const TensorSpan& y);
void multiply(Context& context, const TensorView& a, const TensorView& b, const TensorSpan& y);
void scale(Context& context, const TensorView& x, double factor, const TensorSpan& y);

/// Assigns `value`, converted as padding values are, to every element.
void fill(Context& context, double value, const TensorSpan& target);

}  // namespace packrnn::kernels

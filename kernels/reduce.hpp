// Reductions over the elements of each packed sequence. The elements of one sequence are combined
// in time order, in float (f32, f16, bf16) or double (f64), one accumulator per feature: a result
// has the same bits whatever sequences stand beside it and however many threads work (contract C1).
#pragma once

#include "packrnn/runtime/context.hpp"
#include "packrnn/runtime/packed_layout.hpp"
#include "packrnn/runtime/tensor.hpp"

namespace packrnn::kernels {

enum class Reduction { sum, mean, max };

/// Assigns target [N, ...], caller's order, from packed [total, ...] of the same floating dtype. A
/// sequence without elements gives `empty_value` everywhere. A NaN makes its own feature of its own
/// sequence NaN, also under max. target may not overlap packed. Throws InvalidArgument on a shape
/// that does not fit the layout and on integer dtypes.
void reduce_sequences(Context& context, Reduction reduction, const TensorView& packed,
                      const PackedLayout& layout, double empty_value, const TensorSpan& target);

/// Assigns target [total, ...], the gradient of packed, from that of a result [N, ...]: a
/// sequence's gradient on each of its elements (sum), divided by their number (mean), or on the
/// first element in time order that is the maximum or NaN, with zeros on the others (max). Only max
/// reads packed; f32 and f64, on a GPU also 16-bit. Rows that a layout which is not known() has to
/// spare become zero. target may not overlap either.
void reduce_sequences_backward(Context& context, Reduction reduction, const TensorView& packed,
                               const PackedLayout& layout, const TensorView& gradient,
                               const TensorSpan& target);

}  // namespace packrnn::kernels

// How the losses of M rows become one result, and its gradient theirs. All of it is linear: a row
// counts `scales` times, and a row whose scale is 0 is left out, whatever its loss is. Sums are in
// double and in a fixed order: on the CPU that of the rows. Common errors as in loss.hpp.
#pragma once

#include <cstdint>

#include "packrnn/runtime/context.hpp"
#include "packrnn/runtime/packed_layout.hpp"
#include "packrnn/runtime/tensor.hpp"

namespace packrnn::kernels {

/// What a row's loss is divided by: 1, the weight of all rows, that of the row's own sequence, or
/// the last and the number of sequences that weigh anything.
enum class Average : std::uint8_t { none, rows, sequence, sequences };

/// Assigns scales f64 [M] from weights f64 [M] of the rows, none negative. 0 instead of a division
/// by 0. `layout`, of M packed rows, may be null where no sequence is asked for; rows past its
/// total, if it was made on a device, weigh nothing and get 0.
void loss_scales(Context& context, Average average, const TensorView& weights,
                 const PackedLayout* layout, const TensorSpan& scales);

/// Sets the scales [M] of infinite losses [M], both f64, to 0.
void leave_out_infinite(Context& context, const TensorView& losses, const TensorSpan& scales);

/// What the result has elements for.
enum class Collect : std::uint8_t { rows, sequences, all };

/// Assigns result, f32 or f64, of as many elements as rows, sequences of the layout (caller's
/// order), or 1: the sums of scale * loss over their rows.
void collect_losses(Context& context, Collect collect, const PackedLayout* layout,
                    const TensorView& losses, const TensorView& scales, const TensorSpan& result);

/// Assigns row_gradients f64 [M] = d total / d loss of a row, from gradient = d total / d result.
void collect_losses_backward(Context& context, Collect collect, const PackedLayout* layout,
                             const TensorView& gradient, const TensorView& scales,
                             const TensorSpan& row_gradients);

}  // namespace packrnn::kernels

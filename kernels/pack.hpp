// Moves whole rows: between padded batches, lists of sequences and packed data, and from a table by
// index. Values are never looked at, so every dtype is served and copies are exact. Everything here
// assigns every element of its target; a target may not overlap a source.
//
// Common errors: InvalidArgument, before anything is written, when dtypes or trailing dimensions
// differ, a shape does not fit the layout, an argument is not defined, or memory is on another
// device than the context. Unsupported where the lengths are asked of a layout that is not known().
//
// On a GPU everything is done in stream order and the host does not wait.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "packrnn/runtime/context.hpp"
#include "packrnn/runtime/packed_layout.hpp"
#include "packrnn/runtime/tensor.hpp"

namespace packrnn::kernels {

/// Where the rows of a padded batch lie: [T, N, ...], or [N, T, ...] when batch_first.
struct PaddedGrid {
  std::int64_t steps = 0;  // T
  std::int64_t batch = 0;  // N
  bool batch_first = false;

  /// Rows between an element and the next one of its sequence.
  constexpr std::int64_t step_stride() const noexcept { return batch_first ? 1 : batch; }
  /// Rows between an element and the same step of the next sequence.
  constexpr std::int64_t sequence_stride() const noexcept { return batch_first ? steps : 1; }
  /// The row that holds element `step` of `sequence`.
  constexpr std::int64_t row(std::int64_t sequence, std::int64_t step) const noexcept {
    return sequence * sequence_stride() + step * step_stride();
  }
  /// The shape of a batch of rows that have shape `row` each.
  Shape shape(const Shape& row) const {
    return batch_first ? row.prepend(steps).prepend(batch) : row.prepend(batch).prepend(steps);
  }
};

/// Assigns packed [total, ...] from padded [T, N, ...] or [N, T, ...], T at least the longest
/// length. Padding is not read. Rows that a layout which is not known() has to spare become zero.
void pack_padded(Context& context, const TensorView& padded, const PackedLayout& layout,
                 bool batch_first, const TensorSpan& packed);

/// Assigns packed [total, ...] from N sequences [L_n, ...] in the caller's order.
void pack_sequences(Context& context, std::span<const TensorView> sequences,
                    const PackedLayout& layout, const TensorSpan& packed);

/// Assigns padded [T, N, ...] or [N, T, ...], T at least the longest length, from packed
/// [total, ...]; rows past the end of their sequence get `padding_value`, converted to the dtype.
void unpack_padded(Context& context, const TensorView& packed, const PackedLayout& layout,
                   bool batch_first, double padding_value, const TensorSpan& padded);

/// Assigns N sequences [L_n, ...] in the caller's order from packed [total, ...].
void unpack_sequences(Context& context, const TensorView& packed, const PackedLayout& layout,
                      std::span<const TensorSpan> sequences);

/// Assigns padded [T, N, ...] or [N, T, ...], T at least the longest length, from N sequences
/// [L_n, ...], without packing them in between.
void pad_sequences(Context& context, std::span<const TensorView> sequences, bool batch_first,
                   double padding_value, const TensorSpan& padded);

/// Assigns target [..., row] from the rows of source [R, row], one for each element of
/// indices [...] (i32 or i64). With `absent`, index -1 stands for a row of that value. Any other
/// index outside 0 .. R - 1 throws InvalidArgument naming its position and value; on a GPU its row
/// becomes zero and the next synchronize() or to_host() throws.
void gather_rows(Context& context, const TensorView& source, const TensorView& indices,
                 const TensorSpan& target, std::optional<double> absent = std::nullopt);

/// Assigns target [N, row], caller's order, from the first or the last row of each sequence of
/// packed [total, row]; a sequence without elements gives `empty_value` everywhere.
void pick_elements(Context& context, const TensorView& packed, const PackedLayout& layout,
                   bool last, double empty_value, const TensorSpan& target);

/// The backward of pick_elements(): assigns packed [total, row] with rows [N, row], caller's order,
/// at the first or last row of each sequence that has one, and zeros elsewhere, also in rows that a
/// layout which is not known() has to spare.
void put_elements(Context& context, const TensorView& rows, const PackedLayout& layout, bool last,
                  const TensorSpan& packed);

/// Assigns columns [to, to + width) of the last dimension of target [..., G] from columns
/// [from, from + width) of source [..., F]; other columns of target stay as they are.
void copy_columns(Context& context, const TensorView& source, std::int64_t from,
                  const TensorSpan& target, std::int64_t to, std::int64_t width);

/// Assigns target [..., sum of F_k] by joining inputs [..., F_k] along the last dimension. At least
/// one input.
void concat_features(Context& context, std::span<const TensorView> inputs,
                     const TensorSpan& target);

}  // namespace packrnn::kernels

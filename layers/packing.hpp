// Between padded batches, lists of sequences and packed sequences. Any dtype; rows keep their
// trailing dimensions. Padding is never read: NaN or Inf there reaches nothing.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "packrnn/layers/packed_sequence.hpp"
#include "packrnn/runtime/context.hpp"

namespace packrnn {

struct PackOptions {
  /// Padded data is [N, T, ...] instead of [T, N, ...].
  bool batch_first = false;
  /// Refuse lengths that are not already in decreasing order.
  bool enforce_sorted = false;
  /// See LayoutOptions::sequence_ids.
  std::vector<std::int64_t> sequence_ids = {};
};

struct PadOptions {
  bool batch_first = false;
  /// Value of every element past a sequence's end, converted to the data's dtype.
  double padding_value = 0.0;
  /// Steps of the result; -1: what the packed object remembers (the padded length it came from).
  /// Less than the longest sequence is refused, 0 included.
  std::int64_t total_length = -1;
};

/// padded [T, N, ...] or [N, T, ...], one length per sequence, each 0 <= length <= T; throws
/// InvalidArgument naming the first offender. The result remembers T.
PackedSequence pack_padded_sequence(Context& context, const TensorView& padded,
                                    const Lengths& lengths, const PackOptions& options = {});

/// [T', N, ...] or [N, T', ...] in the caller's order, T' as PadOptions says. Every element is
/// assigned. The lengths are packed.lengths().
Tensor pad_packed_sequence(Context& context, const PackedSequence& packed,
                           const PadOptions& options = {});

/// sequences[n] is [L_n, ...] with equal trailing dimensions and dtype; an empty list is refused
/// (no trailing shape can be known). PackOptions::batch_first has no meaning here.
PackedSequence pack_sequence(Context& context, std::span<const TensorView> sequences,
                             const PackOptions& options = {});

/// The sequences [L_n, ...] of a packed batch, in the caller's order.
std::vector<Tensor> unpack_sequence(Context& context, const PackedSequence& packed);

/// One padded tensor from sequences [L_n, ...].
Tensor pad_sequence(Context& context, std::span<const TensorView> sequences,
                    const PadOptions& options = {});

}  // namespace packrnn

// Between padded batches, lists of sequences and packed sequences. Any dtype; rows keep their
// trailing dimensions. Padding is never read: NaN or Inf there reaches nothing. Tensors are on the
// context's device, and results are made there; the host does not wait for a GPU.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "packrnn/layers/packed_sequence.hpp"
#include "packrnn/layers/tape.hpp"
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

/// Lengths [N] (i64 or i32) that lie on the context's device. On a GPU the host neither sees them
/// nor waits for them, and a captured graph reads them anew at each launch; the packed batch has
/// room for `most_rows` rows, and its layout is not known() (see PackedLayout). Lengths that are
/// negative or longer than the padded data, and a sum beyond most_rows, throw InvalidArgument from
/// the context's next synchronize() or to_host().
struct DeviceLengths {
  TensorView values;
  /// -1: N * T. Less saves memory and work, where more is known about the batches.
  std::int64_t most_rows = -1;
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

/// The same with lengths on the device.
PackedSequence pack_padded_sequence(Context& context, const TensorView& padded,
                                    const DeviceLengths& lengths, const PackOptions& options = {});

/// [T', N, ...] or [N, T', ...] in the caller's order, T' as PadOptions says. Every element is
/// assigned. The lengths are packed.lengths().
Tensor pad_packed_sequence(Context& context, const PackedSequence& packed,
                           const PadOptions& options = {});

/// sequences[n] is [L_n, ...] with equal trailing dimensions and dtype; an empty list is refused
/// (no trailing shape can be known). PackOptions::batch_first has no meaning here.
PackedSequence pack_sequence(Context& context, std::span<const TensorView> sequences,
                             const PackOptions& options = {});

/// The sequences [L_n, ...] of a packed batch, in the caller's order. Unsupported where only the
/// device knows their lengths.
std::vector<Tensor> unpack_sequence(Context& context, const PackedSequence& packed);

/// One padded tensor from sequences [L_n, ...].
Tensor pad_sequence(Context& context, std::span<const TensorView> sequences,
                    const PadOptions& options = {});

/// The same for training. Padding has gradient zero, and no gradient is taken from it.
PackedVariable pack_padded_sequence(Tape& tape, const Variable& padded, const Lengths& lengths,
                                    const PackOptions& options = {});
Variable pad_packed_sequence(Tape& tape, const PackedVariable& packed,
                             const PadOptions& options = {});

}  // namespace packrnn

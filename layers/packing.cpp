#include "packrnn/layers/packing.hpp"

#include <algorithm>
#include <utility>

#include "packrnn/kernels/layout.hpp"
#include "packrnn/kernels/pack.hpp"
#include "packrnn/layers/arguments.hpp"
#include "packrnn/runtime/expects.hpp"

namespace packrnn {
namespace {

// What all sequences of a list must share: the shape of a row and the dtype.
void expects_alike(const Context& context, std::span<const TensorView> sequences) {
  expects(!sequences.empty(), "sequences is empty: the shape of its elements cannot be known");
  for (std::size_t n = 0; n < sequences.size(); ++n) {
    const TensorView& sequence = sequences[n];
    expects(sequence.defined(), "sequences[{}] is not defined", n);
    expects(sequence.shape().rank() >= 1, "sequences[{}] is a scalar, expected [length, ...]", n);
    expects_on_device("a sequence", sequence, context);
    expects(sequence.dtype() == sequences[0].dtype(),
            "sequences[{}] has dtype {}, the first has {}", n, sequence.dtype(),
            sequences[0].dtype());
    expects(sequence.shape().from(1) == sequences[0].shape().from(1),
            "sequences[{}] has shape {}, the first has {}: they may differ in length only", n,
            sequence.shape(), sequences[0].shape());
  }
}

std::vector<std::int64_t> lengths_of(std::span<const TensorView> sequences) {
  std::vector<std::int64_t> lengths;
  lengths.reserve(sequences.size());
  for (const TensorView& sequence : sequences) lengths.push_back(sequence.size(0));
  return lengths;
}

// T of a padded result: total_length, or `remembered` when that is -1.
std::int64_t padded_steps(std::int64_t total_length, std::int64_t remembered,
                          std::int64_t longest) {
  if (total_length == -1) return remembered;
  expects(total_length >= longest,
          "total_length is {}, expected at least {}, the longest sequence's length", total_length,
          longest);
  return total_length;
}

// What must hold of padded data, whatever the lengths are.
void expects_padded(const Context& context, const TensorView& padded, bool batch_first,
                    std::int64_t lengths) {
  expects(padded.defined(), "padded is not defined");
  expects_on_device("padded", padded, context);
  expects(padded.shape().rank() >= 2, "padded has shape {}, expected {}", padded.shape(),
          batch_first ? "[N, T, ...]" : "[T, N, ...]");
  const std::int64_t batch = padded.size(batch_first ? 0 : 1);
  expects(lengths == batch, "{} lengths for padded {}, a batch of {}", lengths, padded.shape(),
          batch);
}

PackedSequence pack(Context& context, const TensorView& padded, PackedLayoutPtr layout,
                    bool batch_first) {
  Tensor data = context.empty(padded.shape().from(2).prepend(layout->total()), padded.dtype());
  kernels::pack_padded(context, padded, *layout, batch_first, data);
  return {std::move(data), std::move(layout)};
}

Shape padded_shape(std::int64_t steps, std::int64_t batch, bool batch_first, const Shape& row) {
  return kernels::PaddedGrid{steps, batch, batch_first}.shape(row);
}

Tensor pad(Context& context, const TensorView& data, const PackedLayout& layout,
           const PadOptions& options) {
  const std::int64_t steps =
      padded_steps(options.total_length, layout.padded_length(), layout.steps());
  expects_on_device("packed", data, context);
  Tensor padded = context.empty(
      padded_shape(steps, layout.batch(), options.batch_first, data.shape().from(1)), data.dtype());
  kernels::unpack_padded(context, data, layout, options.batch_first, options.padding_value, padded);
  return padded;
}

}  // namespace

PackedSequence pack_padded_sequence(Context& context, const TensorView& padded,
                                    const Lengths& lengths, const PackOptions& options) {
  expects_padded(context, padded, options.batch_first, lengths.count());
  const std::int64_t steps = padded.size(options.batch_first ? 1 : 0);
  const auto too_long = std::ranges::find_if(lengths.values(), [&](auto l) { return l > steps; });
  expects(too_long == lengths.values().end(), "lengths[{}] is {}, but padded {} has only {} steps",
          too_long - lengths.values().begin(), too_long == lengths.values().end() ? 0 : *too_long,
          padded.shape(), steps);
  return pack(context, padded,
              PackedLayout::make(lengths, {.enforce_sorted = options.enforce_sorted,
                                           .padded_length = steps,
                                           .sequence_ids = options.sequence_ids}),
              options.batch_first);
}

PackedSequence pack_padded_sequence(Context& context, const TensorView& padded,
                                    const DeviceLengths& lengths, const PackOptions& options) {
  expects(lengths.values.defined() && lengths.values.shape().rank() == 1,
          "lengths has shape {}, but must be [N]", lengths.values.shape());
  expects_padded(context, padded, options.batch_first, lengths.values.size(0));
  expects_on_device("lengths", lengths.values, context);
  const auto count = static_cast<std::int64_t>(options.sequence_ids.size());
  Tensor ids;
  if (count > 0) ids = context.to_device(TensorView(options.sequence_ids.data(), {count}));
  return pack(context, padded,
              kernels::make_layout(context, lengths.values,
                                   {.padded_length = padded.size(options.batch_first ? 1 : 0),
                                    .rows = lengths.most_rows,
                                    .enforce_sorted = options.enforce_sorted,
                                    .sequence_ids = ids}),
              options.batch_first);
}

Tensor pad_packed_sequence(Context& context, const PackedSequence& packed,
                           const PadOptions& options) {
  expects(packed.defined(), "packed is not defined");
  return pad(context, packed.data(), packed.layout(), options);
}

PackedSequence pack_sequence(Context& context, std::span<const TensorView> sequences,
                             const PackOptions& options) {
  expects_alike(context, sequences);
  PackedLayoutPtr layout =
      PackedLayout::make(lengths_of(sequences), {.enforce_sorted = options.enforce_sorted,
                                                 .padded_length = -1,
                                                 .sequence_ids = options.sequence_ids});
  Tensor data =
      context.empty(sequences[0].shape().from(1).prepend(layout->total()), sequences[0].dtype());
  kernels::pack_sequences(context, sequences, *layout, data);
  return {std::move(data), std::move(layout)};
}

std::vector<Tensor> unpack_sequence(Context& context, const PackedSequence& packed) {
  expects(packed.defined(), "packed is not defined");
  const TensorView data = packed.data();
  expects_on_device("packed", data, context);
  const Shape row = data.shape().from(1);
  std::vector<Tensor> sequences;
  std::vector<TensorSpan> spans;
  for (const std::int64_t length : packed.lengths()) {
    sequences.push_back(context.empty(row.prepend(length), data.dtype()));
    spans.push_back(sequences.back().span());
  }
  kernels::unpack_sequences(context, data, packed.layout(), spans);
  return sequences;
}

Tensor pad_sequence(Context& context, std::span<const TensorView> sequences,
                    const PadOptions& options) {
  expects_alike(context, sequences);
  const std::int64_t longest = std::ranges::max(lengths_of(sequences));
  const std::int64_t steps = padded_steps(options.total_length, longest, longest);
  const auto batch = static_cast<std::int64_t>(sequences.size());
  Tensor padded =
      context.empty(padded_shape(steps, batch, options.batch_first, sequences[0].shape().from(1)),
                    sequences[0].dtype());
  kernels::pad_sequences(context, sequences, options.batch_first, options.padding_value, padded);
  return padded;
}

PackedVariable pack_padded_sequence(Tape& tape, const Variable& padded, const Lengths& lengths,
                                    const PackOptions& options) {
  PackedSequence packed = pack_padded_sequence(tape.context(), padded.value(), lengths, options);
  const PackedLayoutPtr layout = packed.layout_ptr();
  const Variable y = tape.result(std::move(packed).take_data(), padded.needs_gradient());
  tape.record(y, [layout, batch_first = options.batch_first, dx = padded.gradient_ptr()](
                     Context& context, const Tensor& upstream) {
    Tensor own = context.empty(dx->shape(), upstream.dtype());
    kernels::unpack_padded(context, upstream, *layout, batch_first, 0.0, own);
    dx->add(context, std::move(own));
  });
  return {y, layout};
}

Variable pad_packed_sequence(Tape& tape, const PackedVariable& packed, const PadOptions& options) {
  expects(packed.defined(), "packed is not defined");
  Variable y = tape.result(pad(tape.context(), packed.data.value(), *packed.layout, options),
                           packed.data.needs_gradient());
  tape.record(y, [layout = packed.layout, batch_first = options.batch_first,
                  dx = packed.data.gradient_ptr()](Context& context, const Tensor& upstream) {
    Tensor rows = context.empty(dx->shape(), upstream.dtype());
    kernels::pack_padded(context, upstream, *layout, batch_first, rows);
    dx->add(context, std::move(rows));
  });
  return y;
}

}  // namespace packrnn

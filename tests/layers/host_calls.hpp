// The library's calls with host tensors in and host tensors out, wherever the context computes: a
// test written with these runs on every device. On the CPU each of them is the call itself, between
// two copies.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "packrnn/layers/embedding.hpp"
#include "packrnn/layers/linear.hpp"
#include "packrnn/layers/losses.hpp"
#include "packrnn/layers/packed_ops.hpp"
#include "packrnn/layers/packing.hpp"
#include "packrnn/layers/recurrent.hpp"
#include "packrnn/runtime/context.hpp"

namespace packrnn::tests {

/// Device::best() is not the CPU. A simulated GPU is some hundred times slower than one: tests take
/// fewer or smaller cases there.
inline bool on_device() { return Device::best() != Device::cpu(); }

/// On the device that PACKRNN_DEVICE names.
inline Context test_context(int threads = 1) {
  return Context(Device::best(), {.threads = threads});
}

namespace host {

/// What is absent stays absent.
inline Tensor up(Context& context, const TensorView& tensor) {
  return tensor.defined() ? context.to_device(tensor) : Tensor();
}
inline Tensor down(Context& context, const TensorView& tensor) {
  return tensor.defined() ? context.to_host(tensor) : Tensor();
}
inline std::vector<Tensor> up(Context& context, std::span<const TensorView> list) {
  std::vector<Tensor> result;
  for (const TensorView& tensor : list) result.push_back(up(context, tensor));
  return result;
}
inline PackedSequence up(Context& context, const PackedSequence& packed) {
  return packed.defined() ? to_device(context, packed) : PackedSequence();
}

// ---- layers -------------------------------------------------------------------------------------

/// Moves states in and cells out around `call`.
template <class Call>
auto with_options(Context& context, const ForwardOptions& options, Call&& call) {
  const Tensor h = up(context, options.state.h), c = up(context, options.state.c);
  ForwardOptions moved = options;
  moved.state = StateView(h, c);
  auto result = to_host(context, call(moved));
  if (options.cells != nullptr)
    for (Tensor& cells : *options.cells) cells = context.to_host(cells);
  return result;
}

inline PackedOutput forward(Context& context, const Recurrent& layer, const PackedSequence& input,
                            const ForwardOptions& options = {}) {
  return with_options(context, options, [&](const ForwardOptions& moved) {
    return layer.forward(context, up(context, input), moved);
  });
}

inline DenseOutput forward(Context& context, const Recurrent& layer, const TensorView& input,
                           const ForwardOptions& options = {}) {
  return with_options(context, options, [&](const ForwardOptions& moved) {
    return layer.forward(context, up(context, input), moved);
  });
}

inline DenseOutput forward_padded(Context& context, const Recurrent& layer,
                                  const TensorView& padded, const Lengths& lengths,
                                  const ForwardOptions& options = {}) {
  return with_options(context, options, [&](const ForwardOptions& moved) {
    return layer.forward_padded(context, up(context, padded), lengths, moved);
  });
}

inline Tensor forward(Context& context, const Linear& layer, const TensorView& x) {
  return down(context, layer.forward(context, up(context, x)));
}
inline PackedSequence forward(Context& context, const Linear& layer, const PackedSequence& x) {
  return to_host(context, layer.forward(context, up(context, x)));
}
inline Tensor forward(Context& context, const Embedding& layer, const TensorView& indices) {
  return down(context, layer.forward(context, up(context, indices)));
}
inline PackedSequence forward(Context& context, const Embedding& layer,
                              const PackedSequence& indices) {
  return to_host(context, layer.forward(context, up(context, indices)));
}

// ---- packing ------------------------------------------------------------------------------------

inline PackedSequence pack_padded_sequence(Context& context, const TensorView& padded,
                                           const Lengths& lengths,
                                           const PackOptions& options = {}) {
  return to_host(context,
                 packrnn::pack_padded_sequence(context, up(context, padded), lengths, options));
}

inline Tensor pad_packed_sequence(Context& context, const PackedSequence& packed,
                                  const PadOptions& options = {}) {
  return down(context, packrnn::pad_packed_sequence(context, up(context, packed), options));
}

inline PackedSequence pack_sequence(Context& context, std::span<const TensorView> sequences,
                                    const PackOptions& options = {}) {
  const std::vector<Tensor> moved = up(context, sequences);
  const std::vector<TensorView> views(moved.begin(), moved.end());
  return to_host(context, packrnn::pack_sequence(context, views, options));
}

inline std::vector<Tensor> unpack_sequence(Context& context, const PackedSequence& packed) {
  std::vector<Tensor> result = packrnn::unpack_sequence(context, up(context, packed));
  for (Tensor& sequence : result) sequence = context.to_host(sequence);
  return result;
}

inline Tensor pad_sequence(Context& context, std::span<const TensorView> sequences,
                           const PadOptions& options = {}) {
  const std::vector<Tensor> moved = up(context, sequences);
  const std::vector<TensorView> views(moved.begin(), moved.end());
  return down(context, packrnn::pad_sequence(context, views, options));
}

// ---- operations on packed data ------------------------------------------------------------------

inline Tensor first_element(Context& context, const PackedSequence& packed,
                            double empty_value = 0.0) {
  return down(context, packrnn::first_element(context, up(context, packed), empty_value));
}
inline Tensor last_element(Context& context, const PackedSequence& packed,
                           double empty_value = 0.0) {
  return down(context, packrnn::last_element(context, up(context, packed), empty_value));
}
inline Tensor sum_sequences(Context& context, const PackedSequence& packed,
                            double empty_value = 0.0) {
  return down(context, packrnn::sum_sequences(context, up(context, packed), empty_value));
}
inline Tensor mean_sequences(Context& context, const PackedSequence& packed,
                             double empty_value = 0.0) {
  return down(context, packrnn::mean_sequences(context, up(context, packed), empty_value));
}
inline Tensor max_sequences(Context& context, const PackedSequence& packed,
                            double empty_value = 0.0) {
  return down(context, packrnn::max_sequences(context, up(context, packed), empty_value));
}

inline PackedSequence concat_features(Context& context,
                                      std::span<const PackedSequence* const> inputs) {
  std::vector<PackedSequence> moved;
  for (const PackedSequence* input : inputs) moved.push_back(up(context, *input));
  std::vector<const PackedSequence*> pointers;
  for (const PackedSequence& input : moved) pointers.push_back(&input);
  return to_host(context, packrnn::concat_features(context, pointers));
}

// ---- losses, of variables on a tape -------------------------------------------------------------

inline CrossEntropyOptions up(Context& context, CrossEntropyOptions options, Tensor& weights) {
  weights = up(context, options.class_weights);
  options.class_weights = weights;
  return options;
}
inline Variable cross_entropy(Tape& tape, const Variable& logits, const TensorView& targets,
                              const CrossEntropyOptions& options = {}) {
  Context& context = tape.context();
  Tensor weights;
  return packrnn::cross_entropy(tape, logits, up(context, targets), up(context, options, weights));
}
inline Variable cross_entropy(Tape& tape, const PackedVariable& logits,
                              const PackedSequence& targets,
                              const CrossEntropyOptions& options = {}, Per per = Per::token) {
  Context& context = tape.context();
  Tensor weights;
  return packrnn::cross_entropy(tape, logits, up(context, targets), up(context, options, weights),
                                per);
}

inline Variable mse_loss(Tape& tape, const Variable& input, const TensorView& target,
                         LossReduction reduction = LossReduction::mean) {
  return packrnn::mse_loss(tape, input, up(tape.context(), target), reduction);
}
inline Variable mse_loss(Tape& tape, const PackedVariable& input, const PackedSequence& target,
                         LossReduction reduction = LossReduction::mean, Per per = Per::token) {
  return packrnn::mse_loss(tape, input, up(tape.context(), target), reduction, per);
}

inline Variable bce_with_logits(Tape& tape, const Variable& logits, const TensorView& targets,
                                BceOptions options = {}) {
  Context& context = tape.context();
  const Tensor weight = up(context, options.weight), pos = up(context, options.pos_weight);
  options.weight = weight;
  options.pos_weight = pos;
  return packrnn::bce_with_logits(tape, logits, up(context, targets), options);
}
inline Variable bce_with_logits(Tape& tape, const PackedVariable& logits,
                                const PackedSequence& targets, BceOptions options = {},
                                Per per = Per::token) {
  Context& context = tape.context();
  const Tensor weight = up(context, options.weight), pos = up(context, options.pos_weight);
  options.weight = weight;
  options.pos_weight = pos;
  return packrnn::bce_with_logits(tape, logits, up(context, targets), options, per);
}

inline Variable ctc_loss(Tape& tape, const PackedVariable& logits, const TensorView& targets,
                         const Lengths& target_lengths, const CtcOptions& options = {}) {
  return packrnn::ctc_loss(tape, logits, up(tape.context(), targets), target_lengths, options);
}

inline Tensor argmax(Context& context, const TensorView& rows) {
  return down(context, packrnn::argmax(context, up(context, rows)));
}

}  // namespace host
}  // namespace packrnn::tests

// Losses for training: recorded on a tape, over rows or over packed sequences without padding.
//
//   Variable loss = cross_entropy(tape, scores, targets, {.label_smoothing = 0.1});
//   tape.backward(loss);
//
// In f32 and f64, on a GPU also in f16 and bf16. Each row's loss is computed in double from that
// row alone, and sums and counts are in double in a fixed order: the bits do not depend on the
// number of threads, and those of a sequence's own loss not on its batch. Results have the dtype of
// the input, those of 16-bit inputs are f32; gradients have the dtype of the input. Targets and
// weights have no gradient and are copied. Wrong shapes, dtypes and target values throw
// InvalidArgument, naming position, value and range, before anything is computed.
//
// With a context on a GPU everything is there, targets and weights too, and nothing waits: the loss
// stays there until the caller brings it to the host. So the host does not see what targets and
// weights say: a value out of range makes its row's loss and gradient NaN, and what waits for the
// context next, such as Optimizer::step() before it changes anything, throws the InvalidArgument.
#pragma once

#include <cstdint>

#include "packrnn/layers/packed_sequence.hpp"
#include "packrnn/layers/tape.hpp"
#include "packrnn/layers/variable.hpp"
#include "packrnn/runtime/context.hpp"
#include "packrnn/runtime/packed_layout.hpp"
#include "packrnn/runtime/tensor.hpp"

namespace packrnn {

/// none: one loss for each row, element or sequence. mean: the sum divided by the weight of what
/// counts, as each loss says; the mean of nothing is 0, and so are its gradients (PyTorch: NaN).
enum class LossReduction : std::uint8_t { none, sum, mean };

/// What is averaged over packed data. sequence: first the tokens of each sequence, then the
/// sequences, so that long ones do not count for more; with `sum` the sequences' averages are
/// added, with `none` they are the result [N] in the caller's order. A sequence in which nothing
/// counts has an average of 0 and is left out of the mean.
enum class Per : std::uint8_t { token, sequence };

struct CrossEntropyOptions {
  /// [C], floating, each finite and not negative; not defined: ones.
  TensorView class_weights = {};
  /// Rows with this target are left out: loss and gradient 0, whatever is in them.
  std::int64_t ignore_index = -100;
  /// The part of the target, 0 to 1, that is spread evenly over all classes.
  double label_smoothing = 0.0;
  LossReduction reduction = LossReduction::mean;
};

/// Of the softmax of logits [M, C] and the classes targets [M], i32 or i64: -log p of each row's
/// target, times that class's weight. mean divides by the sum of the targets' weights, as PyTorch
/// does. Result [M] for none, else a scalar.
Variable cross_entropy(Tape& tape, const Variable& logits, const TensorView& targets,
                       const CrossEntropyOptions& options = {});
/// logits [total, C] and targets [total] over the same rows. Result [total] or [N] for none.
Variable cross_entropy(Tape& tape, const PackedVariable& logits, const PackedSequence& targets,
                       const CrossEntropyOptions& options = {}, Per per = Per::token);

/// (input - target)^2 of every element, both of one shape and dtype; mean divides by the number of
/// elements. Result of the input's shape for none, else a scalar.
Variable mse_loss(Tape& tape, const Variable& input, const TensorView& target,
                  LossReduction reduction = LossReduction::mean);
/// input and target [total, ...] over the same rows. Per::sequence averages a sequence's elements.
Variable mse_loss(Tape& tape, const PackedVariable& input, const PackedSequence& target,
                  LossReduction reduction = LossReduction::mean, Per per = Per::token);

struct BceOptions {
  /// Each of the logits' shape or of that of their last dimensions, and then repeated; floating;
  /// not defined: ones. `weight` multiplies the loss, `pos_weight` only the part of target 1.
  TensorView weight = {}, pos_weight = {};
  LossReduction reduction = LossReduction::mean;
};

/// Binary cross entropy of every element: -(t log s + (1 - t) log(1 - s)), s the logistic function
/// of the logit, t the target of 0 to 1, of the logits' shape and dtype. Stable: no large logit
/// overflows. mean divides by the number of elements, whatever the weights, as PyTorch does. Result
/// of the logits' shape for none, else a scalar.
Variable bce_with_logits(Tape& tape, const Variable& logits, const TensorView& targets,
                         const BceOptions& options = {});
/// logits and targets [total, ...] over the same rows. Per::sequence averages a sequence's
/// elements.
Variable bce_with_logits(Tape& tape, const PackedVariable& logits, const PackedSequence& targets,
                         const BceOptions& options = {}, Per per = Per::token);

struct CtcOptions {
  /// The class that stands for no label.
  std::int64_t blank = 0;
  /// A loss of 0 in place of infinity.
  bool zero_infinity = false;
  LossReduction reduction = LossReduction::mean;
};

/// Connectionist temporal classification: -log of the probability that a sequence's steps, softmax
/// of logits [total, C] each, spell its targets once repeats are merged and then blanks dropped.
/// Log-probabilities do as logits. targets: the labels of all sequences one after the other, in the
/// caller's order, i32 or i64, none the blank; target_lengths [N], zeros allowed. Nothing in no
/// steps costs 0. What no steps can spell costs infinity and has the gradient 0 either way. mean
/// divides each loss by its target's length (at least 1), then averages over the sequences, as
/// PyTorch does. Result [N], the caller's order, for none, else a scalar.
Variable ctc_loss(Tape& tape, const PackedVariable& logits, const TensorView& targets,
                  const Lengths& target_lengths, const CtcOptions& options = {});

/// i64 [M]: the class in which each of rows [M, C] is largest, the first of equals; a NaN counts as
/// largest.
Tensor argmax(Context& context, const TensorView& rows);

}  // namespace packrnn

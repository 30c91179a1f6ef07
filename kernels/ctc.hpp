// Connectionist temporal classification: the loss of labels without times. In f32 and f64, on a GPU
// also in f16 and bf16.
//
// A path names a class for each step of a sequence; it spells its labels once repeats are merged
// and then blanks dropped. A sequence's loss is -log of the sum over all paths that spell its
// labels, each with the product of its steps' softmax. Sums are over log values, in double, each
// sequence by itself: its bits depend neither on the batch nor on the number of threads.
//
// Labels that are no classes are refused on the CPU. A GPU's are not seen by the host: the sequence
// gets NaN, and what waits for the context next throws InvalidArgument with position and value.
// Nothing here waits.
#pragma once

#include <cstdint>
#include <span>

#include "packrnn/runtime/context.hpp"
#include "packrnn/runtime/packed_layout.hpp"
#include "packrnn/runtime/tensor.hpp"

namespace packrnn::kernels {

/// Labels of N sequences, the caller's order: those of sequence n are labels[begins[n]] up to
/// labels[begins[n + 1]]. None equals the blank.
struct CtcLabels {
  TensorView labels;                     // i64 [begins[N]] or more, on the context's device
  std::span<const std::int64_t> begins;  // [N + 1], never falling; the host's
  std::int64_t blank = 0;
};

/// Assigns losses f64 [N], caller's order, and log_sum_exp f64 [total] of packed logits [total, C],
/// C >= 1. Infinity where no path spells the labels, as when there are more of them than steps; 0
/// for no labels in no steps. Throws InvalidArgument on what does not fit, before anything is
/// assigned.
void ctc(Context& context, const TensorView& logits, const PackedLayout& layout,
         const CtcLabels& labels, const TensorSpan& log_sum_exp, const TensorSpan& losses);

/// Assigns gradient [total, C], d total / d logits, from scales f64 [N], d total / d loss, and what
/// forward assigned. Zeros for a sequence whose scale is 0 or whose loss is infinite. Takes as
/// scratch, on each thread, 2 L + 1 doubles for each step of the sequence that needs most, L its
/// labels; on a GPU as many for each row, L the most labels of a sequence.
void ctc_backward(Context& context, const TensorView& logits, const PackedLayout& layout,
                  const CtcLabels& labels, const TensorView& log_sum_exp, const TensorView& losses,
                  const TensorView& scales, const TensorSpan& gradient);

}  // namespace packrnn::kernels

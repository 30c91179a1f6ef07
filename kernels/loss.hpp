// Losses of rows, not yet reduced (loss_reduction.hpp does that), and their gradients. In f32 and
// f64, on a GPU also in f16 and bf16.
//
// A row's loss is computed in double and in a fixed order from that row alone: a NaN stays in its
// row, and the bits do not depend on the number of threads. `scales` are d total / d row's loss,
// which is how any linear reduction goes backward; a row whose scale is 0 gets zeros, whatever is
// in it. All throw InvalidArgument on shapes, dtypes, devices and, on the CPU, targets and weights
// that do not fit, before anything is assigned. A GPU's targets are not seen by the host: a row
// with one that does not fit gets NaN, and what waits for the context next throws InvalidArgument
// with position and value. Nothing here waits.
#pragma once

#include <cstdint>

#include "packrnn/runtime/context.hpp"
#include "packrnn/runtime/tensor.hpp"

namespace packrnn::kernels {

struct CrossEntropy {
  TensorView class_weights = {};  // f64 [C], finite, not negative; not defined: ones
  std::int64_t ignore_index = -100;
  double label_smoothing = 0.0;
};

/// Assigns losses f64 [M] and log_sum_exp f64 [M] of logits [M, C], C >= 1, with targets i64 [M] of
/// 0 .. C - 1 or ignore_index, which gives a loss of 0. With y a row's target, w the weights, e the
/// smoothing: loss = (1 - e) w_y (-log p_y) + e / C * sum over c of w_c (-log p_c), p the softmax.
/// Terms of weight 0 are 0, also where p is. Assigns weights f64 [M] too, unless not defined: w_y,
/// or 0 for what is left out.
void cross_entropy(Context& context, const CrossEntropy& terms, const TensorView& logits,
                   const TensorView& targets, const TensorSpan& log_sum_exp,
                   const TensorSpan& losses, const TensorSpan& weights = {});

/// Assigns gradient [M, C], d total / d logits, from scales f64 [M] and forward's log_sum_exp.
void cross_entropy_backward(Context& context, const CrossEntropy& terms, const TensorView& logits,
                            const TensorView& targets, const TensorView& log_sum_exp,
                            const TensorView& scales, const TensorSpan& gradient);

enum class ElementLoss {
  squared_error,         // (x - y)^2
  binary_cross_entropy,  // -(q y log s(x) + (1 - y) log(1 - s(x))), s the logistic function
};

/// `weight` multiplies the loss, `pos_weight` is q above. f64, repeated until they cover the input;
/// not defined: ones.
struct ElementTerms {
  ElementLoss loss = ElementLoss::squared_error;
  TensorView weight = {}, pos_weight = {};
};

/// Assigns losses f64 [M]: the sums over the M equal parts of input and target, of one shape. The
/// targets of binary cross entropy are 0 to 1 (not checked again on the way back).
void element_losses(Context& context, const ElementTerms& terms, const TensorView& input,
                    const TensorView& target, const TensorSpan& losses);

/// Assigns gradient, of the input's shape, from scales f64 [M].
void element_losses_backward(Context& context, const ElementTerms& terms, const TensorView& input,
                             const TensorView& target, const TensorView& scales,
                             const TensorSpan& gradient);

/// Assigns result i64 [M]: where each of rows [M, C], C >= 1, is largest; the first of equals. A
/// NaN counts as largest.
void argmax(Context& context, const TensorView& rows, const TensorSpan& result);

/// Assigns result i64 from indices i32 or i64 of the same shape.
void widen_indices(Context& context, const TensorView& indices, const TensorSpan& result);

}  // namespace packrnn::kernels

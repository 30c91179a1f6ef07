// Operations on a Tape beside those of layers and of packed sequences (packed_ops.hpp), in f32 and
// f64, on a GPU also in f16 and bf16. Arguments that are constants get no gradient, and cost
// nothing on the way back.
//
// Common errors: InvalidArgument for arguments that are not defined, on another device, or of
// shapes and dtypes that do not fit.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>

#include "packrnn/layers/tape.hpp"

namespace packrnn {

// Element by element; two arguments of one shape and dtype ----------------------------------------

Variable add(Tape& tape, const Variable& a, const Variable& b);
Variable subtract(Tape& tape, const Variable& a, const Variable& b);
Variable multiply(Tape& tape, const Variable& a, const Variable& b);
/// factor * a
Variable scale(Tape& tape, const Variable& a, double factor);
/// max(0, a), with gradient 0 at 0. NaN stays NaN in all three.
Variable relu(Tape& tape, const Variable& a);
Variable tanh(Tape& tape, const Variable& a);
/// 1 / (1 + exp(-a))
Variable sigmoid(Tape& tape, const Variable& a);

/// An operation that keeps the rows, on packed data:
///   on_rows(x, [&](const Variable& rows) { return relu(tape, rows); })
template <class Operation>
PackedVariable on_rows(const PackedVariable& x, Operation&& operation) {
  return {operation(x.data), x.layout};
}

// Shapes ------------------------------------------------------------------------------------------

/// [..., F_k] give [..., sum of F_k]. At least one input.
Variable concat(Tape& tape, std::span<const Variable> inputs);
inline Variable concat(Tape& tape, std::initializer_list<Variable> inputs) {
  return concat(tape, std::span<const Variable>(inputs.begin(), inputs.size()));
}
/// Columns [begin, end) of the last dimension.
Variable columns(Tape& tape, const Variable& a, std::int64_t begin, std::int64_t end);
/// The same elements under a shape of equal size; nothing is copied.
Variable reshape(Tape& tape, const Variable& a, const Shape& shape);

// Rows --------------------------------------------------------------------------------------------

/// table [R, ...] and indices [M] (i32 or i64) give [M, ...]; index -1 gives a row of zeros. Others
/// outside 0 .. R - 1 throw InvalidArgument, on a GPU from the next synchronize(). Backward, the
/// gradients of one row are summed in the order of their positions, whatever the number of threads.
Variable gather_rows(Tape& tape, const Variable& table, const TensorView& indices);
/// rows [M, ...] and segments [M] (i32 or i64, in any order) give [count, ...]: in row s the sum,
/// in their order, of the rows whose segment is s; zeros where there are none. Segment -1 leaves a
/// row out.
Variable segment_sum(Tape& tape, const Variable& rows, const TensorView& segments,
                     std::int64_t count);

// Dropout -----------------------------------------------------------------------------------------

/// While TapeOptions::training: an element becomes 0 with probability p in [0, 1], else it is
/// multiplied by 1 / (1 - p). Otherwise the argument itself. Each call draws from
/// context.random(). The mask of packed rows belongs to the sequence, its id and its steps; that of
/// [..., F] to the place. Nothing is stored: the backward makes the mask again.
Variable dropout(Tape& tape, const Variable& a, double p);
PackedVariable dropout(Tape& tape, const PackedVariable& a, double p);

}  // namespace packrnn

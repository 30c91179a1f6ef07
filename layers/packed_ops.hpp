// Operations on packed data that never see padding. A reduction runs over a sequence's own elements
// in time order, accumulating in float (f16, bf16, f32) or double (f64): its bits do not depend on
// the rest of the batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "packrnn/layers/packed_sequence.hpp"
#include "packrnn/layers/tape.hpp"
#include "packrnn/runtime/context.hpp"

namespace packrnn {

/// Joins feature-wise: inputs [total, ..., F_k] over one and the same layout (equal lengths, ties
/// in equal order) give [total, ..., sum of F_k] over the first one's. At least one input.
PackedSequence concat_features(Context& context, std::span<const PackedSequence* const> inputs);

/// [N, ...] in the caller's order: the first (last) element of every sequence. A zero-length
/// sequence gives `empty_value` everywhere.
Tensor first_element(Context& context, const PackedSequence& packed, double empty_value = 0.0);
Tensor last_element(Context& context, const PackedSequence& packed, double empty_value = 0.0);

/// [N, ...] in the caller's order, floating dtypes only: sum, arithmetic mean and maximum over each
/// sequence's elements. NaN propagates within its own sequence (also through max). A zero-length
/// sequence gives `empty_value` everywhere.
Tensor sum_sequences(Context& context, const PackedSequence& packed, double empty_value = 0.0);
Tensor mean_sequences(Context& context, const PackedSequence& packed, double empty_value = 0.0);
Tensor max_sequences(Context& context, const PackedSequence& packed, double empty_value = 0.0);

/// The same for training, in f32 and f64, on a GPU also in f16 and bf16. Sequences without elements
/// have no gradient; that of a maximum goes to the first element, in time order, that holds it.
PackedVariable concat_features(Tape& tape, std::span<const PackedVariable> inputs);
Variable first_element(Tape& tape, const PackedVariable& packed, double empty_value = 0.0);
Variable last_element(Tape& tape, const PackedVariable& packed, double empty_value = 0.0);
Variable sum_sequences(Tape& tape, const PackedVariable& packed, double empty_value = 0.0);
Variable mean_sequences(Tape& tape, const PackedVariable& packed, double empty_value = 0.0);
Variable max_sequences(Tape& tape, const PackedVariable& packed, double empty_value = 0.0);

/// Applies `function`, T -> T, to every element of data in the host's memory; throws
/// InvalidArgument unless they are there and of T's dtype. Large data are spread over the context's
/// threads, so `function` must be safe to call from several at once; what it throws arrives here.
template <class T, class Function>
PackedSequence map_elements(Context& context, const PackedSequence& packed,
                            const Function& function) {
  constexpr std::size_t kWorthWaking = 8192;  // elements; a team wakes in some microseconds
  const std::span<const T> in = packed.data().values<T>();
  Tensor result = Tensor::empty(packed.data().shape(), packed.data().dtype());
  const std::span<T> out = result.values<T>();
  const auto apply = [&](std::int64_t begin, std::int64_t end) {
    for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i)
      out[i] = function(in[i]);
  };
  const auto count = static_cast<std::int64_t>(in.size());
  if (in.size() < kWorthWaking)
    apply(0, count);
  else
    context.pool().run([&](int worker) {
      const Range part = split(count, worker, context.pool().size());
      apply(part.begin, part.end);
    });
  return {std::move(result), packed.layout_ptr()};
}

}  // namespace packrnn

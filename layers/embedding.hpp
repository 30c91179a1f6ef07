// A table of vectors, looked up by index.
#pragma once

#include <memory>

#include "packrnn/layers/derived.hpp"
#include "packrnn/layers/packed_sequence.hpp"
#include "packrnn/layers/parameters.hpp"
#include "packrnn/layers/tape.hpp"
#include "packrnn/runtime/context.hpp"

namespace packrnn {

struct EmbeddingOptions {
  std::int64_t num_embeddings = 0;  // V, at least 1
  std::int64_t embedding_dim = 0;   // E, at least 1
  /// An index whose row starts as zeros and is not trained; -1: none.
  std::int64_t padding_idx = -1;
  Dtype dtype = Dtype::f32;  // any floating dtype
  /// Of the initial values.
  std::uint64_t seed = 0;
};

/// Parameter `weight` [V, E], at first drawn from N(0, 1), with row padding_idx zero. load() takes
/// every row as it comes, that one too.
///
/// The parameter is in the host's memory until it is moved (Parameters::to); a GPU gets a copy of
/// one on the host at the first call there and after a change. forward() may be called from several
/// threads at once, each with its own Context on any device; load() and changes of parameters() may
/// not run beside it.
class Embedding {
 public:
  explicit Embedding(const EmbeddingOptions& options);

  /// Indices [total, ...] (i32 or i64) give [total, ..., E] over the same layout. An index outside
  /// 0 .. V - 1 throws InvalidArgument naming its position in the packed data and its value; on a
  /// GPU, which alone sees the indices, from the context's next synchronize() or to_host().
  PackedSequence forward(Context& context, const PackedSequence& indices) const;
  /// Indices [...] give [..., E].
  Tensor forward(Context& context, const TensorView& indices) const;

  /// The same for training: the backward adds to the gradient of `weight` if it is trainable now
  /// (then it must be on the context's device), but for row padding_idx, whose gradient is left
  /// alone. The uses of one row are summed in the order of their positions, whatever the number of
  /// threads.
  Variable forward(Tape& tape, const TensorView& indices);
  PackedVariable forward(Tape& tape, const PackedSequence& indices);
  PackedVariable forward(Tape& tape, const PackedVariable& indices);

  const EmbeddingOptions& options() const noexcept { return options_; }
  const Parameters& parameters() const noexcept { return parameters_; }
  Parameters& parameters() noexcept { return parameters_; }

  /// See Parameters::state_dict and Parameters::load.
  StateDict state_dict(std::string_view prefix = "") const {
    return parameters_.state_dict(prefix);
  }
  LoadReport load(const StateDict& source, const LoadOptions& options = {}) {
    return parameters_.load(source, options);
  }

 private:
  Variable forward(Tape& tape, const std::shared_ptr<const Tensor>& indices);

  EmbeddingOptions options_;
  Parameters parameters_;
  Derived<Tensor> table_;  // the weight on a GPU
};

}  // namespace packrnn

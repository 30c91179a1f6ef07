// Layer normalisation over the last dimension of packed or dense data.
#pragma once

#include <memory>

#include "packrnn/layers/derived.hpp"
#include "packrnn/layers/packed_sequence.hpp"
#include "packrnn/layers/parameters.hpp"
#include "packrnn/layers/tape.hpp"
#include "packrnn/runtime/context.hpp"

namespace packrnn {

struct LayerNormOptions {
  std::int64_t features = 0;  // F, at least 1
  /// Added to the variance; 0 or more.
  double eps = 1e-5;
  bool bias = true;
  /// Any floating dtype; f16 and bf16 compute on a GPU only (Unsupported on the CPU).
  Dtype dtype = Dtype::f32;
};

/// y = (x - mean) / sqrt(variance + eps) * weight + bias, with mean and variance (divided by F) of
/// each row of F. Parameters `weight` [F], at first ones, and, with bias, `bias` [F], at first
/// zeros. A row's result has the same bits whatever rows stand beside it.
///
/// The parameters are in the host's memory until they are moved (Parameters::to); a GPU gets a copy
/// of those on the host at the first call there and after a change. forward() with a Context may be
/// called from several threads at once, each with its own; load() and changes of parameters() may
/// not run beside it.
class LayerNorm {
 public:
  explicit LayerNorm(const LayerNormOptions& options);

  /// x [total, ..., F] gives the same shape over the same layout. Throws InvalidArgument when the
  /// last dimension is not F, the dtype is not the layer's or the device not the context's.
  PackedSequence forward(Context& context, const PackedSequence& x) const;
  /// x [..., F] gives the same shape; at least one dimension.
  Tensor forward(Context& context, const TensorView& x) const;

  /// The same for training: the backward adds to the gradients of parameters() if they are
  /// trainable now (then they must be on the context's device), and throws InvalidArgument if they
  /// were changed in between.
  Variable forward(Tape& tape, const Variable& x);
  PackedVariable forward(Tape& tape, const PackedVariable& x);

  const LayerNormOptions& options() const noexcept { return options_; }
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
  struct Affine {
    Tensor weight, bias;  // copies on a device; bias may be undefined
  };
  void check(Context& context, const TensorView& x, bool trains) const;
  /// Null where the parameters are on the context's device.
  std::shared_ptr<const Affine> affine(Context& context) const;
  Tensor apply(Context& context, const TensorView& x, const Affine* affine) const;

  LayerNormOptions options_;
  Parameters parameters_;
  Derived<Affine> affine_;
};

}  // namespace packrnn

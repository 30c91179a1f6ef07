// The affine map y = x W^T + b on the last dimension of packed or dense data.
#pragma once

#include <array>
#include <memory>

#include "packrnn/layers/derived.hpp"
#include "packrnn/layers/packed_sequence.hpp"
#include "packrnn/layers/parameters.hpp"
#include "packrnn/layers/tape.hpp"
#include "packrnn/runtime/context.hpp"

namespace packrnn {

struct LinearOptions {
  std::int64_t in_features = 0;   // I, at least 1
  std::int64_t out_features = 0;  // O, at least 1
  bool bias = true;
  /// Any floating dtype; f16 and bf16 compute on a GPU only (Unsupported on the CPU).
  Dtype dtype = Dtype::f32;
  /// Of the initial values.
  std::uint64_t seed = 0;
};

/// Parameters `weight` [O, I] and, with bias, `bias` [O], at first drawn from
/// U(-1/sqrt(I), 1/sqrt(I)). A row's result has the same bits whatever rows stand beside it.
///
/// The parameters are in the host's memory until they are moved (Parameters::to); a device gets its
/// own form of them at the first call there and after a change. forward() may be called from
/// several threads at once, each with its own Context on any device; load() and changes of
/// parameters() may not run beside it.
class Linear {
 public:
  explicit Linear(const LinearOptions& options);

  /// x [total, ..., I] gives [total, ..., O] over the same layout. Throws InvalidArgument when the
  /// last dimension is not I, the dtype is not the layer's or the device not the context's.
  PackedSequence forward(Context& context, const PackedSequence& x) const;
  /// x [..., I] gives [..., O]; at least one dimension.
  Tensor forward(Context& context, const TensorView& x) const;

  /// The same for training: the backward adds to the gradients of parameters() if they are
  /// trainable now (then they must be on the context's device), and throws InvalidArgument if they
  /// were changed in between.
  Variable forward(Tape& tape, const Variable& x);
  PackedVariable forward(Tape& tape, const PackedVariable& x);

  const LinearOptions& options() const noexcept { return options_; }
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
  enum class Way { forward, backward };
  void check(Context& context, const TensorView& x, bool trains) const;
  Tensor pack(Context& context, Way way, Tensor panels) const;
  std::int64_t panel_elements(Device device, Way way) const;
  std::shared_ptr<const Tensor> panels(Context& context, Way way) const;
  std::shared_ptr<const Tensor> panels_for_step(Context& context, Way way);
  Tensor apply(Context& context, const TensorView& x, const Tensor& panels) const;

  LinearOptions options_;
  Parameters parameters_;
  // Weight and bias in the order of a device's kernel, and the same of the weight's transpose.
  std::array<Derived<Tensor>, 2> panels_;
  std::array<DerivedForStep<Tensor>, 2> step_panels_;
};

}  // namespace packrnn

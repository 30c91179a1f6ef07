// Records what was computed, so that gradients can be computed backward from a loss.
//
//   Tape tape(context);
//   Variable scores = head.forward(tape, last_element(tape, lstm.forward(tape, x).output));
//   Variable loss = cross_entropy(tape, scores, targets);
//   tape.backward(loss);     // adds to the gradients of all parameters that were used
//   optimizer.step(context);
//
// Layers and operations called with a Tape keep what their backward needs; called with a Context
// they keep nothing. Each step of training has its own tape.
#pragma once

#include <functional>
#include <initializer_list>
#include <span>
#include <vector>

#include "packrnn/layers/variable.hpp"

namespace packrnn {

struct TapeOptions {
  /// Dropout is active. Without it a backward works just as well: gradients of the model as it is
  /// in use.
  bool training = true;
};

/// Used by one thread, with one context, which must outlive it. Movable, not copyable.
///
/// The order of all sums is fixed: two runs give the same bits, on any number of threads.
class Tape {
 public:
  /// A backward of one operation: takes the gradients of its results, adds to those of its
  /// arguments and of parameters. It runs before those recorded earlier, at most once, and dies
  /// right after, with all that it kept.
  using Backward = std::function<void(Context&)>;

  explicit Tape(Context& context, const TapeOptions& options = {});
  Tape(Tape&&) noexcept = default;
  Tape& operator=(Tape&&) noexcept = default;

  Context& context() const noexcept { return *context_; }
  const TapeOptions& options() const noexcept { return options_; }
  bool used() const noexcept { return used_; }

  /// A value without gradient, such as data. Takes the tensor; on the context's device.
  Variable constant(Tensor value) const;
  PackedVariable constant(PackedSequence value) const;
  /// A value whose gradient the caller wants: Variable::gradient() after backward(). f32 or f64; on
  /// a GPU also f16 and bf16.
  Variable input(Tensor value);
  PackedVariable input(PackedSequence value);

  /// From the gradient 1 (or `scale`: the loss as a multiple of itself, as for gradient
  /// accumulation or 16-bit training) of a loss of one element. Adds to the gradients of inputs and
  /// parameters; what was recorded is freed as it is passed. A tape goes backward once: after that
  /// it is used(), and recording on it or a second backward throws InvalidArgument, as does a loss
  /// that depends on nothing with a gradient.
  void backward(const Variable& loss, double scale = 1.0);

  /// From given gradients of any results, [value's shape] each.
  struct Start {
    Variable result;
    TensorView gradient;
  };
  void backward(std::span<const Start> starts);
  void backward(std::initializer_list<Start> starts) {
    backward(std::span<const Start>(starts.begin(), starts.size()));
  }

  // For authors of operations ---------------------------------------------------------------------

  /// A result of an operation. `needs_gradient`: whether any argument does, or a parameter is used.
  Variable result(Tensor value, bool needs_gradient) const;
  /// Puts on the tape the backward of an operation with one result: it is given the result's
  /// gradient, and is not called where none arrived. Nothing happens for a result that needs none.
  void record(const Variable& result, std::function<void(Context&, Tensor)> backward);
  /// The same of an operation with several results, whose gradients the backward takes itself. Only
  /// where one of them needs a gradient.
  void record(Backward backward);

 private:
  void expects_unused() const;

  Context* context_;
  TapeOptions options_;
  std::vector<Backward> recorded_;
  bool used_ = false;
};

}  // namespace packrnn

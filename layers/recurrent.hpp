// What Lstm, Gru and Rnn have in common: stacked, uni- or bidirectional layers over packed or dense
// input. Semantics, parameter names, order, shapes and initialisation are PyTorch's.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "packrnn/kernels/recurrent.hpp"
#include "packrnn/layers/packed_sequence.hpp"
#include "packrnn/layers/packing.hpp"
#include "packrnn/layers/parameters.hpp"
#include "packrnn/layers/tape.hpp"
#include "packrnn/runtime/context.hpp"

namespace packrnn {

class SafeTensors;

using kernels::WeightStorage;

/// Hidden states, and cell states of an LSTM (undefined for GRU and RNN). With L layers, D
/// directions, S = proj_size or hidden_size: h [L*D, N, S], c [L*D, N, H]; index layer * D +
/// direction; [N, L*D, .] when ForwardOptions::state_batch_first; without N for unbatched input.
/// Always in the caller's order of sequences, and on the device of the context that made them. h is
/// of the layer's dtype; c too, except that it is f32 where that is f16 or bf16.
struct State {
  Tensor h, c;
};

/// Borrowed initial states; an undefined h (with an undefined c) means zeros.
struct StateView {
  TensorView h, c;

  StateView() = default;
  // NOLINTNEXTLINE(google-explicit-constructor): for GRU and RNN an h is a whole state.
  StateView(TensorView h_0, TensorView c_0 = {}) : h(h_0), c(c_0) {}
  StateView(const State& state) : h(state.h), c(state.c) {}  // NOLINT(google-explicit-constructor)
};

struct ForwardOptions {
  StateView state = {};
  /// States, in and out, are [N, L*D, .].
  bool state_batch_first = false;
  /// Dropout between layers is active; each such call takes one draw of context.random().
  bool training = false;
  /// LSTM only: when not null, assigned one tensor per layer with the cell state of every step,
  /// packed [total, D*H], of the dtype of c (also for dense input: packed rows in time-major
  /// order).
  std::vector<Tensor>* cells = nullptr;
};

struct PackedOutput {
  PackedSequence output;  // [total, D*S] of the last layer
  State state;
};

struct DenseOutput {
  Tensor output;  // [T, N, D*S], [N, T, D*S] (batch_first) or [T, D*S] (unbatched)
  State state;
};

/// States on a tape, [L*D, N, .] or [N, L*D, .] as in State; an undefined h (with an undefined c)
/// means zeros.
struct StateVariable {
  Variable h, c;

  /// For the next part of a long sequence, in truncated back-propagation through time.
  StateVariable detach() const {
    return {h.defined() ? h.detach() : h, c.defined() ? c.detach() : c};
  }
};

struct PackedOutputVariable {
  PackedVariable output;  // [total, D*S] of the last layer
  StateVariable state;
};

struct DenseOutputVariable {
  Variable output;  // as DenseOutput
  StateVariable state;
};

/// Copies on the context's device; what is absent stays absent.
State to_device(Context& context, const State& state);
/// Copies on the host, once they are there: each waits as Context::to_host() does.
State to_host(Context& context, const State& state);
PackedOutput to_host(Context& context, const PackedOutput& output);
DenseOutput to_host(Context& context, const DenseOutput& output);

/// The parameters begin in the host's memory; parameters().to(context) moves them, which training
/// on a GPU asks for. A device gets its own form of them at the first call there, and at the first
/// one after a change of them; otherwise forward() neither copies weights nor waits for a GPU.
/// Inputs, states and results are on the context's device. f16 and bf16 compute on a GPU only
/// (Unsupported on the CPU).
///
/// Movable, not copyable; a moved-from layer may only be assigned to or destroyed.
class Recurrent {
 public:
  struct Config {
    kernels::Cell cell = kernels::Cell::lstm;
    std::int64_t input_size = 0, hidden_size = 0, num_layers = 1, proj_size = 0;
    bool bias = true, batch_first = false, bidirectional = false;
    double dropout = 0.0;
    Dtype dtype = Dtype::f32;
    kernels::WeightStorage weight_storage = kernels::WeightStorage::full;
    std::uint64_t seed = 0;
  };

  ~Recurrent();
  Recurrent(Recurrent&&) noexcept;
  Recurrent& operator=(Recurrent&&) noexcept;

  /// Packed in, packed out, over the same layout. Const: any number of threads may call it, each
  /// with its own Context on any device. Throws InvalidArgument (input width, dtype, device, state
  /// shapes) before work.
  PackedOutput forward(Context& context, const PackedSequence& input,
                       const ForwardOptions& options = {}) const;

  /// Dense input of equal lengths: [T, N, I], [N, T, I] when the layer is batch_first, or unbatched
  /// [T, I]. T = 0 is refused (a packed batch may hold empty sequences), N = 0 is not.
  DenseOutput forward(Context& context, const TensorView& input,
                      const ForwardOptions& options = {}) const;

  /// Padded input with one length per sequence: packs, runs, and pads the output with zeros to the
  /// input's T.
  DenseOutput forward_padded(Context& context, const TensorView& padded, const Lengths& lengths,
                             const ForwardOptions& options = {}) const;

  /// The same with lengths on the device: nothing waits, and captured in a graph it serves any
  /// lengths.
  DenseOutput forward_padded(Context& context, const TensorView& padded,
                             const DeviceLengths& lengths,
                             const ForwardOptions& options = {}) const;

  /// On a tape: keeps what the backward needs, by valid tokens, and adds to the gradients of
  /// parameters(), unless they are not trainable(); those that are must be on the context's device.
  /// With TapeOptions::training, dropout between layers is active. The same bits as without a tape.
  /// `state_batch_first`: states, in and out, are [N, L*D, .]. A layer that stores its weights in
  /// 16 bits does not train (Unsupported).
  PackedOutputVariable forward(Tape& tape, const PackedVariable& input,
                               const StateVariable& state = {}, bool state_batch_first = false);
  /// Packed data without a gradient; takes it.
  PackedOutputVariable forward(Tape& tape, PackedSequence input, const StateVariable& state = {},
                               bool state_batch_first = false) {
    return forward(tape, tape.constant(std::move(input)), state, state_batch_first);
  }
  /// Dense input of equal lengths: [T, N, I], or [N, T, I] when the layer is batch_first.
  DenseOutputVariable forward(Tape& tape, const Variable& input, const StateVariable& state = {},
                              bool state_batch_first = false);

  const Config& config() const noexcept { return config_; }
  std::int64_t directions() const noexcept { return config_.bidirectional ? 2 : 1; }
  /// Width S of h.
  std::int64_t state_size() const noexcept {
    return config_.proj_size > 0 ? config_.proj_size : config_.hidden_size;
  }

  /// weight_ih_l0, weight_hh_l0, bias_ih_l0, bias_hh_l0, [weight_hr_l0], the same with _reverse,
  /// then l1 ...
  const Parameters& parameters() const noexcept;
  /// Changing parameters while another thread is in forward() is a data race.
  Parameters& parameters() noexcept;
  StateDict state_dict(std::string_view prefix = "") const;
  /// Strict: see Parameters::load.
  void load(const StateDict& source, const LoadOptions& options = {});
  void load(const SafeTensors& file, std::string_view prefix = "");
  /// Draws all parameters anew from U(-1/sqrt(H), 1/sqrt(H)).
  void reset_parameters(Generator& generator);

  /// One line for every choice of algorithm that a forward of this layer makes on `context` for
  /// `layout`, without dropout between the layers.
  std::string explain(Context& context, const PackedLayout& layout) const;

 protected:
  explicit Recurrent(const Config& config);

 private:
  /// Packed weights, index layer * D + direction.
  using Panels = std::shared_ptr<const std::vector<Tensor>>;
  struct Impl;

  Panels forward_panels(Context& context) const;
  Panels backward_panels(Context& context) const;
  template <class AnyLengths>
  DenseOutput run_padded(Context& context, const TensorView& padded, const AnyLengths& lengths,
                         const ForwardOptions& options) const;
  DenseOutput run(Context& context, const PackedLayout& layout, const TensorView& x,
                  const ForwardOptions& options, bool unbatched) const;

  Config config_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace packrnn

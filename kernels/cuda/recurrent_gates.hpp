// The gates of every step of a forward, computed again from its inputs and outputs for the way
// back. Private.
#pragma once

#include "packrnn/kernels/cuda/recurrent_panels.hpp"
#include "packrnn/runtime/context.hpp"
#include "packrnn/runtime/device_layout.hpp"

namespace packrnn::kernels::cuda {

/// One direction, all steps, in device memory; letters as in BackwardDirectionRun.
struct GatesRun {
  RecurrentShape shape;
  DeviceLayout layout;
  std::int64_t rows = 0;         // total
  bool reverse = false;          // of the forward
  const void* panels = nullptr;  // RecurrentPanels
  const void* x = nullptr;       // T [total, I]
  const void* y = nullptr;       // T, row pitch ldy
  const void* h_0 = nullptr;     // T [batch, S]; null: zeros
  void* before = nullptr;        // T [total, S], assigned; zeros in rows that no sequence has
  void* gates = nullptr;         // A [total, U, 4], assigned; not of an RNN
  void* reset = nullptr;         // T [total, S], assigned: r h of a GRU that resets before, rounded
                                 // as the forward did
  std::int64_t ldy = 0;          // elements
};

/// A pass over all tokens: products take about `scratch_bytes` of workspace at a time. Where the
/// layer's products are chains, the gates have the forward's bits.
void recompute_gates(Context& context, const GatesRun& run, std::int64_t scratch_bytes);

/// Assigns hidden [total, H] of T = o tanh(c), an LSTM's h before its projection; zeros in rows
/// that no sequence has. `gates` as above, `cells` with row pitch H.
void hidden_states(gpu::Stream stream, const GatesRun& run, const void* cells, void* hidden);

}  // namespace packrnn::kernels::cuda

// What every algorithm of the way back through a recurrent layer is given on a GPU: one layer, one
// or two directions, all steps. Private. recurrent_backward.cpp fills it; the algorithms only
// launch, and have one task: from the gradients of h and c at the end of each sequence and of y at
// every step, assign dgates, dh_0 and dc_0.
//
// Before them, everything that is not a recurrence is done for all tokens at once: h before each
// step is collected, and the gates are computed again from x and h by products over all tokens, so
// that a forward has nothing to keep but the cell states. After them, dgates is the operand of the
// products that give dx and the gradients of weights.
#pragma once

#include <cstdint>
#include <span>

#include "packrnn/kernels/cuda/recurrent_panels.hpp"
#include "packrnn/kernels/recurrent_backward.hpp"
#include "packrnn/runtime/device_layout.hpp"

namespace packrnn::kernels::cuda {

/// Offsets in elements of the shape's dtype, each a multiple of 64 bytes; all else is zero. The
/// parts of dgates are gradients of pre-activations: LSTM di df dg do; GRU d(W_hn h + b_hn) dr dz
/// dn, where the first three reach h and the last three x, as do all parts of the other cells; of a
/// GRU that resets before, dr dz dn.
struct RecurrentBackwardPanels {
  static constexpr std::int64_t kPitch = 32, kUnits = 8;

  std::int64_t gates, parts;    // G; parts of dgates: 4, 4, 3 or 1
  std::int64_t units;           // U: H rounded up to kUnits
  std::int64_t pitch_hh;        // G * U rounded up to kPitch
  std::int64_t pitch_ih;        // the same
  std::int64_t w_hh;            // [S, pitch_hh]: W_hh^T; column p * U + u is part p of unit u
  std::int64_t w_ih;            // [I, pitch_ih]: W_ih^T, over the parts that reach x
  std::int64_t w_hr, pitch_hr;  // [H, pitch_hr]: W_hr^T, P rounded up to kPitch; projection only
  std::int64_t forward;         // RecurrentPanels, by which the gates are computed again
  std::int64_t elements;        // of the whole

  static RecurrentBackwardPanels of(const RecurrentShape& shape);
};

/// All pointers are device memory. T is the shape's dtype; A is f64 for f64, else f32. S is the
/// width of h, U and parts as above.
struct BackwardDirectionRun {
  const void* panels = nullptr;  // RecurrentBackwardPanels
  bool reverse = false;          // of the forward; the way back walks the other way
  const void* gates = nullptr;   // A [total, U, 4] after their activations: LSTM i f g o; GRU r z n
                                 // and W_hn h + b_hn; RNN none, y tells
  const void* before = nullptr;  // T [total, S]: h before each step
  const void* y = nullptr;       // T, row pitch ldy: this direction's first column
  const void* dy = nullptr;      // T, row pitch ldy; null: zeros
  const void* cells = nullptr;   // A, row pitch H: c after each step, LSTM
  const void* c_0 = nullptr;     // A [batch, H], caller's order; null: zeros
  const void* dh_n = nullptr;    // A [batch, S]; null: zeros
  const void* dc_n = nullptr;    // A [batch, H]
  void* dgates = nullptr;        // T [total, parts * U], assigned; of units beyond H zeros. Rows
                                 // that no sequence has are zero already
  void* dh = nullptr;            // T [total, P], assigned, with projection: d loss / d h, likewise
  void* dh_0 = nullptr;          // A [batch, S], assigned; null: not wanted
  void* dc_0 = nullptr;          // A [batch, H]
};

struct RecurrentBackwardRun {
  RecurrentShape shape;
  RecurrentBackwardPanels panels{};
  DeviceLayout layout;
  std::span<const std::int64_t> batch_sizes;  // [steps]; empty: the host does not know them
  int directions = 1;
  BackwardDirectionRun direction[2];
  std::int64_t ldy = 0;  // elements
};

}  // namespace packrnn::kernels::cuda

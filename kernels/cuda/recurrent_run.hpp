// What every recurrent algorithm of the GPU is given: one layer, one or two directions, a range of
// steps. Private. The host fills it once (recurrent.cpp); the algorithms only launch.
#pragma once

#include <cstdint>
#include <span>

#include "packrnn/kernels/cuda/recurrent_panels.hpp"
#include "packrnn/kernels/recurrent.hpp"
#include "packrnn/runtime/device_layout.hpp"

namespace packrnn::kernels::cuda {

/// Groups that a persistent kernel deals chunks of rows to, at most.
inline constexpr int kMostGroups = 256;

/// All pointers are device memory. T is the shape's dtype; A is f64 for f64, else f32: sums, cell
/// states and input products are kept in A. S is the width of h, U = RecurrentPanels::units.
struct DirectionRun {
  const void* panels = nullptr;  // RecurrentPanels
  bool reverse = false;
  const void* gx = nullptr;   // A [rows, U * G], unit-major: x W_ih^T + bias; row 0 is the packed
                              // row offsets[first_step]
  const void* h_0 = nullptr;  // T [batch, S], caller's order; null: zeros
  const void* c_0 = nullptr;  // A [batch, H]
  void* h_n = nullptr;        // T [batch, S]
  void* c_n = nullptr;        // A [batch, H], LSTM
  void* y = nullptr;          // T, row pitch ldy: this direction's first column
  void* cells = nullptr;      // A, row pitch ldcells; null: not wanted
  void* c_state = nullptr;    // A [batch, U], sorted order, LSTM: c from one range to the next
};

struct RecurrentRun {
  RecurrentShape shape;
  RecurrentPanels panels{};
  DeviceLayout layout;
  std::span<const std::int64_t> batch_sizes;  // [steps], as the host knows them; empty: it does
                                              // not, and only layout's capacities hold
  int directions = 1;
  DirectionRun direction[2];          // both walk the same range, each from its own end
  std::int64_t ldy = 0, ldcells = 0;  // elements
  /// Steps [first_step, last_step) in time, of which steps that nobody reaches are skipped. A row's
  /// state before its first step of the range is h_0, c_0 if it has no earlier step in processing
  /// order, else its y of the neighbouring step and c_state.
  std::int32_t first_step = 0, last_step = 0;
};

}  // namespace packrnn::kernels::cuda

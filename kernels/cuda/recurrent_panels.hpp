// How the weights of one direction of one layer lie on a GPU, for every algorithm alike; private.
// Rows of gate matrices are unit-major: row u * G + g is gate g of unit u, so that a block that
// owns some units owns whole rows, and the gates of a unit stand side by side in a product.
#pragma once

#include <cstdint>

#include "packrnn/kernels/recurrent.hpp"

namespace packrnn::kernels::cuda {

/// Offsets in elements of the shape's dtype from the start of the panels, each a multiple of 64
/// bytes. Everything outside the given weights is zero.
struct RecurrentPanels {
  /// A row of w_hh is padded to a multiple of this many elements, the longest stretch of K that the
  /// kernels take at once, and units are padded to a multiple of kUnits.
  static constexpr std::int64_t kPitch = 32, kUnits = 8;

  std::int64_t gates, units;    // G; H rounded up to kUnits
  std::int64_t pitch_ih;        // I rounded up so that rows are aligned to 16 bytes
  std::int64_t pitch_hh;        // S rounded up to kPitch
  std::int64_t w_ih;            // [units * G, pitch_ih]
  std::int64_t w_hh;            // [units * G, pitch_hh]
  std::int64_t w_hr, pitch_hr;  // [P, pitch_hr], H rounded up to kPitch; projection only
  std::int64_t bias;      // [units * G] f32 (f64 in f64): b_ih + b_hh, of a GRU's n: b_ih only
  std::int64_t bias_n;    // [units] f32 (f64 in f64): a GRU's b_hn (reset after), else zero
  std::int64_t elements;  // of the whole

  static RecurrentPanels of(const RecurrentShape& shape);
};

/// Assigns the panels from PyTorch's weights; both in the host's memory.
void fill_panels(const RecurrentShape& shape, const RecurrentWeights& weights, void* panels);

}  // namespace packrnn::kernels::cuda

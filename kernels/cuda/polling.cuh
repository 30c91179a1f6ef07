// How a lane gets its part of what another block publishes: it looks once for all of it, early, and
// waits for what was not there yet when it needs it.
#pragma once

#include "packrnn/kernels/cuda/fragments.cuh"
#include "packrnn/kernels/cuda/persistent_run.hpp"

namespace packrnn::kernels::cuda {

/// Where a lane finds its part of the row of one sequence.
struct StateSource {
  const char* from = nullptr;  // of its first chunk; null: there is no such sequence, take zeros
  bool polled = false;
};

/// `chunks` of the kCount exist, the others are zeros.
template <class Product, int kCount>
PACKRNN_DEVICE void look(Fragment<Product> (&state)[kCount], const StateSource& source,
                         int chunks) {
  PACKRNN_UNROLL
  for (int chunk = 0; chunk < kCount; ++chunk) {
    state[chunk] = zero_fragment<Product>();
    if (source.from != nullptr && chunk < chunks)
      state[chunk] = look_at_fragment<Product>(source.from + chunk * kChunk * Product::kBytes);
  }
}

/// Looks again for what look() did not find yet, until all of it is there or waiting is in vain,
/// which it becomes once for all. `step`, `row` and `part` are for the watchdog's report.
template <class Product, int kCount>
PACKRNN_DEVICE void wait_for(Fragment<Product> (&state)[kCount], const StateSource& source,
                             int chunks, const PersistentLaunch& run, bool& in_vain, int step,
                             int row, int part) {
  if (source.polled && !in_vain) {
    Watchdog watchdog(run.fault, run.watchdog_ns);
    for (int misses = 0;; ++misses) {
      bool missing = false;
      PACKRNN_UNROLL
      for (int chunk = 0; chunk < kCount; ++chunk) missing |= incomplete(state[chunk]);
      if (!missing || !watchdog.look_again(misses, step, row, part)) break;
      PACKRNN_UNROLL
      for (int chunk = 0; chunk < kCount; ++chunk)
        if (incomplete(state[chunk]) && chunk < chunks)
          state[chunk] = look_at_fragment<Product>(source.from + chunk * kChunk * Product::kBytes);
    }
    in_vain = watchdog.expired;
  }
  PACKRNN_UNROLL
  for (int chunk = 0; chunk < kCount; ++chunk) change_words<Product, Product::state>(state[chunk]);
  __syncwarp();  // products are by whole warps
}

}  // namespace packrnn::kernels::cuda

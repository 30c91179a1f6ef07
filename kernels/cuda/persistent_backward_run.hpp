// What the persistent kernels of the way back are given. Private.
#pragma once

#include <cstdint>
#include <vector>

#include "packrnn/kernels/cuda/persistent_run.hpp"
#include "packrnn/kernels/cuda/recurrent_backward_run.hpp"

namespace packrnn::kernels::cuda {

/// Chunks of 32 elements of K = G * U that one warp takes, at most: LSTMs of H up to 2048.
inline constexpr int kMostBackwardChunks = 32;

/// hidden and units as in BackwardDirectionRun; the range of steps is all of them.
struct PersistentBackwardRun : PersistentLaunch {
  BackwardDirectionRun direction[2];
  std::int64_t w_hh = 0;   // elements from the beginning of the panels
  std::int32_t terms = 0;  // K: the columns of dgates that reach h, the first G * U
  std::int32_t parts = 0;  // of dgates
  kernels::Cell cell = Cell::lstm;
};

/// An instantiation as the host sees it; for every cell.
struct PersistentBackwardVariant : PersistentNeeds {
  void (*launch)(gpu::Stream stream, const gpu::LaunchShape& shape,
                 const PersistentBackwardRun& run);
};
using PersistentBackwardVariants = std::vector<PersistentBackwardVariant>;

PersistentBackwardVariants persistent_backward_bf16_variants();
PersistentBackwardVariants persistent_backward_f16_variants();
PersistentBackwardVariants persistent_backward_tf32_variants();
PersistentBackwardVariants persistent_backward_tf32x3_variants();

/// Fills the rows of dgates that sequences have, of all directions, with what an empty mailbox
/// holds.
void empty_dgates(gpu::Stream stream, const PersistentBackwardRun& run, std::size_t element_size,
                  int multiprocessors);

}  // namespace packrnn::kernels::cuda

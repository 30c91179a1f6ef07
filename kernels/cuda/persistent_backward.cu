// What has to be in dgates before a persistent kernel of the way back starts: nothing, as a mailbox
// says it. How many rows there are, only the device may know.
#include "packrnn/kernels/cuda/launch.cuh"
#include "packrnn/kernels/cuda/mailbox.cuh"
#include "packrnn/kernels/cuda/persistent_backward_run.hpp"

namespace packrnn::kernels::cuda {
namespace {

constexpr int kThreads = 256;

/// row_vectors: of 16 bytes.
__global__ void __launch_bounds__(kThreads)
    empty_dgates_kernel(const __grid_constant__ PersistentBackwardRun run, int row_vectors) {
  auto* const to = static_cast<U32x4*>(run.direction[blockIdx.y].dgates);
  const std::int64_t count = run.layout.offsets[run.last_step] * row_vectors;
  const std::int64_t threads = gridDim.x * std::int64_t{kThreads};
  for (std::int64_t i = blockIdx.x * std::int64_t{kThreads} + threadIdx.x; i < count; i += threads)
    to[i] = U32x4{kNothing, kNothing, kNothing, kNothing};
}

}  // namespace

void empty_dgates(gpu::Stream stream, const PersistentBackwardRun& run, std::size_t element_size,
                  int multiprocessors) {
  gpu::LaunchShape shape;
  shape.grid = {static_cast<unsigned>(4 * multiprocessors), static_cast<unsigned>(run.directions),
                1};
  shape.block[0] = kThreads;
  const auto row_bytes = static_cast<int>(run.parts * run.units * element_size);
  launch(stream, PACKRNN_KERNEL(empty_dgates_kernel), shape, run, row_bytes / 16);
}

}  // namespace packrnn::kernels::cuda

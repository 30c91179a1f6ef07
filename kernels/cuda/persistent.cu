// What has to be in memory before a persistent kernel on tensor cores starts: an empty mailbox, and
// the states that rows begin with, in sorted order, padded and aligned, so that the kernel itself
// loads every state by the same wide loads. A warp takes a row.
#include <type_traits>

#include "packrnn/kernels/cuda/launch.cuh"
#include "packrnn/kernels/cuda/mailbox.cuh"
#include "packrnn/kernels/cuda/persistent_run.hpp"

namespace packrnn::kernels::cuda {
namespace {

constexpr int kThreads = 256;

/// Word: of an element's size.
template <class Word>
__device__ void empty_mailbox(const PersistentRun& run, const PersistentDirection& direction,
                              std::int64_t warp, std::int64_t warps, int lane) {
  const std::int64_t begin = run.layout.offsets[run.first_step];
  const std::int64_t rows = run.layout.offsets[run.last_step] - begin;
  const auto vectors = static_cast<int>(run.units * sizeof(Word) / sizeof(U32x4));
  for (std::int64_t row = warp; row < rows; row += warps) {
    auto* const to = reinterpret_cast<U32x4*>(static_cast<Word*>(direction.mail) +
                                              (run.mail_is_y ? begin + row : row) * run.mail_pitch);
    for (int v = lane; v < vectors; v += 32) to[v] = U32x4{kNothing, kNothing, kNothing, kNothing};
  }
}

/// Of the row of the sorted batch: what the kernel finds before its first step of the range.
template <class Word>
__device__ void begin_row(const PersistentRun& run, const PersistentDirection& direction, int row,
                          int lane) {
  const std::int32_t length = run.layout.lengths[row];
  const int before = direction.reverse ? run.last_step : run.first_step - 1;
  const bool begins = direction.reverse ? length <= run.last_step : run.first_step == 0;
  const std::int64_t caller = run.layout.sorted_indices[row];
  const Word* h = static_cast<const Word*>(direction.h_0);
  if (!begins)
    h = static_cast<const Word*>(direction.y) + (run.layout.offsets[before] + row) * run.ldy;
  else if (h != nullptr)
    h += caller * run.hidden;
  const std::int64_t to = std::int64_t{row} * run.units;
  for (int unit = lane; unit < run.units; unit += 32) {
    const bool given = unit < run.hidden;
    static_cast<Word*>(direction.start)[to + unit] = given && h != nullptr ? h[unit] : Word{0};
    if (direction.c_state != nullptr && begins)
      direction.c_state[to + unit] =
          given && direction.c_0 != nullptr ? direction.c_0[caller * run.hidden + unit] : 0.0F;
  }
}

template <class Word>
__global__ void __launch_bounds__(kThreads)
    prepare_persistent_kernel(const __grid_constant__ PersistentRun run) {
  const PersistentDirection& direction = run.direction[blockIdx.y];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t warp = blockIdx.x * std::int64_t{kThreads / 32} + threadIdx.x / 32;
  const std::int64_t warps = gridDim.x * std::int64_t{kThreads / 32};
  if (direction.mail != nullptr) empty_mailbox<Word>(run, direction, warp, warps, lane);
  const int rows = ChunkStep::alive(run.layout, run.first_step, 0, run.layout.batch);
  for (std::int64_t row = warp; row < rows; row += warps)
    begin_row<Word>(run, direction, static_cast<int>(row), lane);
}

}  // namespace

void prepare_persistent(gpu::Stream stream, const PersistentRun& run, std::size_t element_size,
                        int multiprocessors) {
  gpu::LaunchShape shape;
  shape.grid = {static_cast<unsigned>(4 * multiprocessors), static_cast<unsigned>(run.directions),
                1};
  shape.block[0] = kThreads;
  if (element_size == 2)
    launch(stream, PACKRNN_KERNEL(prepare_persistent_kernel<std::uint16_t>), shape, run);
  else
    launch(stream, PACKRNN_KERNEL(prepare_persistent_kernel<std::uint32_t>), shape, run);
}

}  // namespace packrnn::kernels::cuda

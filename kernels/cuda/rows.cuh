// How kernels over rows share them out, and where a packed row belongs.
#pragma once

#include <algorithm>
#include <cstdint>

#include "packrnn/kernels/cuda/device.cuh"
#include "packrnn/runtime/device_layout.hpp"
#include "packrnn/runtime/gpu.hpp"

namespace packrnn::kernels::cuda {

inline constexpr int kRowThreads = 256;

/// Blocks of kRowThreads for so many threads with one item each, at most eight blocks per
/// multiprocessor: kernels walk the rest in strides of the grid.
inline gpu::LaunchShape strided_shape(gpu::Stream stream, std::int64_t threads) {
  const std::int64_t blocks = (threads + kRowThreads - 1) / kRowThreads;
  const std::int64_t most = 8 * gpu::properties(gpu::device_of(stream)).multiprocessors;
  gpu::LaunchShape shape;
  shape.grid[0] = static_cast<unsigned>(std::clamp<std::int64_t>(blocks, 1, most));
  shape.block[0] = kRowThreads;
  return shape;
}

__device__ inline std::int64_t first_item() {
  return static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ inline std::int64_t item_stride() {
  return static_cast<std::int64_t>(gridDim.x) * blockDim.x;
}

/// Rows in use, which a layout made from lengths on the device does not tell the host.
__device__ inline std::int64_t rows_of(const DeviceLayout& layout) {
  return layout.offsets[layout.steps_capacity];
}

/// Step of a packed row in use: the last that begins at or before it.
__device__ inline std::int32_t step_of(const DeviceLayout& layout, std::int64_t row) {
  std::int32_t low = 0, high = *layout.steps - 1;
  while (low < high) {
    const std::int32_t middle = low + (high - low + 1) / 2;
    if (layout.offsets[middle] <= row)
      low = middle;
    else
      high = middle - 1;
  }
  return low;
}

}  // namespace packrnn::kernels::cuda

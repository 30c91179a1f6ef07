// Which rows of a packed batch live at a step.
#pragma once

#include "packrnn/kernels/cuda/device.cuh"
#include "packrnn/runtime/device_layout.hpp"

namespace packrnn::kernels::cuda {

/// Rows [row, row + chunk) of the sorted batch at one step, as one direction sees them. Counts are
/// of rows of the chunk.
struct ChunkStep {
  int rows;            // alive
  int before;          // of these, with an earlier step in processing order: the first `before`
  int after;           // of these, with a later one
  long long y_row;     // packed row of the chunk's first row
  long long y_before;  // the same at the earlier step

  __device__ ChunkStep(const DeviceLayout& layout, bool reverse, int step, int row, int chunk) {
    rows = alive(layout, step, row, chunk);
    const int later = alive(layout, step + 1, row, chunk);
    before = reverse ? later : step > 0 ? rows : 0;
    after = reverse ? (step > 0 ? rows : 0) : later;
    y_row = layout.offsets[step] + row;
    y_before = before > 0 ? layout.offsets[reverse ? step + 1 : step - 1] + row : 0;
  }

  __device__ static int alive(const DeviceLayout& layout, int step, int row, int chunk) {
    if (step >= layout.steps_capacity) return 0;
    return max(0, min(layout.batch_sizes[step] - row, chunk));
  }
};

}  // namespace packrnn::kernels::cuda

// Measures what the cost model says about a device and only the device can know. Private.
#pragma once

#include <cstdint>

#include "packrnn/kernels/cuda/cost_model.hpp"
#include "packrnn/runtime/gpu.hpp"

namespace packrnn::kernels::cuda {

/// How much of everything is done; the default is good for a GPU, and takes some 20 ms there.
struct CalibrationEffort {
  std::int64_t copy_bytes = std::int64_t{256} << 20;  // at most a sixteenth of the memory
  int barriers = 400, messages = 400, launches = 400, products = 8192;
  int repeats = 3;  // the best one counts: disturbances only add time

  /// Enough to execute every line; the numbers mean nothing.
  static CalibrationEffort tiny() { return {std::int64_t{64} << 10, 3, 3, 3, 2, 1}; }
};

/// `constants` with copy_bandwidth, grid_barrier, mailbox, launch, kernel_gap and matrix_rate as
/// measured on a stream of its own; what cannot be measured here (without cooperative launches)
/// stays as it is. Waits for the device.
DeviceConstants measure(int device, DeviceConstants constants,
                        const CalibrationEffort& effort = {});

}  // namespace packrnn::kernels::cuda

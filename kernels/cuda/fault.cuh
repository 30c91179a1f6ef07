// How a kernel tells the host what it found wrong (runtime/device_fault.hpp).
#pragma once

#include "packrnn/kernels/cuda/device.cuh"
#include "packrnn/runtime/device_fault.hpp"

namespace packrnn::kernels::cuda {

/// Keeps the first fault that any thread of the context's kernels reports until the host reads it.
__device__ inline void report(DeviceFault* fault, FaultCode code, std::int64_t a = 0,
                              std::int64_t b = 0, std::int64_t c = 0, std::int64_t d = 0) {
  if (atomicCAS(&fault->code, static_cast<std::uint32_t>(FaultCode::none),
                static_cast<std::uint32_t>(code)) != static_cast<std::uint32_t>(FaultCode::none))
    return;
  fault->values[0] = a;
  fault->values[1] = b;
  fault->values[2] = c;
  fault->values[3] = d;
}

}  // namespace packrnn::kernels::cuda

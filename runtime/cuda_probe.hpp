// What device.cpp asks the CUDA backend; private. cuda/ or no_cuda/ answers, as CMake chose.
#pragma once

#include <string>

namespace packrnn {

/// Devices that the driver shows; 0 whenever anything is missing.
int cuda_device_count() noexcept;

/// "CUDA: ..." without the conclusion ("using the CPU"), which device.cpp draws.
std::string cuda_finding();

}  // namespace packrnn

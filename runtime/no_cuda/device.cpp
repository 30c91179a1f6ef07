// Stands in for cuda/device.cpp in a build without CUDA.
#include "packrnn/runtime/cuda_probe.hpp"

namespace packrnn {

int cuda_device_count() noexcept { return 0; }

std::string cuda_finding() { return "CUDA: built without it"; }

}  // namespace packrnn

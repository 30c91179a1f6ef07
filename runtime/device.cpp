#include "packrnn/runtime/device.hpp"

#include <fmt/format.h>

#include "packrnn/runtime/cuda_probe.hpp"

namespace packrnn {

Device Device::best() noexcept { return cpu(); }

int Device::cuda_count() noexcept { return cuda_device_count(); }

std::string Device::cuda_status() {
  const char* unused = cuda_count() > 0 ? ", but this version has no CUDA kernels" : "";
  return fmt::format("{}{}; using the CPU", cuda_finding(), unused);
}

std::string Device::name() const {
  return type == DeviceType::cpu ? "cpu" : fmt::format("cuda:{}", index);
}

}  // namespace packrnn

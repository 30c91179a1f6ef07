// Counts CUDA devices. The runtime is linked statically and opens the driver itself, so this works,
// and says what is missing, on a machine that has no driver.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "packrnn/runtime/cuda_probe.hpp"

namespace packrnn {
namespace {

struct Answer {
  cudaError_t error;
  int count;
};

Answer ask() noexcept {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess)
    cudaGetLastError();  // a later check of somebody else must not find this one
  return {error, error == cudaSuccess ? count : 0};
}

}  // namespace

int cuda_device_count() noexcept { return ask().count; }

std::string cuda_finding() {
  const auto [error, count] = ask();
  if (count > 0) return fmt::format("CUDA: {} device{}", count, count == 1 ? "" : "s");
  if (error == cudaSuccess || error == cudaErrorNoDevice) return "CUDA: no GPU on this machine";
  const char* what = cudaGetErrorString(error);
  if (error != cudaErrorInsufficientDriver) return fmt::format("CUDA: no usable device ({})", what);
  // One error code for "none" and "too old"; the version is 0 when there is none.
  int driver = 0;
  cudaDriverGetVersion(&driver);
  cudaGetLastError();
  if (driver == 0) return "CUDA: no driver on this machine";
  return fmt::format("CUDA: the driver is too old (it serves CUDA {}.{}, this build needs {}.{})",
                     driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000,
                     CUDART_VERSION % 1000 / 10);
}

}  // namespace packrnn

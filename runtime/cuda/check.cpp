#include "packrnn/runtime/cuda/check.hpp"

#include <fmt/format.h>

#include "packrnn/runtime/error.hpp"
#include "packrnn/runtime/gpu.hpp"

namespace packrnn::gpu {
namespace {

/// After these nothing works on the device in this process any more.
bool is_final(cudaError_t error) noexcept {
  switch (error) {
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContained:
    case cudaErrorDevicesUnavailable:
    case cudaErrorContextIsDestroyed:
    case cudaErrorUnknown:
      return true;
    default:
      return false;
  }
}

}  // namespace

void fail(cudaError_t error, const std::string& what) {
  cudaGetLastError();
  const std::string text =
      fmt::format("{}: {} ({})", what, cudaGetErrorString(error), cudaGetErrorName(error));
  switch (error) {
    case cudaErrorMemoryAllocation:
      throw OutOfMemory("out of memory: " + text);
    case cudaErrorInsufficientDriver:
    case cudaErrorCompatNotSupportedOnDevice:
    case cudaErrorSystemDriverMismatch:
      throw Unsupported(fmt::format("{}; {}; install a driver that serves CUDA {}.{}", text,
                                    finding(), CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10));
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidKernelImage:
    case cudaErrorUnsupportedPtxVersion:
      throw Unsupported(
          fmt::format("{}; this build has machine code for {} only: build it with the GPU's own "
                      "architecture in CMAKE_CUDA_ARCHITECTURES",
                      text, PACKRNN_CUDA_ARCHITECTURES));
    default:
      break;
  }
  if (is_final(error))
    throw DeviceError(text +
                      ": the device cannot be used by this process any more; restart it (to find "
                      "the kernel that did it, run with PACKRNN_SYNC=1)");
  throw DeviceError(text);
}

void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) [[unlikely]]
    fail(error, what);
}

}  // namespace packrnn::gpu

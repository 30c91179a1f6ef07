// Results of the CUDA runtime as exceptions; private to this folder.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

namespace packrnn::gpu {

/// Throws unless `error` is success, and clears it, so that nobody else finds it. `what` says what
/// was being done: "cudaEventCreate", "kernel x".
void check(cudaError_t error, const char* what);
[[noreturn]] void fail(cudaError_t error, const std::string& what);

/// For destructors: there is nobody to tell.
inline void forget(cudaError_t error) noexcept {
  if (error != cudaSuccess) cudaGetLastError();
}

}  // namespace packrnn::gpu

// What is behind the handles of gpu.hpp, and the guard that every call here holds; private to this
// folder.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <mutex>
#include <vector>

#include "packrnn/runtime/gpu.hpp"

namespace packrnn::gpu {

struct StreamHandle {
  int device = 0;
  cudaStream_t stream = nullptr;
  bool owned = false;
  std::atomic<bool> capturing{false};
  std::mutex mutex;
  std::vector<void*> released;  // while it captures: freed when that ends
};

struct EventHandle {
  int device;
  cudaEvent_t event;
};

struct GraphHandle {
  int device;
  cudaGraphExec_t graph;
};

/// Makes the device current in this thread, and what was current before when it dies. Not by
/// cudaSetDevice(), which would open the device that was current by default, at a price in memory,
/// only to restore it.
class Current {
 public:
  explicit Current(int device);
  ~Current();
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;
};

/// Calls `function` on the device and ignores what goes wrong: for destructors, where there is
/// nobody to tell.
template <class Function>
void quietly(int device, const Function& function) noexcept {
  try {
    const Current current(device);
    if (function() != cudaSuccess) cudaGetLastError();
  } catch (...) {
    // The device cannot be reached any more, and what was to be given back is gone with it.
  }
}

/// A device that is open already, if there is one: for what needs some device and none in
/// particular.
int any_device() noexcept;

/// The pool that stream-ordered memory of the device comes from.
cudaMemPool_t pool_of(int device);

void count_wait() noexcept;

}  // namespace packrnn::gpu

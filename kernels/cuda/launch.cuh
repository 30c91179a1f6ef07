// How a kernel is started: the same call under nvcc and on the simt device.
//
//   launch(stream, PACKRNN_KERNEL(fill_kernel<float>), {.grid = {blocks, 1, 1}, ...}, data, n);
#pragma once

#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>

#include "packrnn/kernels/cuda/device.cuh"
#include "packrnn/runtime/gpu.hpp"

namespace packrnn::kernels::cuda {

template <class... Parameters>
struct Kernel {
  const char* name;  // a literal
  void (*function)(Parameters...);
};
template <class... Parameters>
Kernel(const char*, void (*)(Parameters...)) -> Kernel<Parameters...>;

/// Of a kernel with all its template arguments.
#define PACKRNN_KERNEL(...) (::packrnn::kernels::cuda::Kernel{#__VA_ARGS__, &__VA_ARGS__})

/// Starts the kernel in stream order; a grid without blocks is no launch. Arguments become exactly
/// the kernel's parameter types, as in a call. Throws DeviceError when it cannot start.
template <class... Parameters, class... Arguments>
void launch(gpu::Stream stream, Kernel<Parameters...> kernel, const gpu::LaunchShape& shape,
            Arguments&&... arguments) {
  static_assert(sizeof...(Parameters) == sizeof...(Arguments), "a kernel takes all its arguments");
  static_assert((!std::is_reference_v<Parameters> && ...), "kernels take values");
  static_assert((std::is_trivially_copyable_v<Parameters> && ...), "arguments are copied as bytes");
  if (shape.grid[0] == 0 || shape.grid[1] == 0 || shape.grid[2] == 0) return;
  std::tuple<Parameters...> values(std::forward<Arguments>(arguments)...);
#if defined(PACKRNN_SIMT)
  simt::enqueue(stream, kernel.name, shape,
                [function = kernel.function, values] { std::apply(function, values); });
#else
  std::apply(
      [&](Parameters&... each) {
        void* pointers[] = {const_cast<void*>(static_cast<const void*>(&each))..., nullptr};
        gpu::launch(stream, kernel.name, reinterpret_cast<const void*>(kernel.function), shape,
                    pointers);
      },
      values);
#endif
}

/// Blocks of this kernel that one multiprocessor holds at once. On the simt device by threads and
/// shared memory alone.
template <class... Parameters>
int resident_blocks(int device, [[maybe_unused]] Kernel<Parameters...> kernel, int block,
                    std::size_t shared) {
#if defined(PACKRNN_SIMT)
  return simt::resident_blocks(gpu::properties(device), block, shared);
#else
  return gpu::resident_blocks(device, reinterpret_cast<const void*>(kernel.function), block,
                              shared);
#endif
}

/// Clusters of `cluster` such blocks that the device holds at once; 0: none fits.
template <class... Parameters>
int resident_clusters(int device, [[maybe_unused]] Kernel<Parameters...> kernel, int block,
                      std::size_t shared, int cluster) {
#if defined(PACKRNN_SIMT)
  return simt::resident_clusters(gpu::properties(device), block, shared, cluster);
#else
  return gpu::resident_clusters(device, reinterpret_cast<const void*>(kernel.function), block,
                                shared, cluster);
#endif
}

}  // namespace packrnn::kernels::cuda

// Memory of devices and pinned memory of the host, copies and fills.
#include <fmt/format.h>

#include "packrnn/runtime/cuda/check.hpp"
#include "packrnn/runtime/cuda/handles.hpp"
#include "packrnn/runtime/error.hpp"

namespace packrnn::gpu {
namespace {

[[noreturn]] void out_of_memory(int device, std::size_t bytes) {
  std::size_t free = 0, total = 0;
  forget(cudaMemGetInfo(&free, &total));
  throw OutOfMemory(fmt::format(
      "out of memory: cannot allocate {} bytes ({:.1f} MiB) on cuda:{}: {} of {} bytes are free",
      bytes, static_cast<double>(bytes) / 0x1p20, device, free, total));
}

bool is_pageable(const void* host) {
  cudaPointerAttributes attributes{};
  check(cudaPointerGetAttributes(&attributes, host), "cudaPointerGetAttributes");
  return attributes.type == cudaMemoryTypeUnregistered;
}

}  // namespace

void* allocate(int device, std::size_t bytes, Stream stream) {
  const Current current(device);
  void* data = nullptr;
  cudaError_t error = cudaSuccess;
  if (stream != nullptr) {
    error = cudaMallocAsync(&data, bytes, stream->stream);
  } else {
    error = cudaMalloc(&data, bytes);
    if (error == cudaErrorMemoryAllocation) {  // what the pool keeps without need
      forget(error);
      check(cudaMemPoolTrimTo(pool_of(device), 0), "cudaMemPoolTrimTo");
      error = cudaMalloc(&data, bytes);
    }
  }
  if (error == cudaErrorMemoryAllocation) {
    forget(error);
    out_of_memory(device, bytes);
  }
  check(error, "allocating memory");
  return data;
}

void release(int device, void* data, Stream stream) noexcept {
  if (data == nullptr) return;
  if (stream == nullptr) {
    count_wait();
    return quietly(device, [&] { return cudaFree(data); });
  }
  const std::lock_guard lock(stream->mutex);
  if (stream->capturing)
    stream->released.push_back(data);  // or each launch of the graph would free it
  else
    quietly(device, [&] { return cudaFreeAsync(data, stream->stream); });
}

void* allocate_pinned(std::size_t bytes) {
  const Current current(any_device());
  void* data = nullptr;
  const cudaError_t error = cudaHostAlloc(&data, bytes, cudaHostAllocPortable);
  if (error == cudaErrorMemoryAllocation) {
    forget(error);
    throw OutOfMemory(fmt::format(
        "out of memory: cannot allocate {} bytes ({:.1f} MiB) of pinned memory on the host", bytes,
        static_cast<double>(bytes) / 0x1p20));
  }
  check(error, "cudaHostAlloc");
  return data;
}

void release_pinned(void* data) noexcept {
  if (data != nullptr) quietly(any_device(), [&] { return cudaFreeHost(data); });
}

void copy(void* target, const void* source, std::size_t bytes, Copy kind, Stream stream) {
  const Current current(stream->device);
  cudaMemcpyKind direction = cudaMemcpyDeviceToDevice;
  if (kind == Copy::to_device) direction = cudaMemcpyHostToDevice;
  if (kind == Copy::to_host) direction = cudaMemcpyDeviceToHost;
  if (kind != Copy::on_device && is_pageable(kind == Copy::to_host ? target : source)) count_wait();
  check(cudaMemcpyAsync(target, source, bytes, direction, stream->stream), "cudaMemcpyAsync");
}

void copy_peer(void* target, int target_device, const void* source, int source_device,
               std::size_t bytes, Stream stream) {
  const Current current(stream->device);
  check(cudaMemcpyPeerAsync(target, target_device, source, source_device, bytes, stream->stream),
        "cudaMemcpyPeerAsync");
}

void fill(void* target, int byte, std::size_t bytes, Stream stream) {
  const Current current(stream->device);
  check(cudaMemsetAsync(target, byte, bytes, stream->stream), "cudaMemsetAsync");
}

}  // namespace packrnn::gpu

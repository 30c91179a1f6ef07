// Starts kernels, and asks how many blocks of one are resident.
#include <fmt/format.h>
#include <nvtx3/nvToolsExt.h>

#include <cstdlib>
#include <map>
#include <mutex>
#include <string_view>
#include <utility>

#include "packrnn/runtime/cuda/check.hpp"
#include "packrnn/runtime/cuda/handles.hpp"

namespace packrnn::gpu {
namespace {

/// What every kernel may use without being asked.
constexpr std::size_t kPlainShared = std::size_t{48} << 10;
constexpr unsigned kPortableCluster = 8;

bool synchronous() noexcept {
  static const bool asked = [] {
    const char* value = std::getenv("PACKRNN_SYNC");
    return value != nullptr && std::string_view(value) == "1";
  }();
  return asked;
}

/// Opts the kernel in to what the launch needs; once, because it is a property of the kernel.
void opt_in(int device, const void* kernel, std::size_t shared, unsigned cluster) {
  if (shared <= kPlainShared && cluster <= kPortableCluster) return;
  struct Allowed {
    std::size_t shared = kPlainShared;
    bool cluster = false;
  };
  static std::mutex mutex;
  static std::map<std::pair<const void*, int>, Allowed> kernels;
  const std::lock_guard lock(mutex);
  Allowed& allowed = kernels[{kernel, device}];
  if (shared > allowed.shared) {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shared)),
          "asking for shared memory");
    allowed.shared = shared;
  }
  if (cluster > kPortableCluster && !allowed.cluster) {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1),
          "asking for large clusters");
    allowed.cluster = true;
  }
}

struct Range {
  explicit Range(const char* name) noexcept { nvtxRangePushA(name); }
  ~Range() { nvtxRangePop(); }
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;
};

dim3 extent(const std::array<unsigned, 3>& e) noexcept { return {e[0], e[1], e[2]}; }

std::string text_of(const char* name, const LaunchShape& s) {
  return fmt::format("kernel {} (grid {}x{}x{}, block {}x{}x{}, {} bytes shared{}, clusters of {})",
                     name, s.grid[0], s.grid[1], s.grid[2], s.block[0], s.block[1], s.block[2],
                     s.shared, s.cooperative ? ", cooperative" : "", s.cluster);
}

}  // namespace

void launch(Stream stream, const char* name, const void* kernel, const LaunchShape& shape,
            void** arguments) {
  const Current current(stream->device);
  const Range range(name);
  std::array<cudaLaunchAttribute, 2> attributes{};
  cudaLaunchConfig_t config{};
  config.gridDim = extent(shape.grid);
  config.blockDim = extent(shape.block);
  config.dynamicSmemBytes = shape.shared;
  config.stream = stream->stream;
  config.attrs = attributes.data();
  if (shape.cooperative) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeCooperative;
    attribute.val.cooperative = 1;
  }
  if (shape.cluster > 1) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = shape.cluster;
    attribute.val.clusterDim.y = 1;
    attribute.val.clusterDim.z = 1;
  }
  opt_in(stream->device, kernel, shape.shared, shape.cluster);
  cudaError_t error = cudaLaunchKernelExC(&config, kernel, arguments);
  if (error == cudaSuccess && synchronous() && !stream->capturing) {
    count_wait();
    error = cudaStreamSynchronize(stream->stream);
  }
  if (error != cudaSuccess) [[unlikely]]
    fail(error, text_of(name, shape));
}

int resident_blocks(int device, const void* kernel, int block, std::size_t shared) {
  const Current current(device);
  if (shared > properties(device).shared_per_block) return 0;
  opt_in(device, kernel, shared, 1);
  int blocks = 0;
  check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, block, shared),
        "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
  return blocks;
}

int resident_clusters(int device, const void* kernel, int block, std::size_t shared, int cluster) {
  const Current current(device);
  if (!properties(device).clusters || shared > properties(device).shared_per_block) return 0;
  opt_in(device, kernel, shared, static_cast<unsigned>(cluster));
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = static_cast<unsigned>(cluster);
  attribute.val.clusterDim.y = 1;
  attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(cluster));
  config.blockDim = dim3(static_cast<unsigned>(block));
  config.dynamicSmemBytes = shared;
  config.attrs = &attribute;
  config.numAttrs = 1;
  int clusters = 0;
  const cudaError_t error = cudaOccupancyMaxActiveClusters(&clusters, kernel, &config);
  if (error == cudaErrorInvalidClusterSize || error == cudaErrorInvalidConfiguration) {
    forget(error);
    return 0;
  }
  check(error, "cudaOccupancyMaxActiveClusters");
  return clusters;
}

}  // namespace packrnn::gpu

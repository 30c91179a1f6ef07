// launch.cuh on a simt device: arguments become the kernel's, an empty grid is no launch, and what
// goes wrong names the kernel.
#include "packrnn/kernels/cuda/launch.cuh"

#include <vector>

#include "packrnn/runtime/error.hpp"
#include "tests/catch.hpp"
#include "tests/simt/device.hpp"

namespace packrnn::tests {
namespace {

using namespace kernels::cuda;

template <class T>
__global__ void write_kernel(T* data, std::int64_t n, double value) {
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < n) data[i] = static_cast<T>(value);
}
__global__ void never_kernel(const float* data) {
  if (data == nullptr) __syncthreads();
  named_barrier_sync(16, 32);
}

struct OnDevice {
  gpu::Stream stream = gpu::create_stream(0);
  float* data = static_cast<float*>(gpu::allocate(0, 256));
  ~OnDevice() {
    gpu::release(0, data);
    gpu::destroy(stream);
  }
  std::vector<float> read() const {
    std::vector<float> result(64);
    gpu::copy(result.data(), data, 256, gpu::Copy::to_host, stream);
    gpu::wait(stream);
    return result;
  }
};

TEST_CASE("arguments are converted as in a call") {
  const OnDevice device;
  gpu::fill(device.data, 0, 256, device.stream);
  gpu::LaunchShape shape;
  shape.grid = {2, 1, 1};
  shape.block = {32, 1, 1};
  launch(device.stream, PACKRNN_KERNEL(write_kernel<float>), shape, device.data, 40, 2.5F);
  const std::vector<float> result = device.read();
  for (std::size_t i = 0; i < 64; ++i) CHECK(result[i] == (i < 40 ? 2.5F : 0.0F));
}

TEST_CASE("a grid without blocks is no launch") {
  const OnDevice device;
  for (std::size_t axis = 0; axis < 3; ++axis) {
    gpu::LaunchShape shape;
    shape.grid[axis] = 0;
    CHECK_NOTHROW(launch(device.stream, PACKRNN_KERNEL(never_kernel), shape, nullptr));
  }
  CHECK_NOTHROW(gpu::wait(device.stream));
}

TEST_CASE("errors name the kernel as it was launched") {
  const OnDevice device;
  launch(device.stream, PACKRNN_KERNEL(never_kernel), {}, device.data);
  CHECK_THROWS_MATCHES(gpu::wait(device.stream), DeviceError,
                       Catch::Predicate<DeviceError>([](const DeviceError& error) {
                         const std::string what = error.what();
                         return what.find("'never_kernel'") != std::string::npos &&
                                what.find("launch_test.cpp:") != std::string::npos;
                       }));
  gpu::LaunchShape shape;
  shape.block = {2000, 1, 1};
  CHECK_THROWS_AS(launch(device.stream, PACKRNN_KERNEL(never_kernel), shape, nullptr), DeviceError);
  CHECK(std::string(PACKRNN_KERNEL(write_kernel<float>).name) == "write_kernel<float>");
}

TEST_CASE("occupancy of a kernel is that of its launch") {
  const gpu::Properties& p = gpu::properties(0);
  CHECK(resident_blocks(0, PACKRNN_KERNEL(write_kernel<float>), 512, 0) ==
        p.threads_per_multiprocessor / 512);
  CHECK(resident_blocks(0, PACKRNN_KERNEL(write_kernel<float>), 32, p.shared_per_block) == 1);
  CHECK(resident_clusters(0, PACKRNN_KERNEL(write_kernel<float>), 32, p.shared_per_block, 4) ==
        (p.clusters ? p.multiprocessors / 4 : 0));
}

}  // namespace
}  // namespace packrnn::tests

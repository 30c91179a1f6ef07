// The micro-benchmarks behind the cost model's constants. Each runs twice, with one and with two
// shares of work, and the difference counts, so that what a launch costs drops out.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <type_traits>

#include "packrnn/kernels/cuda/calibrate.hpp"
#include "packrnn/kernels/cuda/launch.cuh"
#include "packrnn/kernels/cuda/mailbox.cuh"

namespace packrnn::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kChains = 4;  // independent products per warp: more than their latency needs

__global__ void __launch_bounds__(kThreads)
    copy_kernel(const U32x4* source, U32x4* target, std::int64_t vectors, int rounds) {
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (int round = 0; round < rounds; ++round)
    for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
         i < vectors; i += stride)
      target[i] = source[i];
}

__global__ void __launch_bounds__(kThreads) barrier_kernel(std::uint32_t* counter, int barriers) {
  for (int i = 1; i <= barriers; ++i) grid_barrier(counter, static_cast<std::uint32_t>(i));
}

/// What a step of the persistent kernel is without its work: each block publishes a word, all
/// blocks wait for all words. words [messages, blocks], all kNothing before.
__global__ void __launch_bounds__(kThreads) mailbox_kernel(std::uint32_t* words, int messages) {
  const auto blocks = static_cast<int>(gridDim.x);
  for (int m = 0; m < messages; ++m) {
    std::uint32_t* const row = words + static_cast<std::int64_t>(m) * blocks;
    if (threadIdx.x == 0) st_relaxed(row + blockIdx.x, static_cast<std::uint32_t>(m));
    for (int i = static_cast<int>(threadIdx.x); i < blocks; i += kThreads)
      for (int spins = 0; ld_relaxed(row + i) == kNothing; ++spins) backoff(spins);
    __syncthreads();  // the block has all words before it publishes the next
  }
}

__global__ void empty_kernel() {}

__global__ void __launch_bounds__(kThreads) product_kernel(float* sink, int products) {
  float sum[kChains][4] = {};
  const std::uint32_t one = 0x3F803F80U;  // two bf16
  const U32x4 a{one, one, one, one};
  for (int i = 0; i < products; ++i) {
    PACKRNN_UNROLL
    for (int c = 0; c < kChains; ++c) mma_bf16_16816(sum[c], a, one, one);
  }
  float total = 0.0F;
  for (int c = 0; c < kChains; ++c) total += sum[c][0] + sum[c][1] + sum[c][2] + sum[c][3];
  if (threadIdx.x == 0) sink[blockIdx.x] = total;  // or the products would be for nothing
}

/// Owners of what gpu.hpp makes.
struct StreamEnd {
  void operator()(gpu::Stream stream) const noexcept { gpu::destroy(stream); }
};
struct EventEnd {
  void operator()(gpu::Event event) const noexcept { gpu::destroy(event); }
};
struct GraphEnd {
  void operator()(gpu::Graph graph) const noexcept { gpu::destroy(graph); }
};
template <class Handle, class End>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, End>;

class Memory {
 public:
  Memory(int device, std::size_t bytes, gpu::Stream stream)
      : device_(device), stream_(stream), data_(gpu::allocate(device, bytes, stream)) {}
  ~Memory() { gpu::release(device_, data_, stream_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  template <class T>
  T* as() const noexcept {
    return static_cast<T*>(data_);
  }

 private:
  int device_;
  gpu::Stream stream_;
  void* data_;
};

class Bench {
 public:
  Bench(int device, int repeats)
      : stream_(gpu::create_stream(device)),
        begin_(gpu::create_event(device, true)),
        end_(gpu::create_event(device, true)),
        repeats_(repeats) {}

  gpu::Stream stream() const noexcept { return stream_.get(); }

  /// Seconds that `work` takes on the stream; `prepare` comes before it, untimed.
  template <class Prepare, class Work>
  double seconds(const Prepare& prepare, const Work& work) const {
    double best = std::numeric_limits<double>::infinity();
    for (int i = 0; i <= repeats_; ++i) {  // the first one warms up
      prepare();
      gpu::record(begin_.get(), stream());
      work();
      gpu::record(end_.get(), stream());
      gpu::wait(end_.get());
      const double s = 1e-3 * static_cast<double>(gpu::elapsed_ms(begin_.get(), end_.get()));
      if (i > 0) best = std::min(best, s);
    }
    return best;
  }

  /// Seconds of one item: work(n) does n of them, and something else besides.
  template <class Prepare, class Work>
  double per_item(int items, const Prepare& prepare, const Work& work) const {
    const double once = seconds(prepare, [&] { work(items); });
    const double twice = seconds(prepare, [&] { work(2 * items); });
    return (twice - once) / items;
  }

 private:
  Owned<gpu::Stream, StreamEnd> stream_;
  Owned<gpu::Event, EventEnd> begin_, end_;
  int repeats_;
};

/// A measurement that came out as nothing is none.
void take(double measured, double& constant) {
  if (std::isfinite(measured) && measured > 0) constant = measured;
}

}  // namespace

DeviceConstants measure(int device, DeviceConstants d, const CalibrationEffort& effort) {
  const gpu::Properties& properties = gpu::properties(device);
  const Bench bench(device, effort.repeats);
  const gpu::Stream stream = bench.stream();
  const auto blocks = static_cast<unsigned>(std::max(1, properties.multiprocessors));
  const auto nothing = [] {};
  {
    const auto limit = static_cast<std::int64_t>(properties.memory / 16);
    const std::int64_t vectors = std::max<std::int64_t>(
        1, std::min(effort.copy_bytes, limit > 0 ? limit : effort.copy_bytes) / 16);
    const Memory from(device, static_cast<std::size_t>(vectors) * 16, stream),
        to(device, static_cast<std::size_t>(vectors) * 16, stream);
    gpu::fill(from.as<void>(), 0, static_cast<std::size_t>(vectors) * 16, stream);
    const gpu::LaunchShape shape{.grid = {8 * blocks, 1, 1}, .block = {kThreads, 1, 1}};
    const double copy = bench.per_item(1, nothing, [&](int rounds) {
      launch(stream, PACKRNN_KERNEL(copy_kernel), shape, from.as<U32x4>(), to.as<U32x4>(), vectors,
             rounds);
    });
    take(static_cast<double>(2 * 16 * vectors) / copy, d.copy_bandwidth);
  }
  if (properties.cooperative) {
    const gpu::LaunchShape shape{
        .grid = {blocks, 1, 1}, .block = {kThreads, 1, 1}, .cooperative = true};
    const Memory counter(device, 4, stream);
    take(bench.per_item(
             effort.barriers, [&] { gpu::fill(counter.as<void>(), 0, 4, stream); },
             [&](int barriers) {
               launch(stream, PACKRNN_KERNEL(barrier_kernel), shape, counter.as<std::uint32_t>(),
                      barriers);
             }),
         d.grid_barrier);
    const std::size_t bytes =
        std::size_t{4} * blocks * 2 * static_cast<std::size_t>(effort.messages);
    const Memory words(device, bytes, stream);
    take(bench.per_item(
             effort.messages, [&] { gpu::fill(words.as<void>(), 0xFF, bytes, stream); },
             [&](int messages) {
               launch(stream, PACKRNN_KERNEL(mailbox_kernel), shape, words.as<std::uint32_t>(),
                      messages);
             }),
         d.mailbox);
  }
  {
    const auto launches = [&](int count) {
      for (int i = 0; i < count; ++i)
        launch(stream, PACKRNN_KERNEL(empty_kernel), {.grid = {blocks, 1, 1}});
    };
    take(bench.per_item(effort.launches, nothing, launches), d.launch);
    // In a graph the host has nothing to do with it: what is left is the gap between kernels.
    const auto graph_of = [&](int count) {
      gpu::begin_capture(stream);
      launches(count);
      return Owned<gpu::Graph, GraphEnd>(gpu::end_capture(stream));
    };
    const auto once = graph_of(effort.launches), twice = graph_of(2 * effort.launches);
    take(bench.per_item(effort.launches, nothing,
                        [&](int count) {
                          gpu::launch((count > effort.launches ? twice : once).get(), stream);
                        }),
         d.kernel_gap);
  }
  {
    const Memory sink(device, std::size_t{4} * blocks, stream);
    const gpu::LaunchShape shape{.grid = {blocks, 1, 1}, .block = {kThreads, 1, 1}};
    const double product = bench.per_item(effort.products, nothing, [&](int products) {
      launch(stream, PACKRNN_KERNEL(product_kernel), shape, sink.as<float>(), products);
    });
    // 16 x 8 x 16 multiply-adds per product; all multiprocessors do the same at the same time.
    constexpr double kEach = 16.0 * 8.0 * 16.0 * kChains * (kThreads / 32);
    take(kEach / (product * d.clock), d.matrix_rate);
  }
  d.calibrated = true;
  return d;
}

}  // namespace packrnn::kernels::cuda

// For the tests of the simt engine itself: kernels are lambdas, run at once, without a device.
#pragma once

#include <atomic>
#include <functional>
#include <string>

#include "packrnn/kernels/cuda/device.cuh"

namespace packrnn::tests {

/// Everything that a launch can ask for.
inline gpu::Properties large_device() {
  gpu::Properties p;
  p.name = "large";
  p.major = 9;
  p.multiprocessors = 132;
  p.threads_per_multiprocessor = 2048;
  p.shared_per_block = 227 * 1024;
  p.cooperative = p.clusters = true;
  return p;
}

inline gpu::LaunchShape blocks_of(unsigned blocks, unsigned threads) {
  gpu::LaunchShape shape;
  shape.grid = {blocks, 1, 1};
  shape.block = {threads, 1, 1};
  return shape;
}
inline gpu::LaunchShape cooperative(unsigned blocks, unsigned threads) {
  gpu::LaunchShape shape = blocks_of(blocks, threads);
  shape.cooperative = true;
  return shape;
}
inline gpu::LaunchShape clusters_of(unsigned size, unsigned blocks, unsigned threads) {
  gpu::LaunchShape shape = blocks_of(blocks, threads);
  shape.cluster = size;
  return shape;
}
inline gpu::LaunchShape with_shared(gpu::LaunchShape shape, std::size_t bytes) {
  shape.shared = bytes;
  return shape;
}

using Body = std::function<void()>;
void run(const gpu::LaunchShape& shape, const Body& body, const char* name = "test_kernel");

/// What the engine reports; empty: nothing.
std::string report_of(const gpu::LaunchShape& shape, const Body& body,
                      const char* name = "test_kernel");

/// What the threads of a kernel count on the side, without ordering anything for a race detector.
class Count {
 public:
  Count& operator+=(int n) {
    value_.fetch_add(n, std::memory_order_relaxed);
    return *this;
  }
  Count& operator++() { return *this += 1; }
  operator int() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<int> value_{0};
};

/// Sets options of this thread and takes them back.
class WithOptions {
 public:
  WithOptions() : before_(simt::options()) {}
  ~WithOptions() { simt::options() = before_; }
  WithOptions(const WithOptions&) = delete;
  WithOptions& operator=(const WithOptions&) = delete;

 private:
  simt::Options before_;
};

/// Calls body() under every order and many seeds: two of each four preempt.
template <class Function>
void under_all_schedules(std::uint64_t seeds, Function body) {
  const WithOptions restore;
  simt::Options& o = simt::options();
  for (const simt::Order order : {simt::Order::forward, simt::Order::reverse}) {
    o.order = order;
    body();
  }
  o.order = simt::Order::by_seed;
  for (o.seed = 1; o.seed <= seeds; ++o.seed) body();
}

/// How many of the first seeds it takes until good() is false; 0: more than there are.
template <class Good>
std::uint64_t seeds_until_bad(std::uint64_t seeds, Good good) {
  const WithOptions restore;
  simt::Options& o = simt::options();
  o.order = simt::Order::by_seed;
  for (o.seed = 1; o.seed <= seeds; ++o.seed)
    if (!good()) return o.seed;
  return 0;
}

/// Output of this executable running one hidden test case in a process of its own, "\nexit N"
/// added.
std::string output_of_case(const std::string& tag, const std::string& environment = {});

}  // namespace packrnn::tests

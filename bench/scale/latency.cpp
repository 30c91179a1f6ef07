#include "bench/scale/latency.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <packrnn/layers/lstm.hpp>
#include <packrnn/runtime/thread_pool.hpp>
#include <thread>
#include <vector>

#include "bench/stopwatch.hpp"

namespace packrnn::bench {
namespace {

/// Threads that read memory until it is destroyed.
class Load {
 public:
  explicit Load(int threads) {
    for (int t = 0; t < threads; ++t)
      threads_.emplace_back([this] {
        const std::vector<std::uint64_t> memory(std::size_t{8} << 20, 1);
        while (!stop_.load(std::memory_order_relaxed))
          sink_ += std::accumulate(memory.begin(), memory.end(), std::uint64_t{0});
      });
  }
  ~Load() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
  }
  Load(const Load&) = delete;
  Load& operator=(const Load&) = delete;

 private:
  std::atomic<bool> stop_ = false;
  std::atomic<std::uint64_t> sink_ = 0;
  std::vector<std::thread> threads_;
};

/// Streams of one layer, a step at a time.
class Stream {
 public:
  Stream(std::int64_t batch, std::int64_t width)
      : layer_({.input_size = width, .hidden_size = width}),
        x_(Tensor::zeros({1, batch, width}, Dtype::f32)) {}

  void step() {
    DenseOutput output = layer_.forward(context_, x_.view(), {.state = state_});
    state_ = std::move(output.state);
  }

 private:
  Context context_{Device::cpu(), {.threads = 1}};
  Lstm layer_;
  Tensor x_;
  State state_;
};

constexpr const char* kRow = "{:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>9}\n";

}  // namespace

Latency measure_latency(std::int64_t batch, std::int64_t steps, bool loaded) {
  constexpr std::int64_t kWidth = 256, kWarm = 100;
  const Load load(loaded ? available_threads() : 0);
  Stream stream(batch, kWidth);
  for (std::int64_t i = 0; i < kWarm; ++i) stream.step();
  std::vector<double> seconds;
  seconds.reserve(static_cast<std::size_t>(steps));
  for (std::int64_t i = 0; i < steps; ++i) {
    const Clock::time_point start = Clock::now();
    stream.step();
    seconds.push_back(seconds_since(start));
  }
  std::ranges::sort(seconds);
  const auto at = [&](double part) {
    return seconds[static_cast<std::size_t>(part * static_cast<double>(seconds.size() - 1))];
  };
  return {batch, steps, loaded, at(0.5), at(0.99), at(0.999), seconds.back()};
}

std::string latency_head() {
  return fmt::format(kRow, "streams", "machine", "p50", "p99", "p99.9", "longest", "k steps/s");
}

std::string latency_row(const Latency& l) {
  const auto us = [](double seconds) { return fmt::format("{:.1f}", 1e6 * seconds); };
  return fmt::format(kRow, l.batch, l.loaded ? "loaded" : "quiet", us(l.p50), us(l.p99), us(l.p999),
                     us(l.max), fmt::format("{:.1f}", static_cast<double>(l.batch) / l.p50 / 1e3));
}

double call_overhead(std::int64_t calls) {
  Stream stream(1, 64);
  for (std::int64_t i = 0; i < calls / 10; ++i) stream.step();
  const Clock::time_point start = Clock::now();
  for (std::int64_t i = 0; i < calls; ++i) stream.step();
  return seconds_since(start) / static_cast<double>(calls);
}

}  // namespace packrnn::bench

#include "bench/race/limits.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/race/limits.cpp"
#include <hwy/foreach_target.h>
// After foreach_target:
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace packrnn::bench::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

int Lanes() { return static_cast<int>(hn::Lanes(hn::ScalableTag<float>())); }

/// Twelve multiply-adds per turn, enough to hide their latency. What comes out has no meaning, but
/// depends on all of them.
HWY_NOINLINE float MultiplyAdd(std::int64_t turns, float factor) {
  const hn::ScalableTag<float> d;
  const auto x = hn::Set(d, factor), y = hn::Set(d, 0.001F);
  // All different, or the compiler makes one chain of twelve.
  auto a = hn::Iota(d, 1), b = hn::Iota(d, 2), c = hn::Iota(d, 3), e = hn::Iota(d, 4);
  auto f = hn::Iota(d, 5), g = hn::Iota(d, 6), h = hn::Iota(d, 7), i = hn::Iota(d, 8);
  auto j = hn::Iota(d, 9), k = hn::Iota(d, 10), l = hn::Iota(d, 11), m = hn::Iota(d, 12);
  for (std::int64_t turn = 0; turn < turns; ++turn) {
    a = hn::MulAdd(a, x, y), b = hn::MulAdd(b, x, y), c = hn::MulAdd(c, x, y);
    e = hn::MulAdd(e, x, y), f = hn::MulAdd(f, x, y), g = hn::MulAdd(g, x, y);
    h = hn::MulAdd(h, x, y), i = hn::MulAdd(i, x, y), j = hn::MulAdd(j, x, y);
    k = hn::MulAdd(k, x, y), l = hn::MulAdd(l, x, y), m = hn::MulAdd(m, x, y);
  }
  const auto sum = hn::Add(
      hn::Add(hn::Add(a, b), hn::Add(c, e)),
      hn::Add(hn::Add(hn::Add(f, g), hn::Add(h, i)), hn::Add(hn::Add(j, k), hn::Add(l, m))));
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

/// Sum of an array, by four loads at a time.
HWY_NOINLINE float Read(const float* data, std::int64_t count) {
  const hn::ScalableTag<float> d;
  const std::int64_t N = static_cast<std::int64_t>(hn::Lanes(d));
  auto a = hn::Zero(d), b = a, c = a, e = a;
  for (std::int64_t n = 0; n + 4 * N <= count; n += 4 * N) {
    a = hn::Add(a, hn::Load(d, data + n));
    b = hn::Add(b, hn::Load(d, data + n + N));
    c = hn::Add(c, hn::Load(d, data + n + 2 * N));
    e = hn::Add(e, hn::Load(d, data + n + 3 * N));
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(a, b), hn::Add(c, e))));
}

}  // namespace packrnn::bench::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <algorithm>
#include <atomic>
#include <ctime>
#include <functional>
#include <limits>

namespace packrnn::bench {
namespace {

HWY_EXPORT(Lanes);
HWY_EXPORT(MultiplyAdd);
HWY_EXPORT(Read);

std::atomic<float> sink;  // so that nothing is optimised away

/// Seconds of processor time of the calling thread: what others do on the machine is no limit of
/// it, and engines on one thread are timed the same way.
double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// Least seconds of a task on all threads of the pool: those of the slowest thread.
double seconds_of(ThreadPool& pool, const std::function<void(int)>& task) {
  std::vector<double> each(static_cast<std::size_t>(pool.size()));
  double least = std::numeric_limits<double>::infinity();
  for (int repetition = 0; repetition < 15; ++repetition) {
    pool.run([&](int worker) {
      const double start = thread_seconds();
      task(worker);
      each[static_cast<std::size_t>(worker)] = thread_seconds() - start;
    });
    least = std::min(least, *std::max_element(each.begin(), each.end()));
  }
  return least;
}

/// Reads `count` elements, a multiple of the piece, as often as it takes to have read `total`, up
/// and down in turns: what was read last is still near. No order is faster.
float read_up_and_down(const float* data, std::int64_t count, std::int64_t total) {
  constexpr std::int64_t kPiece = 8 << 10;
  const std::int64_t pieces = count / kPiece;
  float sum = 0;
  bool down = false;
  for (std::int64_t done = 0; done < total; done += count, down = !down)
    for (std::int64_t i = 0; i < pieces; ++i)
      sum += HWY_DYNAMIC_DISPATCH(Read)(data + (down ? pieces - 1 - i : i) * kPiece, kPiece);
  return sum;
}

/// Clocks of cells for one vector of units.
double cell_clocks(const std::string& cell) { return cell == "lstm" ? 45 : 30; }

double gates_of(const std::string& cell) { return cell == "lstm" ? 4 : 3; }

}  // namespace

double MachineLimits::bandwidth(double bytes) const {
  double rate = bandwidths.front().rate;
  for (const Bandwidth& b : bandwidths)
    if (static_cast<double>(b.bytes) <= bytes) rate = b.rate;
  // More bytes do not come faster: where they seemed to, the measurement of fewer was disturbed.
  for (const Bandwidth& b : bandwidths)
    if (static_cast<double>(b.bytes) > bytes) rate = std::max(rate, b.rate);
  return rate;
}

MachineLimits measure_limits(ThreadPool& pool) {
  const int threads = pool.size();
  MachineLimits limits;
  limits.threads = threads;
  limits.lanes = HWY_DYNAMIC_DISPATCH(Lanes)();

  constexpr std::int64_t kTurns = 2'000'000;
  const double multiply =
      seconds_of(pool, [](int) { sink = HWY_DYNAMIC_DISPATCH(MultiplyAdd)(kTurns, 0.999F); });
  limits.flops = 2.0 * 12 * static_cast<double>(kTurns * limits.lanes * threads) / multiply;

  // One addition after the other: a clock each.
  constexpr std::int64_t kAdditions = 20'000'000;
  limits.clock = static_cast<double>(kAdditions) / seconds_of(pool, [](int) {
                   std::int64_t sum = 0;
                   for (std::int64_t n = 0; n < kAdditions; ++n) {
                     ++sum;
                     asm volatile("" : "+r"(sum));  // NOLINT(hicpp-no-assembler)
                   }
                 });

  constexpr std::int64_t kLeast = 256 << 10, kMost = 32 << 20, kRead = 64 << 20;
  std::vector<Tensor> memory;
  for (int t = 0; t < threads; ++t)
    memory.push_back(Tensor::zeros({kMost / std::int64_t(sizeof(float))}, Dtype::f32));
  for (std::int64_t bytes = kLeast; bytes <= kMost; bytes *= 2) {
    const std::int64_t count = bytes / std::int64_t(sizeof(float));
    const double read = seconds_of(pool, [&](int worker) {
      const float* const data = memory[static_cast<std::size_t>(worker)].view().data<float>();
      sink = read_up_and_down(data, count, kRead / std::int64_t(sizeof(float)));
    });
    limits.bandwidths.push_back({bytes, static_cast<double>(kRead * threads) / read});
  }
  return limits;
}

double flops_of(const RaceWorkload& w, const std::string& cell, bool training) {
  double per_token = 0;
  for (std::int64_t layer = 0; layer < w.layers; ++layer) {
    const std::int64_t input = layer == 0 ? w.input : w.directions() * w.hidden;
    per_token += 2.0 * gates_of(cell) * static_cast<double>(w.hidden * (input + w.hidden));
  }
  return (training ? 3 : 1) * per_token * static_cast<double>(w.directions() * w.tokens());
}

double least_seconds(const MachineLimits& limits, const RaceWorkload& w, const std::string& cell,
                     bool training) {
  const double gates = gates_of(cell);
  const double weights = gates * static_cast<double>(w.hidden * w.hidden);
  const double reading = 4.0 * weights / limits.bandwidth(4.0 * weights / limits.threads);
  double seconds = flops_of(w, cell, training) / limits.flops;
  const std::int64_t ways = training ? 2 : 1;  // through the steps
  // Steps of few rows wait for weights instead.
  for (std::int64_t t = 0; t < w.steps(); ++t) {
    const auto rows = std::count_if(w.lengths.begin(), w.lengths.end(),
                                    [&](std::int64_t length) { return length > t; });
    const double product = 2.0 * weights * static_cast<double>(rows) / limits.flops;
    seconds +=
        std::max(0.0, reading - product) * static_cast<double>(ways * w.layers * w.directions());
  }
  const double vectors = static_cast<double>(w.layers * w.directions() * w.tokens() * w.hidden) /
                         static_cast<double>(limits.lanes);
  return seconds + vectors * cell_clocks(cell) / (limits.clock * limits.threads);
}

}  // namespace packrnn::bench
#endif

#include "bench/device/timing.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <exception>
#include <packrnn/runtime/gpu.hpp>

namespace packrnn::bench {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Two events on a stream, or two looks at the clock.
class Stopwatch {
 public:
  explicit Stopwatch(Context& context) : context_(context) {
    if (!context.stream()) return;
    const int device = gpu::device_of(context.stream());
    begin_ = gpu::create_event(device, true);
    end_ = gpu::create_event(device, true);
  }
  ~Stopwatch() {
    if (begin_) gpu::destroy(begin_);
    if (end_) gpu::destroy(end_);
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  void start() {
    if (begin_) gpu::record(begin_, context_.stream());
    start_ = Clock::now();
  }
  void stop() {
    if (end_) gpu::record(end_, context_.stream());
    host_seconds_ = seconds_since(start_);
  }
  /// After the context has waited.
  double seconds() const {
    return begin_ ? static_cast<double>(gpu::elapsed_ms(begin_, end_)) * 1e-3 : host_seconds_;
  }

 private:
  Context& context_;
  gpu::Event begin_ = nullptr, end_ = nullptr;
  Clock::time_point start_;
  double host_seconds_ = 0.0;
};

void run_cold_and_warm(const Candidate& candidate, CacheFlush& flush, Series& series) {
  Context& context = *candidate.context;
  Stopwatch cold(context), warm(context);
  flush.run(context);
  cold.start();
  candidate.run();
  cold.stop();
  warm.start();
  candidate.run();
  warm.stop();
  context.synchronize();
  series.cold.seconds.push_back(cold.seconds());
  series.warm.seconds.push_back(warm.seconds());
}

}  // namespace

CacheFlush::CacheFlush(Context& context) {
  constexpr std::int64_t kHostBytes = 1 << 16;  // a token: on the CPU nothing is flushed
  std::int64_t bytes = kHostBytes;
  // Long enough, too, for the host to get ahead of the device.
  constexpr std::int64_t kTimesCache = 4;
  if (context.stream())
    bytes = std::max(
        bytes, kTimesCache *
                   static_cast<std::int64_t>(gpu::properties(gpu::device_of(context.stream())).l2));
  memory_ = context.empty({bytes / 4}, Dtype::i32);
  context.synchronize();  // other contexts may use it from here on
}

void CacheFlush::run(Context& context) {
  if (context.stream())
    gpu::fill(memory_.span().raw(), 0, memory_.view().bytes(), context.stream());
}

std::vector<Series> measure_in_turn(const std::vector<Candidate>& candidates, CacheFlush& flush,
                                    const Limits& limits, const KeepGoing& keep_going) {
  std::vector<Series> series(candidates.size());
  const Clock::time_point start = Clock::now();
  for (int repetition = 0; repetition < limits.max_repetitions; ++repetition) {
    const double used = seconds_since(start) / limits.seconds;
    if (!keep_going(used) || (used >= 1.0 && repetition >= limits.min_repetitions)) break;
    for (std::size_t k = 0; k < candidates.size(); ++k) {
      const std::size_t i = (k + static_cast<std::size_t>(repetition)) % candidates.size();
      if (!series[i].failure.empty()) continue;
      try {
        run_cold_and_warm(candidates[i], flush, series[i]);
      } catch (const std::exception& error) {
        series[i].failure = error.what();
      }
    }
  }
  return series;
}

}  // namespace packrnn::bench

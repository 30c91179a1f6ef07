#include "bench/measure.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "bench/stopwatch.hpp"

namespace packrnn::bench {
namespace {

/// Adds the time that making the result takes; the result lives on.
template <class Make>
auto timed(double& seconds, Make&& make) {
  const Clock::time_point start = Clock::now();
  auto result = make();
  seconds += seconds_since(start);
  return result;
}

struct Pass {
  double packed = 0.0, padded = 0.0, packing = 0.0, bucketed = 0.0;
};

Pass run_once(Context& context, const Recurrent& layer, const Workload& workload, int repetition) {
  Pass pass;
  const auto run_packed = [&](const Batch& batch) {
    const PackedOutput result =
        timed(pass.packed, [&] { return layer.forward(context, batch.packed); });
    const Lengths lengths(batch.packed.lengths());
    timed(pass.packing, [&] { return pack_padded_sequence(context, batch.padded, lengths); });
    timed(pass.packing, [&] { return pad_packed_sequence(context, result.output); });
  };
  const auto run_padded = [&](const Batch& batch) {
    timed(pass.padded, [&] { return layer.forward(context, batch.padded); });
  };
  bool packed_first = repetition % 2 == 0;
  for (const Batch& batch : workload.batches) {
    if (packed_first) run_packed(batch);
    run_padded(batch);
    if (!packed_first) run_packed(batch);
    packed_first = !packed_first;
  }
  for (const Tensor& batch : workload.bucketed)
    timed(pass.bucketed, [&] { return layer.forward(context, batch); });
  return pass;
}

template <class Ratio>
double median_ratio(std::size_t count, Ratio&& ratio) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < count; ++i) ratios.push_back(ratio(i));
  return median(std::move(ratios));
}

}  // namespace

double median(std::vector<double> values) {
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2.0;
}

double Samples::min() const { return *std::min_element(seconds.begin(), seconds.end()); }
double Samples::max() const { return *std::max_element(seconds.begin(), seconds.end()); }

double Timings::speed_up() const {
  return median_ratio(packed.seconds.size(),
                      [&](std::size_t i) { return padded.seconds[i] / packed.seconds[i]; });
}

double Timings::speed_up_with_packing() const {
  return median_ratio(packed.seconds.size(), [&](std::size_t i) {
    return padded.seconds[i] / (packed.seconds[i] + packing.seconds[i]);
  });
}

double Timings::speed_up_over_bucketed() const {
  return median_ratio(bucketed.seconds.size(),
                      [&](std::size_t i) { return bucketed.seconds[i] / packed.seconds[i]; });
}

Timings measure(Context& context, const Recurrent& layer, const Workload& workload,
                const Limits& limits, const KeepGoing& keep_going) {
  Timings timings;
  const Clock::time_point start = Clock::now();
  for (int repetition = 0; repetition < limits.max_repetitions; ++repetition) {
    const double used = seconds_since(start) / limits.seconds;
    if (!keep_going(used) || (used >= 1.0 && repetition >= limits.min_repetitions)) break;
    const Pass pass = run_once(context, layer, workload, repetition);
    timings.packed.seconds.push_back(pass.packed);
    timings.padded.seconds.push_back(pass.padded);
    timings.packing.seconds.push_back(pass.packing);
    if (!workload.bucketed.empty()) timings.bucketed.seconds.push_back(pass.bucketed);
  }
  return timings;
}

}  // namespace packrnn::bench

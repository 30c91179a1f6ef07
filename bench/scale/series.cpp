#include "bench/scale/series.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <packrnn/layers/lstm.hpp>
#include <packrnn/layers/packing.hpp>
#include <utility>

#include "bench/bound_caller.hpp"
#include "bench/measure.hpp"
#include "bench/stopwatch.hpp"

namespace packrnn::bench {
namespace {

using LengthList = std::vector<std::int64_t>;

LengthList equal(std::int64_t count, std::int64_t length) {
  return LengthList(static_cast<std::size_t>(count), length);
}

/// From `longest` down to a tenth of it.
LengthList ramp(std::int64_t count, std::int64_t longest) {
  LengthList lengths;
  for (std::int64_t n = 0; n < count; ++n)
    lengths.push_back(longest - n * longest * 9 / (10 * std::max<std::int64_t>(1, count - 1)));
  return lengths;
}

/// 100 u^power for u evenly in (0, 1]: the larger the power, the more padding.
LengthList tail(std::int64_t count, double power) {
  LengthList lengths;
  for (std::int64_t n = 0; n < count; ++n) {
    const double u = 1.0 - static_cast<double>(n) / static_cast<double>(count);
    lengths.push_back(std::max<std::int64_t>(1, std::llround(100.0 * std::pow(u, power))));
  }
  return lengths;
}

double bound_of(const LengthList& lengths) {
  const auto total = static_cast<double>(std::accumulate(lengths.begin(), lengths.end(), 0LL));
  return static_cast<double>(*std::ranges::max_element(lengths)) *
         static_cast<double>(lengths.size()) / total;
}

template <class Call>
double timed(Call&& call) {
  const Clock::time_point start = Clock::now();
  call();
  return seconds_since(start);
}

std::string megabytes(std::int64_t bytes) {
  const double value = static_cast<double>(bytes) / (1 << 20);
  return fmt::format("{:.{}f}", value, value < 10 ? 2 : value < 100 ? 1 : 0);
}

std::string significant(double value) {
  return fmt::format("{:.{}f}", value, value < 10 ? 2 : value < 100 ? 1 : 0);
}

constexpr const char* kRow = "{:>10} {:>9} {:>11} {:>10} {:>9} {:>9} {:>9} {:>9} {:>7}\n";

}  // namespace

std::vector<ScaleSeries> all_series(int cpus, bool quick) {
  ScaleSeries sequences{
      "sequences", "LSTM, I = H = 256, lengths from 100 down to 10", "sequences", {}};
  ScaleSeries steps{"steps", "LSTM, I = H = 64, 8 sequences of equal length", "steps", {}};
  ScaleSeries units{"units", "LSTM, I = H, 32 sequences from 20 steps down to 2", "H", {}};
  ScaleSeries layers{
      "layers", "LSTM, I = H = 256, 32 sequences from 100 steps down to 10", "layers", {}};
  ScaleSeries threads{
      "threads", "LSTM, I = H = 512, 64 sequences from 100 steps down to 10", "threads", {}};
  ScaleSeries padding{"padding", "LSTM, I = H = 256, 32 sequences, the longest 100", "padding", {}};
  for (std::int64_t n = 1; n <= (quick ? 8 : 1024); n *= 2)
    sequences.points.push_back({.value = static_cast<double>(n), .lengths = ramp(n, 100)});
  for (std::int64_t t = 1; t <= (quick ? 100 : 100'000); t *= 10)
    steps.points.push_back(
        {.value = static_cast<double>(t), .input = 64, .hidden = 64, .lengths = equal(8, t)});
  for (std::int64_t h = 16; h <= (quick ? 64 : 4096); h *= 2)
    units.points.push_back(
        {.value = static_cast<double>(h), .input = h, .hidden = h, .lengths = ramp(32, 20)});
  for (std::int64_t l = 1; l <= (quick ? 2 : 8); l *= 2)
    layers.points.push_back(
        {.value = static_cast<double>(l), .layers = l, .lengths = ramp(32, quick ? 10 : 100)});
  for (int t = 1; t <= cpus; t = t < cpus ? std::min(2 * t, cpus) : t + 1)
    threads.points.push_back({.value = static_cast<double>(t),
                              .input = 512,
                              .hidden = 512,
                              .lengths = ramp(64, quick ? 5 : 100),
                              .threads = t});
  for (const double power : {0.0, 0.25, 0.67, 1.5, 4.0, 9.0}) {
    LengthList lengths = tail(32, power);
    const double part = 1.0 - 1.0 / bound_of(lengths);
    padding.points.push_back({.value = part, .lengths = std::move(lengths), .padded = true});
  }
  return {sequences, steps, units, layers, threads, padding};
}

Measured measure_point(const ScalePoint& point, int threads, double seconds) {
  Context context(Device::cpu(),
                  {.threads = point.threads > 0 ? point.threads : threads, .pin_threads = true});
  const BoundCaller bound;
  const Lstm layer(
      {.input_size = point.input, .hidden_size = point.hidden, .num_layers = point.layers});
  const PackedLayoutPtr layout = PackedLayout::make(Lengths(point.lengths));
  Tensor x = Tensor::empty({layout->total(), point.input}, Dtype::f32);
  Generator generator(1);
  fill_uniform(generator, x, -1.0, 1.0);
  const PackedSequence packed(std::move(x), layout);
  const Tensor padded = point.padded ? pad_packed_sequence(context, packed) : Tensor();

  Measured m{.value = point.value, .tokens = layout->total(), .bound = bound_of(point.lengths)};
  std::vector<double> times, ratios;
  const Clock::time_point start = Clock::now();
  for (int repetition = -1; repetition < 3 || seconds_since(start) < seconds; ++repetition) {
    const double one = timed([&] { (void)layer.forward(context, packed); });
    const double other =
        point.padded ? timed([&] { (void)layer.forward(context, padded.view()); }) : 0.0;
    if (repetition < 0) continue;  // packs the weights, takes scratch memory
    times.push_back(one);
    ratios.push_back(other / one);
  }
  m.seconds = median(times);
  if (point.padded) m.padded_over_packed = median(ratios);
  const kernels::RecurrentShape shape{.input = point.input, .hidden = point.hidden};
  const kernels::RecurrentShape upper{.input = point.hidden, .hidden = point.hidden};
  const std::int64_t packed_weights =
      kernels::recurrent_panel_elements(Device::cpu(), shape) +
      (point.layers - 1) * kernels::recurrent_panel_elements(Device::cpu(), upper);
  std::int64_t weights = 0;
  for (const NamedTensor& parameter : layer.state_dict()) weights += parameter.tensor.elements();
  constexpr std::int64_t kFloat = sizeof(float);
  m.weight_bytes = (weights + packed_weights) * kFloat;
  m.data_bytes = layout->total() * (point.input + point.hidden) * kFloat;
  m.scratch_bytes = static_cast<std::int64_t>(context.workspace().capacity());
  return m;
}

std::string series_head(const ScaleSeries& series) {
  return fmt::format(kRow, series.axis, "tokens", "ms", "k tok/s", "weights", "data", "scratch",
                     "speed-up", "bound") +
         fmt::format(kRow, "", "", "", "", "MiB", "MiB", "MiB", "", "");
}

std::string series_row(const Measured& m) {
  const bool padded = m.padded_over_packed > 0;
  return fmt::format(kRow, fmt::format("{:.4g}", m.value), m.tokens, significant(1e3 * m.seconds),
                     significant(m.rate() / 1e3), megabytes(m.weight_bytes),
                     megabytes(m.data_bytes), megabytes(m.scratch_bytes),
                     padded ? fmt::format("{:.2f}", m.padded_over_packed) : "-",
                     padded ? fmt::format("{:.2f}", m.bound) : "-");
}

}  // namespace packrnn::bench

#include "packrnn/kernels/cuda/cost_model.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <queue>

namespace packrnn::kernels::cuda {
namespace {

constexpr double kMicro = 1e-6;
constexpr std::int64_t kTileRows = 8;  // rows that the tensor cores take at once, used or not

double as_double(std::int64_t value) { return static_cast<double>(value); }
std::int64_t round_up(std::int64_t value, std::int64_t to) { return (value + to - 1) / to * to; }

/// Of the 16-bit rate. tf32 is half of it by the data sheets; tf32x3 makes three such products.
double matrix_share(Arithmetic arithmetic) {
  switch (arithmetic) {
    case Arithmetic::tf32:
      return 0.5;
    case Arithmetic::tf32x3:
      return 0.5 / 3.0;
    default:
      return 1.0;
  }
}

double element_bytes(const RecurrentShape& shape) {
  return as_double(std::int64_t(size_of(shape.dtype)));
}

/// Multiply-adds of one row and step, the input product aside.
double products_per_row(const RecurrentShape& shape) {
  const double recurrent = gates(shape.cell) * as_double(shape.hidden) * as_double(shape.state());
  return recurrent + as_double(shape.projection) * as_double(shape.hidden);
}

double weight_bytes(const RecurrentShape& shape) {
  return products_per_row(shape) * element_bytes(shape);
}

/// Seconds of all steps of sorted sequences `begin` .. `end`, given those of a step with n rows.
template <class Step>
double sum_over_steps(const std::vector<std::int64_t>& lengths, std::size_t begin, std::size_t end,
                      const Step& step) {
  double seconds = 0;
  std::int64_t done = 0;
  for (std::size_t n = end; n > begin; --n) {  // n - begin rows live until the n-th one ends
    const std::int64_t length = lengths[n - 1];
    if (length > done) seconds += as_double(length - done) * step(std::int64_t(n - begin));
    done = std::max(done, length);
  }
  return seconds;
}

/// What is known per class of device; see docs/gpu-model.md for where each number comes from.
struct DeviceClass {
  int version;                // 10 * major + minor, the first device of the class
  double matrix_rate;         // see DeviceConstants
  double library_rate;        // the same of a library product
  double f32_rate, f64_rate;  // see DeviceConstants
  double l2_bytes;            // per clock and multiprocessor
  double cluster_bytes;       // per clock, into a multiprocessor
  double memory_bandwidth;    // bytes per second of a whole device
  double exchange_clocks, cluster_clocks, pointwise_clocks, barrier_clocks;
};
constexpr DeviceClass kClasses[] = {
    {80, 900, 920, 64, 32, 16, 0, 1.35e12, 900, 0, 540, 2600},
    {86, 230, 240, 128, 2, 14, 0, 0.60e12, 900, 0, 540, 2600},
    {90, 1270, 1500, 128, 64, 22, 13, 2.60e12, 900, 350, 540, 2600},
    {100, 1270, 3000, 128, 64, 22, 13, 6.00e12, 1000, 350, 540, 2800},
    {120, 450, 480, 128, 2, 14, 13, 1.30e12, 900, 350, 540, 2600},
};

const DeviceClass& class_of(const gpu::Properties& properties) {
  const int version = properties.major * 10 + properties.minor;
  const DeviceClass* found = &kClasses[0];
  for (const DeviceClass& c : kClasses)
    if (c.version <= version) found = &c;
  return *found;
}

}  // namespace

Arithmetic arithmetic_of(Dtype dtype, F32Math math) {
  switch (dtype) {
    case Dtype::f64:
      return Arithmetic::f64;
    case Dtype::f32:
      return math == F32Math::exact  ? Arithmetic::exact
             : math == F32Math::tf32 ? Arithmetic::tf32
                                     : Arithmetic::tf32x3;
    default:
      return Arithmetic::bits16;
  }
}

const char* name_of(Arithmetic arithmetic) noexcept {
  switch (arithmetic) {
    case Arithmetic::f64:
      return "f64";
    case Arithmetic::exact:
      return "f32 exact";
    case Arithmetic::tf32x3:
      return "f32 tf32x3";
    case Arithmetic::tf32:
      return "f32 tf32";
    case Arithmetic::bits16:
      break;
  }
  return "16-bit";
}

DeviceConstants estimated_constants(const gpu::Properties& properties) {
  const DeviceClass& c = class_of(properties);
  DeviceConstants d;
  d.multiprocessors = std::max(1, properties.multiprocessors);
  // Under load, a little below what the driver reports; a driver may also report nothing.
  d.clock = properties.clock_khz > 0 ? 0.96e3 * properties.clock_khz : 1.5e9;
  const double all = d.multiprocessors * d.clock;
  // An H200 differs from an H100 by its memory alone.
  const bool large_memory = c.version == 90 && properties.memory > (std::size_t{110} << 30);
  d.copy_bandwidth = large_memory ? 4.3e12 : c.memory_bandwidth;
  d.l2_bandwidth = c.l2_bytes * all;
  d.cluster_bandwidth = c.cluster_bytes * d.clock;
  d.matrix_rate = c.matrix_rate;
  d.product_flops = 2.0 * c.library_rate * all;
  d.f32_rate = c.f32_rate;
  d.f64_rate = c.f64_rate;
  d.mailbox = c.exchange_clocks / d.clock;
  d.cluster_exchange = c.cluster_clocks / d.clock;
  d.pointwise = c.pointwise_clocks / d.clock;
  d.grid_barrier = c.barrier_clocks / d.clock;
  d.launch = 2.2 * kMicro;
  d.kernel_gap = 1.2 * kMicro;
  d.startup = 10.0 * kMicro;
  return d;
}

LengthProfile LengthProfile::of(const PackedLayout& layout) {
  LengthProfile profile;
  profile.lengths.assign(layout.lengths().begin(), layout.lengths().end());
  std::sort(profile.lengths.begin(), profile.lengths.end(), std::greater<>());
  while (!profile.lengths.empty() && profile.lengths.back() <= 0) profile.lengths.pop_back();
  return profile;
}

LengthProfile LengthProfile::equal(std::int64_t batch, std::int64_t steps) {
  if (steps <= 0) return {};
  return {
      std::vector<std::int64_t>(static_cast<std::size_t>(std::max<std::int64_t>(0, batch)), steps)};
}

std::int64_t LengthProfile::total() const noexcept {
  return std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
}

double step_seconds(const DeviceConstants& d, const RecurrentShape& shape, Arithmetic arithmetic,
                    const Mapping& m, std::int64_t rows, int active, Way way) {
  if (rows <= 0) return 0;
  const double per_unit = gates(shape.cell);
  const bool back = way == Way::back;
  const double width = as_double(shape.state()) * (back ? per_unit : 1);  // terms of a sum
  const double outputs = as_double(std::int64_t{m.units}) * (back ? 1 : per_unit);  // of a block
  double product, latency = d.pointwise;
  const std::int64_t tiled = tensor_cores(arithmetic) ? round_up(rows, kTileRows) : rows;
  if (tensor_cores(arithmetic)) {
    product =
        as_double(tiled) * outputs * width / (d.matrix_rate * d.clock * matrix_share(arithmetic));
  } else {
    // Each output is one chain, and an order of additions is a latency: no rate helps below it.
    const double rate = arithmetic == Arithmetic::f64 ? d.f64_rate : d.f32_rate;
    product = std::max(width * d.fma_latency / d.clock,
                       as_double(rows) * outputs * width / (0.6 * rate * d.clock));
  }
  // The chain of a warp's products, which `pointwise` counts for the forward.
  if (back)
    product = std::max(product,
                       width / (8 * 32) * d.product_latency / (d.clock * matrix_share(arithmetic)));
  // Weights in shared memory are read again for every tile of rows, 128 bytes per clock.
  const double passes = std::max(1.0, as_double(tiled) / as_double(kTileRows));
  const double weights = as_double(m.shared_weights) * passes / (128.0 * d.clock);
  const double state = as_double(rows) * width * element_bytes(shape);
  const double exchange = m.cluster ? d.cluster_exchange + state / d.cluster_bandwidth
                                    : d.mailbox + active * m.blocks * state / d.l2_bandwidth;
  // More than one cell per thread.
  latency += std::max(0.0, as_double(tiled) * m.units / 256.0 - 1.0) * 0.18 * d.pointwise;
  return exchange + latency + std::max(product, weights);
}

double persistent_seconds(const DeviceConstants& d, const RecurrentShape& shape,
                          Arithmetic arithmetic, const Mapping& m, const LengthProfile& profile,
                          int directions, Way way) {
  const std::size_t count = profile.lengths.size();
  if (count == 0) return d.startup;
  const auto rows = static_cast<std::size_t>(std::max(1, m.rows));
  const std::size_t chunks = (count + rows - 1) / rows;
  const auto used = static_cast<int>(std::min<std::size_t>(std::size_t(m.groups), chunks));
  const int together = m.directions_in_turn ? 1 : directions;
  std::priority_queue<double, std::vector<double>, std::greater<>> load;  // least loaded on top
  for (int g = 0; g < used; ++g) load.push(0.0);
  double longest = 0;
  for (std::size_t c = 0; c < chunks; ++c) {  // sorted: already longest first
    const double seconds = sum_over_steps(
        profile.lengths, c * rows, std::min(count, (c + 1) * rows), [&](std::int64_t n) {
          return step_seconds(d, shape, arithmetic, m, n, used * together, way);
        });
    const double sum = load.top() + seconds;
    load.pop();
    load.push(sum);
    longest = std::max(longest, sum);
  }
  return d.startup + longest * (m.directions_in_turn ? directions : 1);
}

double wavefront_seconds(const DeviceConstants& d, double layer, int layers, int ranges) {
  // Of a range: the input product, the states before it, the recurrence; to and from its neighbours
  // two events.
  const double range = (layer - d.startup) / ranges + d.startup + 2 * d.kernel_gap;
  const double launches = 5 * d.launch * layers;
  return (ranges + layers - 1) * std::max(range, launches);
}

double stepwise_seconds(const DeviceConstants& d, const RecurrentShape& shape,
                        Arithmetic arithmetic, const LengthProfile& profile, int directions) {
  const double from_l2 = weight_bytes(shape) / d.l2_bandwidth;
  const double per_cell = (2.0 * gates(shape.cell) + 4.0) * 4.0;  // bytes that a cell moves
  const double all = d.multiprocessors * d.clock;
  const bool twice = shape.cell == Cell::gru_reset_before || shape.projection > 0;
  const auto fused = [&](std::int64_t n) {
    const double rate = (arithmetic == Arithmetic::f64 ? d.f64_rate : d.f32_rate) * 0.5 * all;
    const double chain = as_double(shape.state()) * d.fma_latency / d.clock;
    const double body = std::max({1.6 * kMicro, from_l2 + 1.0 * kMicro, chain + 1.0 * kMicro,
                                  as_double(n) * products_per_row(shape) / rate + 1.0 * kMicro});
    const double kernels = twice ? 2 : 1;
    return std::max(kernels * d.launch, kernels * d.kernel_gap + body + (kernels - 1) * chain);
  };
  const auto two_kernels = [&](std::int64_t n) {
    const double flops = 2.0 * as_double(n) * products_per_row(shape) /
                         (0.5 * d.product_flops * matrix_share(arithmetic));
    const double products = arithmetic == Arithmetic::tf32x3 ? 3 : 1;  // launches of one product
    const double body = std::max({3.7 * kMicro, from_l2 + 1.5 * kMicro, flops + 1.0 * kMicro}) +
                        (products - 1) * 2.0 * kMicro;
    const double cell = std::max(
        1.9 * kMicro, as_double(n) * as_double(shape.hidden) * per_cell / d.copy_bandwidth);
    const double kernels = (products + 1) * (twice ? 2 : 1);
    return std::max(kernels * d.launch,
                    kernels * d.kernel_gap + (body + cell) * (twice ? 2.0 : 1.0));
  };
  const double one = tensor_cores(arithmetic)
                         ? sum_over_steps(profile.lengths, 0, profile.lengths.size(), two_kernels)
                         : sum_over_steps(profile.lengths, 0, profile.lengths.size(), fused);
  return d.launch + one * directions;
}

}  // namespace packrnn::kernels::cuda

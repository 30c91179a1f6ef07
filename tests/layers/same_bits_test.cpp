// Contracts C1, C2 and C4: what a sequence gets depends, to the last bit, on that sequence alone.
// Not on its companions, its place, padding, threads, earlier calls, or how a stream is cut; and,
// in f32 (exact) and f64, not on the device either.

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <string>

#include "packrnn/kernels/cpu_target.hpp"
#include "tests/layers/layer_fixture.hpp"

using namespace packrnn;
using namespace packrnn::tests;

namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// Row counts that meet every remainder of a register tile, a full group of rows and one more, and
// enough rows to be split over threads.
Counts wide() {
  return lengths_with_batch_sizes(
      on_cpu_or_device<Counts>({170, 130, 64, 49, 48, 7, 6, 5, 4, 3, 2, 1}, {19, 9, 8, 2, 1}));
}

// Two sequences that outlive the rest by many chunks of steps.
Counts tall() {
  Counts sizes{on_cpu_or_device(40, 20), 12, 11};
  sizes.resize(on_cpu_or_device(120U, 30U), 2);
  sizes.resize(on_cpu_or_device(140U, 40U), 1);
  return lengths_with_batch_sizes(sizes);
}

Counts shuffled(std::int64_t count, unsigned seed) {
  Counts order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  std::mt19937 generator(seed);
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[generator() % i]);
  return order;
}

// Each sequence by itself, on one thread: what every other run is compared with.
std::vector<SequenceBits> alone(const Recurrent& layer, const ref::Config& config,
                                const Batch& batch) {
  Context context(Device::best(), {.threads = 1});
  std::vector<SequenceBits> list;
  for (const ref::Sequence& sequence : batch)
    list.push_back(bits_of(run(context, layer, config, Batch{sequence}), 0));
  return list;
}

void check_in_company(const ref::Config& config, Dtype dtype, const Counts& lengths) {
  CAPTURE(describe(config), packrnn::name_of(dtype), lengths.size());
  const Recurrent layer = make_layer(config, random_parameters(config), {.dtype = dtype});
  const auto N = static_cast<std::int64_t>(lengths.size());
  const Batch batch = pick(random_batch(config, lengths), shuffled(N, 3));
  const std::vector<SequenceBits> expected = alone(layer, config, batch);
  {  // equal bits mean nothing if they are those of NaN
    Context context;
    const Doubles y = doubles_of(run(context, layer, config, batch).output.data());
    CHECK(std::ranges::all_of(y, [](double v) { return std::isfinite(v); }));
  }

  for (const int threads : teams({1, 2, 4, 5})) {
    CAPTURE(threads);
    Context context(Device::best(), {.threads = threads});
    CHECK(first_difference(all_bits(run(context, layer, config, batch)), expected) == -1);
    // Again in the same context (C2), and in another order.
    CHECK(first_difference(all_bits(run(context, layer, config, batch)), expected) == -1);
    const Counts order = shuffled(N, 5);
    const Run reordered = run(context, layer, config, pick(batch, order));
    std::vector<SequenceBits> expected_reordered;
    for (const std::int64_t n : order)
      expected_reordered.push_back(expected[static_cast<std::size_t>(n)]);
    CHECK(first_difference(all_bits(reordered), expected_reordered) == -1);
  }
}

}  // namespace

TEST_CASE("C1 a sequence has the same bits alone and in any company") {
  const Kind kind = GENERATE(from_range(kKinds));
  const Dtype dtype = GENERATE(from_range(layer_dtypes()));
  const bool bidirectional = GENERATE(false, true);
  PACKRNN_ONE_IN(5);
  // Around one, two and four vectors of every width; panels of four vectors of an RNN.
  const Counts widths = on_device()      ? Counts{9, 33}
                        : small_shapes() ? Counts{1, 9, 33}
                                         : Counts{1, 4, 8, 9, 16, 17, 31, 33, 65};
  for (const std::int64_t H : widths)
    check_in_company(config_of(kind, 7, H, 1, bidirectional), dtype, wide());
}

TEST_CASE("C1 the same bits for stacked layers and long sequences") {
  const Kind kind = GENERATE(from_range(kKinds));
  const bool bidirectional = GENERATE(false, true);
  PACKRNN_ONE_IN(5);
  check_in_company(config_of(kind, 5, 33, 2, bidirectional), Dtype::f32, tall());
}

TEST_CASE("C1 the same bits where a step has more rows than gates are kept for") {
  const Kind kind = GENERATE(from_range(kKinds));
  const bool bidirectional = GENERATE(false, true);
  PACKRNN_ONE_IN(5);
  if (!on_device())
    check_in_company(config_of(kind, 2, 5, 1, bidirectional), Dtype::f32,
                     lengths_with_batch_sizes({600, 513, 512, 300, 257, 256, 97, 40, 3}));
}

TEST_CASE("C1 the same bits where sums are long enough to be blocked", "[slow]") {
  const Kind kind = GENERATE(from_range(kKinds));
  const Dtype dtype = GENERATE(from_range(layer_dtypes()));
  PACKRNN_ONE_IN(5);
  if (on_device())
    check_in_company(config_of(kind, 133, 129), dtype, lengths_with_batch_sizes({9, 2, 1}));
  else
    check_in_company(config_of(kind, 301, 257), dtype,
                     lengths_with_batch_sizes({small_shapes() ? 40 : 130, 13, 5, 2, 1}));
}

TEST_CASE("C1 companions may hold anything, NaN included") {
  const Kind kind = GENERATE(from_range(kKinds));
  const bool bidirectional = GENERATE(false, true);
  const double poison =
      GENERATE(std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity());
  PACKRNN_ONE_IN(5);
  const ref::Config config = config_of(kind, 6, 19, 2, bidirectional);
  const Recurrent layer = make_layer(config, random_parameters(config));
  std::mt19937 generator(9);
  const Counts lengths = random_lengths(generator, on_cpu_or_device(60, 14), 0, 9);
  const Batch batch = random_batch(config, lengths);
  const std::vector<SequenceBits> expected = alone(layer, config, batch);

  Batch poisoned = batch;
  for (std::size_t n = 0; n < batch.size(); n += 2)
    for (Doubles* values : {&poisoned[n].x, &poisoned[n].h0, &poisoned[n].c0})
      std::ranges::fill(*values, poison);
  for (const int threads : teams({1, 3})) {
    Context context(Device::best(), {.threads = threads});
    const std::vector<SequenceBits> got = all_bits(run(context, layer, config, poisoned));
    for (std::size_t n = 1; n < batch.size(); n += 2) {
      CAPTURE(n);
      CHECK((got[n] == expected[n]));
    }
  }
}

TEST_CASE("C4 NaN and Inf in the padding reach nothing, whatever the padded length") {
  const Kind kind = GENERATE(from_range(kKinds));
  const bool batch_first = GENERATE(false, true);
  PACKRNN_ONE_IN(5);
  const ref::Config config = config_of(kind, 3, 9, 2, true);
  const Recurrent layer =
      make_layer(config, random_parameters(config), {.batch_first = batch_first});
  const Batch batch = random_batch(config, {6, 3, 0, 1, 5});
  Context context(Device::best(), {.threads = 2});
  const Run expected = run(context, layer, config, batch);
  const State state = state_of(config, batch, Dtype::f32);
  for (const std::int64_t T : {6, 7, 50})
    for (const double padding : {0.0, kNaN, double(INFINITY), -double(INFINITY), 3e38}) {
      CAPTURE(T, padding);
      const Tensor x = padded_of(config, batch, Dtype::f32, T, batch_first, padding);
      const DenseOutput got =
          host::forward_padded(context, layer, x, lengths_of(config, batch), {.state = state});
      CHECK(same_bits(got.state, expected.state));
      // The padded output holds the packed rows, and +0 everywhere else.
      CHECK(same_bits(got.output,
                      host::pad_packed_sequence(context, expected.output,
                                                {.batch_first = batch_first, .total_length = T})));
    }
}

TEST_CASE("C2 two runs give the same bits, in one context or in two") {
  const Kind kind = GENERATE(from_range(kKinds));
  const Dtype dtype = GENERATE(from_range(layer_dtypes()));
  const int threads = GENERATE(from_range(teams({1, 2, 5})));
  PACKRNN_ONE_IN(5);
  const ref::Config config = config_of(kind, 16, 40, 2, true);
  const Recurrent layer = make_layer(config, random_parameters(config), {.dtype = dtype});
  std::mt19937 generator(4);
  const Batch batch = random_batch(
      config, on_device() ? Counts{3, 12, 0, 7, 7} : random_lengths(generator, 37, 0, 30));
  Context first(Device::best(), {.threads = threads}), second(Device::best(), {.threads = threads});
  const Run a = run(first, layer, config, batch);
  for (int repeat = 0; repeat < 3; ++repeat) {
    const Run b = run(repeat == 0 ? second : first, layer, config, batch);
    CHECK(same_bits(a.output.data(), b.output.data()));
    CHECK(same_bits(a.state, b.state));
    for (std::size_t l = 0; l < a.cells.size(); ++l) CHECK(same_bits(a.cells[l], b.cells[l]));
  }
}

TEST_CASE("C1 f32 (exact) and f64 have the same bits on every device") {
  if (!on_device()) PACKRNN_SKIP("PACKRNN_DEVICE is the CPU: there is nothing to compare it with");
  // Where the CPU cannot fuse a multiplication with an addition, its engine rounds twice.
  const std::string target = kernels::cpu_target();
  if (target.find("AVX2") == std::string::npos && target.find("AVX3") == std::string::npos &&
      target.find("NEON") == std::string::npos)
    PACKRNN_SKIP("the CPU has no fused multiply-add: " + target);
  const Kind kind = GENERATE(from_range(kKinds));
  const Dtype dtype = GENERATE(Dtype::f32, Dtype::f64);
  const bool bidirectional = GENERATE(false, true);
  const bool bias = GENERATE(true, false);
  PACKRNN_ONE_IN(5);
  for (const std::int64_t H : {1, 5, 16, 33}) {
    const ref::Config config = config_of(kind, 7, H, 2, bidirectional, bias);
    CAPTURE(describe(config), packrnn::name_of(dtype));
    const Recurrent layer = make_layer(config, random_parameters(config), {.dtype = dtype});
    const Batch batch = random_batch(config, {5, 0, 9, 9, 1, 3, 2, 12, 4, 1});
    Context cpu(Device::cpu(), {.threads = 1}), gpu(Device::best());
    CHECK(first_difference(all_bits(run(gpu, layer, config, batch)),
                           all_bits(run(cpu, layer, config, batch))) == -1);
  }
}

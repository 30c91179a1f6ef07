// Public failures of other systems at certain sizes, each as a test that would have seen it.
// docs/known-failures.md lists the numbers and the threads.

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <random>

#include "tests/layers/layer_fixture.hpp"

using namespace packrnn;
using namespace packrnn::tests;

namespace {

void check_width(Kind kind, std::int64_t H, Dtype dtype) {
  const ref::Config config = config_of(kind, 3, H);
  CAPTURE(describe(config));
  const std::vector<ref::Parameter> parameters = random_parameters(config, 1, dtype);
  const Recurrent layer = make_layer(config, parameters, {.dtype = dtype});
  const Batch batch = random_batch(config, {3, 1}, 1, true, dtype);
  Context context(Device::best(), {.threads = 2});
  check_run(config, parameters, batch, run(context, layer, config, batch));
}

// Of a random half of the sequences: as many as the reference can afford.
void check_samples(const ref::Config& config, std::span<const ref::Parameter> parameters,
                   const Batch& batch, const Run& run, std::size_t samples) {
  std::mt19937 generator(1);
  const Dtype dtype = run.output.data().dtype();
  const auto F = static_cast<std::size_t>(config.directions() * config.state_size());
  const Doubles y = doubles_of(run.output.data());
  double worst = 0.0, magnitude = 0.0;
  for (std::size_t k = 0; k < samples; ++k) {
    const std::size_t n = k == 0 ? 0 : k == 1 ? batch.size() - 1 : generator() % batch.size();
    const ref::Result expected = ref::run(config, parameters, batch[n]);
    magnitude = std::max(magnitude, expected.magnitude);
    const std::int64_t length = run.output.layout().lengths()[n];
    for (std::int64_t t = 0; t < length; ++t)
      for (std::size_t j = 0; j < F; ++j) {
        const auto row =
            static_cast<std::size_t>(run.output.layout().row(static_cast<std::int64_t>(n), t));
        const double error =
            std::abs(y[row * F + j] - expected.y[static_cast<std::size_t>(t) * F + j]);
        worst = std::isnan(error) ? INFINITY : std::max(worst, error);
      }
  }
  CHECK(worst <= ref::tolerance(precision_of(dtype),
                                ref::work(config, run.output.layout().steps(), magnitude)));
}

}  // namespace

TEST_CASE("B51: hidden units past every block size") {
  const Kind kind = GENERATE(from_range(kKinds));
  for (const std::int64_t H :
       on_cpu_or_device<Counts>({1, 2, 31, 32, 33, 127, 128, 129, 255, 257},
                                full_or_small<Counts>({1, 2, 31, 32, 33, 129, 257}, {1, 33, 129})))
    check_width(kind, H, Dtype::f32);
  for (const std::int64_t H : full_or_small<Counts>({1, 15, 16, 17, 129}, {1, 17}))
    check_width(kind, H, Dtype::f64);
  for (const Dtype dtype : layer_dtypes().subspan(2))
    for (const std::int64_t H : full_or_small<Counts>({1, 15, 16, 33, 129}, {1, 33}))
      check_width(kind, H, dtype);
}

TEST_CASE("B51, B68: wide layers", "[slow]") {
  if (on_device()) {  // a simulated GPU takes one multiplication at a time
    check_width(Kind::lstm, full_or_small(512, 136), Dtype::f32);
    check_width(Kind::gru, full_or_small(600, 264), Dtype::bf16);
    return;
  }
  // The reference takes one multiplication at a time, so few combinations.
  for (const std::int64_t H : {512, 1000, 1024, 1025}) check_width(Kind::lstm, H, Dtype::f32);
  check_width(Kind::lstm_proj, 1025, Dtype::f32);
  check_width(Kind::gru, 1024, Dtype::f32);
  check_width(Kind::gru_reset_before, 1000, Dtype::f32);
  if (small_shapes()) return;
  check_width(Kind::gru, 2049, Dtype::f32);
  check_width(Kind::rnn_tanh, 4096, Dtype::f32);
}

TEST_CASE("B64: more than 65,535 steps", "[slow]") {
  const Kind kind = GENERATE(Kind::lstm, Kind::gru, Kind::rnn_tanh);
  const ref::Config config = config_of(kind, 4, 24, 3);
  const Recurrent layer = make_layer(config, random_parameters(config));
  Context context(Device::best(), {.threads = 2});
  // The simulated GPU would take minutes; what could overflow there is in kernels.* (64-bit
  // counts).
  const std::int64_t cut = on_cpu_or_device(40000, 300);
  Counts sizes = on_cpu_or_device<Counts>({65536, 70000}, {full_or_small(500, 310)});
  if (small_shapes() && !on_device()) sizes.pop_back();
  for (const std::int64_t T : sizes) {
    const Batch batch = random_batch(config, {T, T - 3});
    const Run whole = run(context, layer, config, batch);
    // In two halves, the state carried over: equal to the last bit.
    Batch first, second;
    for (const ref::Sequence& sequence : batch) {
      first.push_back(steps_of(config, sequence, 0, cut));
      second.push_back(steps_of(config, sequence, cut, T));
    }
    const Run a = run(context, layer, config, first);
    const PackedOutput b =
        host::forward(context, layer, packed_of(config, second, Dtype::f32), {.state = a.state});
    CHECK(same_bits(b.state, whole.state));
    for (std::int64_t n = 0; n < 2; ++n) {
      const std::int64_t row = whole.output.layout().row(n, T - 4);
      const std::int64_t same = b.output.layout().row(n, T - 4 - cut);
      CHECK(
          same_bits(whole.output.data().rows(row, row + 1), b.output.data().rows(same, same + 1)));
    }
  }
}

TEST_CASE("more gates in a step than 31 bits count", "[slow]") {
  if (on_device() || !std::getenv("PACKRNN_LARGE_SIZES"))
    PACKRNN_SKIP("needs a CPU, 16 GiB and a minute: PACKRNN_LARGE_SIZES=1");
  const std::int64_t H = 1024, N = (std::int64_t{1} << 31) / (4 * H) + 48;
  const Lstm layer({.input_size = 1, .hidden_size = H});
  Context context(Device::cpu());
  Tensor x = Tensor::empty({1, N, 1}, Dtype::f32);
  Generator generator(1);
  fill_uniform(generator, x, -1.0, 1.0);
  const DenseOutput all = layer.forward(context, x.view());
  const TensorView y = all.output.view().reshape({N, H}), c = all.state.c.view().reshape({N, H});
  for (const std::int64_t n : {std::int64_t{0}, N / 2, N - 48, N - 1}) {
    const DenseOutput alone =
        layer.forward(context, x.view().reshape({N, 1}).rows(n, n + 1).reshape({1, 1, 1}));
    CHECK(same_bits(y.rows(n, n + 1), alone.output.view().reshape({1, H})));
    CHECK(same_bits(c.rows(n, n + 1), alone.state.c.view().reshape({1, H})));
  }
}

TEST_CASE("B64: more than 65,535 sequences", "[slow]") {
  const Kind kind = GENERATE(Kind::lstm, Kind::gru, Kind::rnn_tanh);
  const ref::Config config = config_of(kind, 4, 24, 3);
  const std::vector<ref::Parameter> parameters = random_parameters(config);
  const Recurrent layer = make_layer(config, parameters);
  Context context(Device::best(), {.threads = 2});
  for (const std::int64_t N : on_device()      ? Counts{full_or_small(700, 150)}
                              : small_shapes() ? Counts{65537}
                                               : Counts{65536, 70000}) {
    const Counts lengths(static_cast<std::size_t>(N), 1);
    const Batch batch = random_batch(config, lengths);
    const Run whole = run(context, layer, config, batch);
    check_samples(config, parameters, batch, whole, 50);
    const auto half = static_cast<std::ptrdiff_t>(N / 2);
    const Run low = run(context, layer, config, Batch(batch.begin(), batch.begin() + half));
    const Run high = run(context, layer, config, Batch(batch.begin() + half, batch.end()));
    CHECK(same_bits(whole.output.data().rows(0, half), low.output.data()));
    CHECK(same_bits(whole.output.data().rows(half, N), high.output.data()));
  }
}

TEST_CASE("B70: large batches at odd sizes", "[slow]") {
  const Kind kind = GENERATE(Kind::lstm, Kind::gru, Kind::gru_reset_before);
  const ref::Config config = config_of(kind, 32, 32);
  const std::vector<ref::Parameter> parameters = random_parameters(config);
  const Recurrent layer = make_layer(config, parameters);
  Context context(Device::best(), {.threads = 2});
  std::mt19937 generator(70);
  for (const std::int64_t N : on_cpu_or_device<Counts>({6463, 6464, 6465, 10240}, {131})) {
    const Batch batch = random_batch(config, random_lengths(generator, N, 1, 5));
    check_samples(config, parameters, batch, run(context, layer, config, batch), 60);
  }
}

TEST_CASE("B71: back-to-back calls with one lengths buffer and one workspace") {
  const Kind kind = GENERATE(from_range(kKinds));
  const bool bidirectional = GENERATE(false, true);
  PACKRNN_ONE_IN(5);
  const ref::Config config = config_of(kind, 8, 4, 1, bidirectional);
  const Recurrent layer = make_layer(config, random_parameters(config));
  const Batch full = random_batch(config, Counts(8, 5));
  const Tensor x = padded_of(config, full, Dtype::f32, 5, false, 0.0);
  Context context(Device::best(), {.threads = 2});
  std::mt19937 generator(71);
  std::vector<std::int64_t> buffer{4, 5, 4, 1, 1, 1, 1, 1};  // the caller's, overwritten each time
  std::vector<Counts> used;
  std::vector<Tensor> outputs;
  const int calls = on_device() ? full_or_small(20, 6) : full_or_small(500, 60);
  for (int i = 0; i < calls; ++i) {
    used.push_back(buffer);
    const Lengths lengths{std::span<const std::int64_t>(buffer)};
    const Counts next = random_lengths(generator, 8, 0, 5);
    std::ranges::copy(next, buffer.begin());  // before the lengths are used
    outputs.push_back(host::forward_padded(context, layer, x, lengths).output);
  }
  int wrong = 0;
  for (int i = 0; i < calls; ++i) {
    Context fresh(Device::best(), {.threads = 1});
    const auto k = static_cast<std::size_t>(i);
    wrong += !same_bits(outputs[k], host::forward_padded(fresh, layer, x, used[k]).output);
  }
  CHECK(wrong == 0);
}

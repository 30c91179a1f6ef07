// What the layers compute, against the double-precision reference: packed input of every kind of
// cell, stack, size and mix of lengths.

#include <limits>

#include "tests/layers/layer_fixture.hpp"

using namespace packrnn;
using namespace packrnn::tests;

namespace {

// One layer, one batch with states, every result checked.
void check(Context& context, const ref::Config& config, Dtype dtype, const Counts& lengths,
           unsigned seed = 1, bool states = true) {
  CAPTURE(describe(config), lengths, states);
  const std::vector<ref::Parameter> parameters = random_parameters(config, seed, dtype);
  const Recurrent layer = make_layer(config, parameters, {.dtype = dtype});
  const Batch batch = random_batch(config, lengths, seed, states, dtype);
  check_run(config, parameters, batch, run(context, layer, config, batch));
}

}  // namespace

TEST_CASE("every cell, depth, direction and bias equals the reference") {
  const Kind kind = GENERATE(from_range(kKinds));
  const Dtype dtype = GENERATE(from_range(layer_dtypes()));
  const std::int64_t num_layers = GENERATE(1, 2, 3);
  const bool bidirectional = GENERATE(false, true);
  const bool bias = GENERATE(true, false);
  PACKRNN_ONE_IN(11);
  Context context(Device::best(), {.threads = 2});
  check(context, config_of(kind, 3, 5, num_layers, bidirectional, bias), dtype, {3, 5, 1, 4, 0, 4});
}

TEST_CASE("f32 layers on tensor cores are as near to the reference as their products allow") {
  if (!on_device()) PACKRNN_SKIP("the CPU is exact");
  const Kind kind = GENERATE(from_range(kKinds));
  const F32Math math = GENERATE(F32Math::tf32, F32Math::tf32x3);
  const std::int64_t num_layers = GENERATE(1, 2);
  const bool bidirectional = GENERATE(false, true);
  PACKRNN_ONE_IN(5);
  const ref::Config config = config_of(kind, 13, 33, num_layers, bidirectional);
  CAPTURE(packrnn::name_of(math), describe(config));
  const std::vector<ref::Parameter> parameters = random_parameters(config);
  const Recurrent layer = make_layer(config, parameters);
  const Batch batch = random_batch(config, {3, 7, 1, 4, 0, 7, 2});
  Context context(Device::best(), {.f32_math = math}), exact;
  const Run got = run(context, layer, config, batch);
  check_run(config, parameters, batch, got, math == F32Math::tf32 ? ref::kTf32 : ref::kTf32x3);
  // Not because they are computed exactly.
  CHECK_FALSE(same_bits(got.output.data(), run(exact, layer, config, batch).output.data()));
}

TEST_CASE("every mix of lengths equals the reference") {
  const Kind kind = GENERATE(from_range(kKinds));
  const bool bidirectional = GENERATE(false, true);
  const bool states = GENERATE(true, false);
  PACKRNN_ONE_IN(5);
  const ref::Config config = config_of(kind, 4, 11, 2, bidirectional);
  const std::int64_t many = on_cpu_or_device(60, 17);
  const std::vector<Counts> mixes{
      {1},                             // N = 1, T = 1
      {9},                             // N = 1
      {1, 1, 1, 1, 1},                 // T = 1
      {6, 6, 6, 6},                    // equal lengths
      {many, 1, 1, 1, 1, 1, 1, 1, 1},  // one long, many short
      {1, 1, 2, 1, many, 1},           //
      {0, 3, 0, 0, 5, 0},              // zero lengths, and
      {0, 0},                          // nothing else
      {},                              // N = 0
      {1, 2, 3, 4, 5, 6, 7, 8},        // the reverse of sorted order
      {2, 7, 7, 3, 7, 2, 2, 0, 3},     // ties
  };
  Context context(Device::best(), {.threads = 2});
  for (const Counts& lengths : mixes) {
    for (const Dtype dtype : layer_dtypes()) check(context, config, dtype, lengths, 2, states);
  }
}

TEST_CASE("B69: sizes that no vector width divides equal the reference") {
  const Kind kind = GENERATE(from_range(kKinds));
  const Dtype dtype = GENERATE(from_range(layer_dtypes()));
  PACKRNN_ONE_IN(5);
  Context context(Device::best(), {.threads = 2});
  const Counts sizes = on_cpu_or_device<Counts>({1, 2, 3, 5, 7, 8, 9, 31, 33}, {1, 7, 8, 33});
  for (const std::int64_t I : sizes)
    for (const std::int64_t H : sizes)
      check(context, config_of(kind, I, H, 1, true), dtype, {2, 4, 1}, 3);
}

TEST_CASE("wide layers equal the reference") {
  const Kind kind = GENERATE(from_range(kKinds));
  const Dtype dtype = GENERATE(from_range(layer_dtypes()));
  PACKRNN_ONE_IN(5);
  Context context(Device::best(), {.threads = 2});
  check(context, config_of(kind, 37, 100, 2), dtype, {5, 12, 3, 1, 1, 2, 9, 12}, 4);
  check(context, on_device() ? config_of(kind, 70, 130) : config_of(kind, 300, 257), dtype,
        {3, 1, 4, 4, 2, 2, 1, 1, 1}, 5);
}

TEST_CASE("the direction of a bidirectional layer is not given away by equal weights") {
  // A layer that confused the directions' weights or states would pass with symmetric numbers only.
  const Kind kind = GENERATE(from_range(kKinds));
  Context context;
  const ref::Config config = config_of(kind, 2, 3, 1, true);
  const Batch batch = random_batch(config, {4, 2});
  const std::vector<ref::Parameter> parameters = random_parameters(config);
  const Recurrent layer = make_layer(config, parameters, {.dtype = Dtype::f64});
  const Run result = run(context, layer, config, batch);
  check_run(config, parameters, batch, result);
  const Doubles y = doubles_of(result.output.data());
  const auto S = static_cast<std::size_t>(config.state_size());
  CHECK(Doubles(y.begin(), y.begin() + static_cast<std::ptrdiff_t>(S)) !=
        Doubles(y.begin() + static_cast<std::ptrdiff_t>(S),
                y.begin() + static_cast<std::ptrdiff_t>(2 * S)));
}

TEST_CASE("what a workspace held before reaches nothing") {
  const Kind kind = GENERATE(from_range(kKinds));
  const Dtype dtype = GENERATE(from_range(layer_dtypes()));
  const int threads = GENERATE(from_range(teams({1, 3})));
  PACKRNN_ONE_IN(5);
  const ref::Config config = config_of(kind, 5, 17, 2, true);
  const std::vector<ref::Parameter> parameters = random_parameters(config);
  const Recurrent layer = make_layer(config, parameters, {.dtype = dtype});
  Context context(Device::best(), {.threads = threads});

  // NaN in and hence everywhere, larger than what follows: every reused byte is poisoned.
  Batch poison = random_batch(config, Counts(10, on_cpu_or_device(20, 7)), 7);
  for (ref::Sequence& sequence : poison) {
    for (Doubles* values : {&sequence.x, &sequence.h0, &sequence.c0})
      std::ranges::fill(*values, std::numeric_limits<double>::quiet_NaN());
  }
  const Batch batch = random_batch(config, {6, 11, 0, 1, 3}, 8);
  for (int repeat = 0; repeat < on_cpu_or_device(3, 2); ++repeat) {
    (void)run(context, layer, config, poison);
    const Run got = run(context, layer, config, batch);
    check_run(config, parameters, batch, got);
    Context fresh(Device::best(), {.threads = threads});
    CHECK(first_difference(all_bits(got), all_bits(run(fresh, layer, config, batch))) == -1);
  }
}

TEST_CASE("cell states are given only when asked for, and asking changes nothing") {
  const Kind kind = GENERATE(Kind::lstm, Kind::lstm_proj);
  const ref::Config config = config_of(kind, 3, 9, 2, true);
  const std::vector<ref::Parameter> parameters = random_parameters(config);
  const Recurrent layer = make_layer(config, parameters);
  const Batch batch = random_batch(config, {4, 7, 1});
  Context context;
  const Run with = run(context, layer, config, batch);  // asks
  const State state = state_of(config, batch, Dtype::f32);
  const PackedOutput without =
      host::forward(context, layer, packed_of(config, batch, Dtype::f32), {.state = state});
  CHECK(same_bits(with.output.data(), without.output.data()));
  CHECK(same_bits(with.state, without.state));

  // The last cell state of each direction is c_n; the vector is assigned, not appended to.
  std::vector<Tensor> cells(5);
  (void)host::forward(context, layer, packed_of(config, batch, Dtype::f32),
                      {.state = state, .cells = &cells});
  REQUIRE(cells.size() == 2);
  CHECK(same_bits(cells[0], with.cells[0]));
  CHECK(same_bits(cells[1], with.cells[1]));
}

TEST_CASE("initial parameters are PyTorch's distribution, and equal seeds give equal layers") {
  const Kind kind = GENERATE(from_range(kKinds));
  const ref::Config config = config_of(kind, 6, 25, 2, true);
  const Recurrent a = make_layer(config, {.seed = 5}), b = make_layer(config, {.seed = 5});
  const Recurrent other = make_layer(config, {.seed = 6});
  CHECK(parameter_bits(a) == parameter_bits(b));
  CHECK(parameter_bits(a) != parameter_bits(other));
  double low = 0.0, high = 0.0;
  for (std::int64_t i = 0; i < a.parameters().count(); ++i)
    for (const float value : a.parameters().value(i).values<float>()) {
      low = std::min<double>(low, value);
      high = std::max<double>(high, value);
    }
  // U(-1/5, 1/5), from thousands of draws.
  CHECK(low >= -0.2000001);
  CHECK(low < -0.19);
  CHECK(high <= 0.2000001);
  CHECK(high > 0.19);
}

TEST_CASE("a layer whose weights change after a call uses the new ones") {
  const Kind kind = GENERATE(from_range(kKinds));
  const ref::Config config = config_of(kind, 3, 8);
  const Batch batch = random_batch(config, {4, 2});
  Recurrent layer = make_layer(config, random_parameters(config, 1));
  Context context;
  const Run before = run(context, layer, config, batch);
  const std::vector<ref::Parameter> changed = random_parameters(config, 2);
  set_parameters(layer, changed);
  const Run after = run(context, layer, config, batch);
  check_run(config, changed, batch, after);
  CHECK_FALSE(same_bits(before.output.data(), after.output.data()));

  Recurrent moved = std::move(layer);
  CHECK(same_bits(run(context, moved, config, batch).output.data(), after.output.data()));
}

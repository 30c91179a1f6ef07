// Public failures of other systems about states, weights and cells, each as a test that would have
// seen it. docs/known-failures.md lists the numbers and the threads.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "tests/layers/layer_fixture.hpp"

using namespace packrnn;
using namespace packrnn::tests;

namespace {

void check_near(const Doubles& got, const Doubles& expected) {
  REQUIRE(got.size() == expected.size());
  for (std::size_t j = 0; j < got.size(); ++j) {
    CAPTURE(j);
    CHECK(std::abs(got[j] - expected[j]) <= kTenDecimals);
  }
}

// Outputs of a layer with H = I = 1 in f64 over x.
Doubles scalar_run(Kind kind, double weight, const Doubles& x, double* c_n = nullptr) {
  const ref::Config config = config_of(kind, 1, 1);
  const Recurrent layer =
      make_layer(config, constant_parameters(config, weight), {.dtype = Dtype::f64});
  Context context;
  const DenseOutput result = host::forward(
      context, layer, tensor_of(x, {static_cast<std::int64_t>(x.size()), 1, 1}, Dtype::f64));
  if (c_n != nullptr) *c_n = result.state.c.values<double>()[0];
  return doubles_of(result.output);
}

double difference(const Doubles& a, const Doubles& b) {
  REQUIRE(a.size() == b.size());
  double worst = 0.0;
  for (std::size_t j = 0; j < a.size(); ++j) worst = std::max(worst, std::abs(a[j] - b[j]));
  return worst;
}

}  // namespace

TEST_CASE("B04: states are cut along the batch, also where the wrong cut would fit") {
  const Kind kind = GENERATE(from_range(kKinds));
  // L = 2, D = 2, N = 4: L*D = N, so a state in the wrong order has the right shape.
  const ref::Config config = config_of(kind, 3, 5, 2, true);
  const std::vector<ref::Parameter> parameters = random_parameters(config);
  const Recurrent layer = make_layer(config, parameters);
  Batch batch = random_batch(config, {4, 4, 2, 1});
  const std::int64_t S = config.state_size(), H = config.hidden_size;
  const auto index_state = [&](std::int64_t width) {
    Doubles values(static_cast<std::size_t>(4 * 4 * width));
    for (std::size_t j = 0; j < values.size(); ++j) values[j] = static_cast<double>(j) / 64;
    return values;
  };
  const Doubles h_0 = index_state(S), c_0 = index_state(H);
  for (std::size_t n = 0; n < 4; ++n) {
    batch[n].h0 = ref::column(h_0, 4, S, static_cast<std::int64_t>(n), 4);
    if (config.cell == ref::Cell::lstm)
      batch[n].c0 = ref::column(c_0, 4, H, static_cast<std::int64_t>(n), 4);
  }
  Context context;
  const Run whole = run(context, layer, config, batch);
  check_run(config, parameters, batch, whole);
  for (const std::int64_t first : {0, 2}) {
    const Counts shard{first, first + 1};
    const Run half = run(context, layer, config, pick(batch, shard));
    CHECK((bits_of(half, 0) == bits_of(whole, first)));
    CHECK((bits_of(half, 1) == bits_of(whole, first + 1)));
  }

  // The same tensor read as [N, L*D, S] is another state, and is read as told.
  const PackedSequence x = packed_of(config, batch, Dtype::f32);
  const State state = state_of(config, batch, Dtype::f32);
  const PackedOutput as_given =
      host::forward(context, layer, x, {.state = state, .state_batch_first = true});
  CHECK_FALSE(same_bits(as_given.output.data(), whole.output.data()));
  const State in_front = state_of(config, batch, Dtype::f32, true);
  const PackedOutput transposed =
      host::forward(context, layer, x, {.state = in_front, .state_batch_first = true});
  CHECK(same_bits(transposed.output.data(), whole.output.data()));
}

TEST_CASE("B41: every layer and direction starts from its own state") {
  const Kind kind = GENERATE(from_range(kKinds));
  const Dtype dtype = GENERATE(Dtype::f32, Dtype::f64);
  const ref::Config config = config_of(kind, 4, 5, 3, true);
  const std::vector<ref::Parameter> parameters = random_parameters(config);
  const Recurrent layer = make_layer(config, parameters, {.dtype = dtype});
  const auto wave = [](std::int64_t count, double scale, double (*function)(double)) {
    Doubles values(static_cast<std::size_t>(count));
    for (std::size_t j = 0; j < values.size(); ++j)
      values[j] = static_cast<float>(scale * function(static_cast<double>(j)));
    return values;
  };
  Doubles x = ref::xin(5, 3, 4);
  ref::round_to_float(x);
  const Batch batch =
      batch_from(config, x, {5, 3, 1}, wave(6 * 3 * config.state_size(), 0.1, std::cos),
                 config.cell == ref::Cell::lstm ? wave(6 * 3 * 5, 0.2, std::sin) : Doubles());
  Context context;
  check_run(config, parameters, batch, run(context, layer, config, batch));
}

TEST_CASE("B41: published sums of a stacked bidirectional LSTM with states") {
  const ref::Config config = config_of(Kind::lstm, 2, 3, 2, true);
  const Recurrent layer = make_layer(config, ref::filled_parameters(config), {.dtype = Dtype::f64});
  Doubles h_0(4 * 3 * 3), c_0(4 * 3 * 3);
  for (std::size_t j = 0; j < h_0.size(); ++j) {
    h_0[j] = 0.1 * std::cos(static_cast<double>(j));
    c_0[j] = 0.2 * std::sin(static_cast<double>(j));
  }
  Context context;
  const Run result =
      run(context, layer, config, batch_from(config, ref::xin(5, 3, 2), {5, 3, 1}, h_0, c_0));
  CHECK(std::abs(sum(result.state.h.values<double>()) - -0.6269152155) <= kTenDecimals);
  CHECK(std::abs(sum(result.state.c.values<double>()) - 0.1699904853) <= kTenDecimals);
}

TEST_CASE("B46: memory that is not aligned to vectors") {
  const Kind kind = GENERATE(from_range(kKinds));
  const Dtype dtype = GENERATE(Dtype::f32, Dtype::f64);
  const ref::Config config = config_of(kind, 5, 9, 2, true);
  const Recurrent layer = make_layer(config, random_parameters(config), {.dtype = dtype});
  const Batch batch = random_batch(config, {6, 6, 6});
  Context context;
  const Tensor x = padded_of(config, batch, dtype, 6, false, 0.0);
  const State state = state_of(config, batch, dtype);
  const DenseOutput expected = host::forward(context, layer, x, {.state = state});
  // Copies on the device that begin one element past an aligned address.
  std::vector<Tensor> storage;
  const auto shifted = [&](const TensorView& view) {
    if (!view.defined()) return TensorView();
    storage.push_back(context.empty({view.elements() + 1}, dtype));
    const TensorSpan inside = storage.back().span().rows(1, view.elements() + 1);
    context.copy(view.reshape({view.elements()}), inside);
    return TensorView(inside).reshape(view.shape());
  };
  const StateView moved(shifted(state.h.view()), shifted(state.c.view()));
  const DenseOutput got = to_host(context, layer.forward(context, shifted(x), {.state = moved}));
  CHECK(same_bits(got.output, expected.output));
  CHECK(same_bits(got.state, expected.state));
  const DenseOutput padded = to_host(
      context, layer.forward_padded(context, shifted(x), Lengths{6, 6, 6}, {.state = moved}));
  CHECK(same_bits(padded.output, expected.output));
}

TEST_CASE("B61: a call leaves names, shapes, addresses and values of parameters alone") {
  const Kind kind = GENERATE(from_range(kKinds));
  const ref::Config config = config_of(kind, 3, 8, 2, true);
  const Recurrent layer = make_layer(config, random_parameters(config), {.dropout = 0.5});
  const auto snapshot = [&] {
    std::string text;
    for (std::int64_t i = 0; i < layer.parameters().count(); ++i) {
      const TensorView value = layer.parameters().value(i);
      text += layer.parameters().name(i) + value.shape().str() +
              std::to_string(reinterpret_cast<std::uintptr_t>(value.raw())) + "\n";
    }
    return text;
  };
  const std::string before = snapshot();
  const std::vector<std::byte> bits = parameter_bits(layer);
  const std::uint64_t version = layer.parameters().version();
  Context context(Device::best(), {.threads = 2});
  const Batch batch = random_batch(config, {4, 2, 3});
  (void)run(context, layer, config, batch);
  (void)run(context, layer, config, batch, {.training = true});
  CHECK(snapshot() == before);
  CHECK(parameter_bits(layer) == bits);
  CHECK(layer.parameters().version() == version);
}

TEST_CASE("B62: without biases: the order of the list, and zeros") {
  const Kind kind = GENERATE(from_range(kKinds));
  const Dtype dtype = GENERATE(Dtype::f32, Dtype::f64);
  const ref::Config bare = config_of(kind, 3, 6, 2, true, false);
  const ref::Config full = config_of(kind, 3, 6, 2, true, true);
  const std::vector<ref::Parameter> parameters = random_parameters(bare);
  std::vector<ref::Parameter> with_zeros = ref::parameters(full);
  for (ref::Parameter& parameter : with_zeros)
    for (const ref::Parameter& source : parameters)
      if (source.name == parameter.name) parameter.value = source.value;

  const Recurrent a = make_layer(bare, parameters, {.dtype = dtype});
  const Recurrent b = make_layer(full, with_zeros, {.dtype = dtype});
  std::vector<std::string> names;
  for (const char* layer : {"_l0", "_l0_reverse", "_l1", "_l1_reverse"}) {
    names.push_back(std::string("weight_ih") + layer);
    names.push_back(std::string("weight_hh") + layer);
    if (bare.proj_size > 0) names.push_back(std::string("weight_hr") + layer);
  }
  REQUIRE(a.parameters().count() == static_cast<std::int64_t>(names.size()));
  for (std::size_t i = 0; i < names.size(); ++i)
    CHECK(a.parameters().name(static_cast<std::int64_t>(i)) == names[i]);
  CHECK_FALSE(a.parameters().contains("bias_ih_l0"));

  Context context;
  const Batch batch = random_batch(bare, {5, 2, 7});
  const Run got = run(context, a, bare, batch);
  check_run(bare, parameters, batch, got);
  CHECK(first_difference(all_bits(got), all_bits(run(context, b, full, batch))) == -1);
}

TEST_CASE("B63: projection: shapes and published sums") {
  ref::Config config = config_of(Kind::lstm, 5, 6, 2, true);
  config.proj_size = 4;
  const Recurrent layer = make_layer(config, ref::filled_parameters(config), {.dtype = Dtype::f64});
  CHECK(layer.parameters().value("weight_hh_l0").shape() == Shape{24, 4});
  CHECK(layer.parameters().value("weight_hr_l0").shape() == Shape{4, 6});
  CHECK(layer.parameters().value("weight_ih_l1").shape() == Shape{24, 8});
  Context context;
  const DenseOutput result = host::forward_padded(
      context, layer, tensor_of(ref::xin(4, 3, 5), {4, 3, 5}, Dtype::f64), Lengths{4, 2, 1});
  REQUIRE(result.output.shape() == Shape{4, 3, 8});
  REQUIRE(result.state.h.shape() == Shape{4, 3, 4});
  REQUIRE(result.state.c.shape() == Shape{4, 3, 6});
  const auto sums = [](const Tensor& tensor) {
    Doubles list;
    for (std::int64_t n = 0; n < 3; ++n)
      list.push_back(sum(ref::column(doubles_of(tensor), 3, tensor.size(2), n, tensor.size(0))));
    return list;
  };
  check_near(sums(result.output), {1.9780641988, 1.0034382496, 0.3587383660});
  check_near(sums(result.state.h), {0.8045952327, 1.5606789811, 0.2488619315});
  check_near(sums(result.state.c), {1.2597609336, 1.2856188741, 0.4797973283});
}

TEST_CASE("B69: one unit, every number one half") {
  double c = 0.0;
  check_near(scalar_run(Kind::lstm, 0.5, {1, 1, 1}, &c),
             {0.5143859225, 0.7612810362, 0.8406515509});
  check_near({c}, {2.0731060396});
  check_near(scalar_run(Kind::gru, 0.5, {1, 1, 1}), {0.1618545505, 0.2881370289, 0.3891617314});
  check_near(scalar_run(Kind::rnn_tanh, 0.5, {1, 1, 1}),
             {0.9051482536, 0.9605191271, 0.9626060341});
}

TEST_CASE("B77: a GRU resets after the recurrent product, or before when told") {
  check_near(scalar_run(Kind::gru, 0.5, {1, 1, 1}), {0.1618545505, 0.2881370289, 0.3891617314});
  check_near(scalar_run(Kind::gru_reset_before, 0.5, {1, 1, 1}),
             {0.1651221443, 0.2932303975, 0.3953111851});

  // How far apart the two are, and how wrong biases merged outside the reset product would be.
  Context context;
  const auto output = [&](Kind kind, bool merged) {
    const ref::Config config = config_of(kind, 3, 4);
    std::vector<ref::Parameter> parameters = ref::filled_parameters(config);
    if (merged)
      for (std::size_t j = 0; j < 12; ++j) {
        parameters[2].value[j] += parameters[3].value[j];
        parameters[3].value[j] = 0.0;
      }
    const Recurrent layer = make_layer(config, parameters, {.dtype = Dtype::f64});
    return doubles_of(
        host::forward(context, layer, tensor_of(ref::xin(5, 2, 3), {5, 2, 3}, Dtype::f64)).output);
  };
  const Doubles after = output(Kind::gru, false), before = output(Kind::gru_reset_before, false);
  CHECK(std::abs(difference(after, before) - 0.146) < 0.0006);
  CHECK(std::abs(difference(Doubles(after.begin(), after.begin() + 8),
                            Doubles(before.begin(), before.begin() + 8)) -
                 0.136) < 0.0006);
  CHECK(std::abs(difference(after, output(Kind::gru, true)) - 0.168) < 0.0006);
  // Before the product there is nothing to merge into: only the sum of the biases counts.
  CHECK(difference(before, output(Kind::gru_reset_before, true)) < 1e-12);
}

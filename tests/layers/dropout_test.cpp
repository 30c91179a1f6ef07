// Contract C3: a dropout mask belongs to (seed, draw, layer, sequence id, time, unit) and to
// nothing else. The layers here make masks visible: every weight is 0 or 1, so that a relu layer
// hands its input on and the output is the product of the masks on the way.

#include <algorithm>
#include <cmath>
#include <set>

#include "tests/layers/layer_fixture.hpp"

using namespace packrnn;
using namespace packrnn::tests;

namespace {

// I = 1, x = 1: layer 0 gives ones, every later layer is the identity on its own direction.
Recurrent mask_layer(const ref::Config& config, double dropout, Dtype dtype = Dtype::f32) {
  std::vector<ref::Parameter> parameters = ref::parameters(config);
  for (ref::Parameter& parameter : parameters) {
    const bool input = parameter.name.starts_with("weight_ih");
    const bool first = parameter.name.starts_with("weight_ih_l0");
    const bool reverse = parameter.name.ends_with("_reverse");
    const std::int64_t columns = parameter.shape[1];
    for (std::int64_t row = 0; input && row < parameter.shape[0]; ++row) {
      const std::int64_t column = first ? 0 : row + (reverse ? config.hidden_size : 0);
      parameter.value[static_cast<std::size_t>(row * columns + column)] = 1.0;
    }
  }
  return make_layer(config, parameters, {.dtype = dtype, .dropout = dropout});
}

ref::Config mask_config(std::int64_t units, std::int64_t num_layers = 2,
                        bool bidirectional = false) {
  return config_of(Kind::rnn_relu, 1, units, num_layers, bidirectional, false);
}

Batch ones(const Counts& lengths) {
  Batch batch(lengths.size());
  for (std::size_t n = 0; n < lengths.size(); ++n)
    batch[n].x.assign(static_cast<std::size_t>(lengths[n]), 1.0);
  return batch;
}

Doubles mask(Context& context, const Recurrent& layer, const ref::Config& config,
             const Counts& lengths, const Counts& ids = {}) {
  return doubles_of(
      run(context, layer, config, ones(lengths), {.training = true, .sequence_ids = ids})
          .output.data());
}

double fraction_zero(const Doubles& values) {
  return static_cast<double>(std::ranges::count(values, 0.0)) / static_cast<double>(values.size());
}

}  // namespace

TEST_CASE("C3 the dropped fraction is p, and what stays is scaled by 1 / (1 - p)") {
  const double p = GENERATE(0.1, 0.5, 0.8);
  const Dtype dtype = GENERATE(Dtype::f32, Dtype::f64);
  const bool bidirectional = GENERATE(false, true);
  const ref::Config config = mask_config(40, 2, bidirectional);
  const Recurrent layer = mask_layer(config, p, dtype);
  Context context(Device::best(), {.seed = 3});
  const std::size_t N = on_cpu_or_device(20U, 8U), T = on_cpu_or_device(50U, 10U);
  const Doubles values = mask(context, layer, config, Counts(N, static_cast<std::int64_t>(T)));
  REQUIRE(values.size() == N * T * 40U * (bidirectional ? 2U : 1U));
  // Five standard deviations of a binomial count.
  const double deviation = std::sqrt(p * (1 - p) / static_cast<double>(values.size()));
  CHECK(std::abs(fraction_zero(values) - p) < 5 * deviation);
  const double u = dtype == Dtype::f64 ? ref::kF64.arithmetic : ref::kF32.arithmetic;
  for (const double value : values)
    if (value != 0.0) REQUIRE(std::abs(value - 1 / (1 - p)) <= 4 * u / (1 - p));
}

TEST_CASE("C3 p = 1 gives zeros, p = 0 changes nothing") {
  const Kind kind = GENERATE(from_range(kKinds));
  const ref::Config config = config_of(kind, 3, 6, 2);
  const std::vector<ref::Parameter> parameters = random_parameters(config);
  const Batch batch = random_batch(config, {4, 2, 3});
  Context context;
  const Recurrent plain = make_layer(config, parameters);
  const Run expected = run(context, plain, config, batch);
  CHECK(same_bits(run(context, plain, config, batch, {.training = true}).output.data(),
                  expected.output.data()));

  const Recurrent all = make_layer(config, parameters, {.dropout = 1.0});
  const Run dropped = run(context, all, config, batch, {.training = true});
  // The second layer sees zeros: as a layer of its own would.
  ref::Config upper = config;
  upper.num_layers = 1;
  upper.input_size = config.state_size();
  std::vector<ref::Parameter> upper_parameters = ref::parameters(upper);
  for (std::size_t i = 0; i < upper_parameters.size(); ++i)
    upper_parameters[i].value = parameters[parameters.size() / 2 + i].value;
  Batch zeros = batch;
  for (std::size_t n = 0; n < zeros.size(); ++n) {
    const auto steps = batch[n].x.size() / 3;
    zeros[n].x.assign(steps * static_cast<std::size_t>(config.state_size()), 0.0);
    const auto upper_half = [](Doubles& state) {
      state.erase(state.begin(), state.begin() + static_cast<std::ptrdiff_t>(state.size() / 2));
    };
    upper_half(zeros[n].h0);
    if (!zeros[n].c0.empty()) upper_half(zeros[n].c0);
  }
  const Recurrent upper_layer = make_layer(upper, upper_parameters);
  CHECK(same_bits(dropped.output.data(), run(context, upper_layer, upper, zeros).output.data()));
  CHECK_FALSE(same_bits(dropped.output.data(), expected.output.data()));

  // h_n of the lower layer is taken before dropout.
  CHECK(same_bits(dropped.state.h.view().rows(0, 1), expected.state.h.view().rows(0, 1)));
}

TEST_CASE("C3 no dropout in inference, none after the last layer, none on states") {
  const Kind kind = GENERATE(from_range(kKinds));
  const ref::Config config = config_of(kind, 3, 6, 3, true);
  const std::vector<ref::Parameter> parameters = random_parameters(config);
  const Batch batch = random_batch(config, {4, 2, 3});
  const Recurrent plain = make_layer(config, parameters);
  const Recurrent dropping = make_layer(config, parameters, {.dropout = 0.5});
  Context context;
  CHECK(same_bits(run(context, plain, config, batch).output.data(),
                  run(context, dropping, config, batch).output.data()));
  CHECK(context.random().position() == 0);  // inference draws nothing

  // The states of layer 0 are those of a run without dropout; those above differ.
  const Run trained = run(context, dropping, config, batch, {.training = true});
  const Run expected = run(context, plain, config, batch);
  CHECK(same_bits(trained.state.h.view().rows(0, 2), expected.state.h.view().rows(0, 2)));
  CHECK_FALSE(same_bits(trained.state.h.view().rows(2, 4), expected.state.h.view().rows(2, 4)));

  // One layer has no layer after it.
  const ref::Config single = config_of(kind, 3, 6);
  const Recurrent one = make_layer(single, random_parameters(single), {.dropout = 0.9});
  const Batch input = random_batch(single, {4, 2, 3});
  CHECK(same_bits(run(context, one, single, input, {.training = true}).output.data(),
                  run(context, one, single, input).output.data()));
}

TEST_CASE("C3 the output of the last layer equals its state where dropout is on") {
  // h_n of the last layer is its last output: no mask lies between them.
  const ref::Config config = mask_config(32, 2);
  const Recurrent layer = mask_layer(config, 0.5);
  Context context;
  const Run result = run(context, layer, config, ones({7}), {.training = true});
  CHECK(same_bits(result.output.data().rows(6, 7).reshape({32}),
                  result.state.h.view().rows(1, 2).reshape({32})));
}

TEST_CASE("C3 masks follow the sequence id, not the place in the batch") {
  const bool bidirectional = GENERATE(false, true);
  const int threads = GENERATE(from_range(teams({1, 3})));
  const ref::Config config = mask_config(24, 2, bidirectional);
  const Recurrent layer = mask_layer(config, 0.5);
  const Counts lengths{5, 9, 2, 9, 0, 7}, ids{40, 7, -3, 8, 1, std::int64_t{1} << 40};
  Context context(Device::best(), {.threads = threads, .seed = 17});
  const auto fresh = [&] { context.random().reseed(17); };
  const auto bits = [&](const Counts& these, const Counts& names) {
    fresh();
    return all_bits(
        run(context, layer, config, ones(these), {.training = true, .sequence_ids = names}));
  };
  const std::vector<SequenceBits> expected = bits(lengths, ids);

  // Another order, with the ids moving along.
  const Counts order{3, 5, 0, 4, 2, 1};
  Counts moved_lengths, moved_ids;
  for (const std::int64_t n : order) {
    moved_lengths.push_back(lengths[static_cast<std::size_t>(n)]);
    moved_ids.push_back(ids[static_cast<std::size_t>(n)]);
  }
  const std::vector<SequenceBits> moved = bits(moved_lengths, moved_ids);
  for (std::size_t k = 0; k < order.size(); ++k) {
    CHECK((moved[k] == expected[static_cast<std::size_t>(order[k])]));
    // Alone, and cut short: what remains has the same mask.
    const auto n = static_cast<std::size_t>(order[k]);
    CHECK((bits({lengths[n]}, {ids[n]})[0] == expected[n]));
  }
  const std::vector<SequenceBits> shorter = bits({3}, {7});
  const std::size_t row = expected[1].output.size() / 9;
  CHECK(std::equal(shorter[0].output.begin(), shorter[0].output.end(), expected[1].output.begin()));
  CHECK(shorter[0].output.size() == 3 * row);

  // Equal id, equal mask; other id, other mask. Ids above 2^32 are not cut off.
  const std::vector<SequenceBits> twins =
      bits({9, 9, 9, 9}, {7, 7, 8, 7 + (std::int64_t{1} << 32)});
  CHECK((twins[0] == twins[1]));
  CHECK_FALSE((twins[0] == twins[2]));
  CHECK_FALSE((twins[0] == twins[3]));

  // No ids given: the caller's indices, in the caller's order although the batch gets sorted.
  const std::vector<SequenceBits> unnamed = bits({2, 9, 5}, {});
  CHECK((unnamed[1] == bits({9}, {1})[0]));
  CHECK((unnamed[0] == bits({2}, {0})[0]));
}

TEST_CASE("C3 masks differ between times, units, layers, directions, draws and seeds") {
  const ref::Config config = mask_config(64, 2);
  const Recurrent layer = mask_layer(config, 0.5);
  Context context(Device::best(), {.seed = 1});
  const Doubles first = mask(context, layer, config, {40});
  CHECK(context.random().position() == 1);  // one draw a call
  std::set<Doubles> rows, columns;
  for (std::size_t t = 0; t < 40; ++t)
    rows.insert(Doubles(first.begin() + static_cast<std::ptrdiff_t>(t * 64),
                        first.begin() + static_cast<std::ptrdiff_t>(t * 64 + 64)));
  for (std::size_t j = 0; j < 64; ++j) {
    Doubles column;
    for (std::size_t t = 0; t < 40; ++t) column.push_back(first[t * 64 + j]);
    columns.insert(column);
  }
  CHECK(rows.size() == 40);
  CHECK(columns.size() == 64);

  const Doubles second = mask(context, layer, config, {40});
  CHECK(second != first);
  context.random().reseed(1);
  CHECK(mask(context, layer, config, {40}) == first);
  CHECK(mask(context, layer, config, {40}) == second);
  context.random().reseed(2);
  CHECK(mask(context, layer, config, {40}) != first);

  // Two independent masks in a row leave a quarter; the same one twice would leave half.
  const ref::Config deep = mask_config(64, 3);
  const Doubles both =
      mask(context, mask_layer(deep, 0.5), deep, Counts(on_cpu_or_device(10U, 2U), 40));
  const double deviation = std::sqrt(0.75 * 0.25 / static_cast<double>(both.size()));
  CHECK(std::abs(fraction_zero(both) - 0.75) < 5 * deviation);

  // Both directions of one step: the halves of a row.
  const ref::Config bi = mask_config(64, 2, true);
  const Doubles halves = mask(context, mask_layer(bi, 0.5), bi, {40});
  std::size_t equal = 0;
  for (std::size_t t = 0; t < 40; ++t)
    for (std::size_t j = 0; j < 64; ++j) equal += halves[t * 128 + j] == halves[t * 128 + 64 + j];
  CHECK(std::abs(static_cast<double>(equal) / (40 * 64) - 0.5) < 5 * std::sqrt(0.25 / (40 * 64)));
}

TEST_CASE("C3 the masks are the same on every device") {
  if (!on_device()) PACKRNN_SKIP("PACKRNN_DEVICE is the CPU: there is nothing to compare it with");
  const ref::Config config = mask_config(20, 3, true);
  const Recurrent layer = mask_layer(config, 0.5);
  const Counts lengths{5, 9, 2, 9, 0, 7}, ids{40, 7, -3, 8, 1, std::int64_t{1} << 40};
  Context cpu(Device::cpu(), {.seed = 17}), gpu(Device::best(), {.seed = 17});
  for (int call = 0; call < 3; ++call)
    CHECK(mask(gpu, layer, config, lengths, ids) == mask(cpu, layer, config, lengths, ids));
}

TEST_CASE("B55: the seed decides the masks, and only the seed") {
  const Kind kind = GENERATE(from_range(kKinds));
  const ref::Config config = config_of(kind, 4, 4, 2);
  const Recurrent layer = make_layer(config, random_parameters(config), {.dropout = 0.5});
  const Recurrent twin = make_layer(config, random_parameters(config), {.dropout = 0.5});
  const Batch batch = random_batch(config, {6, 4, 5});
  Context context(Device::best(), {.seed = 1});
  const auto output = [&](const Recurrent& which) {
    return run(context, which, config, batch, {.training = true}).output;
  };
  const PackedSequence first = output(layer);
  const PackedSequence next = output(layer);
  CHECK_FALSE(same_bits(first.data(), next.data()));  // without reseeding
  context.random().reseed(1);
  CHECK(same_bits(first.data(), output(layer).data()));
  CHECK_FALSE(same_bits(first.data(), output(twin).data()));  // two layers of one model
  context.random().reseed(2);
  CHECK_FALSE(same_bits(first.data(), output(layer).data()));
  Context other(Device::best(), {.seed = 1});
  CHECK(
      same_bits(first.data(), run(other, layer, config, batch, {.training = true}).output.data()));
}

TEST_CASE("B72: a mask is never kept for a batch of another size") {
  const ref::Config config = mask_config(16, 2);
  const Recurrent layer = mask_layer(config, 0.5);
  Context context(Device::best(), {.seed = 1});
  for (const std::int64_t N : {2, 1, 3}) {
    const Run result = run(context, layer, config, ones(Counts(static_cast<std::size_t>(N), 5)),
                           {.training = true});
    CHECK(result.output.layout().batch() == N);
    CHECK(result.output.data().shape() == Shape{5 * N, 16});
    CHECK(result.state.h.shape() == Shape{2, N, 16});
    const double dropped = fraction_zero(doubles_of(result.output.data()));
    CHECK(dropped > 0.2);
    CHECK(dropped < 0.8);
  }
}

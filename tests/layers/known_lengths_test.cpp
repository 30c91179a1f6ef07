// Public failures of other systems about lengths, padding, order and directions, each as a test
// that would have seen it. docs/known-failures.md lists the numbers and the threads.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "tests/layers/layer_fixture.hpp"

using namespace packrnn;
using namespace packrnn::tests;

namespace {

// Sum of everything in a [A, N, B] tensor that belongs to sequence n.
double sum_of(const Tensor& tensor, std::int64_t n) {
  const std::int64_t N = tensor.size(1), width = tensor.size(2);
  return sum(ref::column(doubles_of(tensor), N, width, n, tensor.size(0)));
}

void check_sums(const Tensor& tensor, const Doubles& expected) {
  REQUIRE(tensor.size(1) == static_cast<std::int64_t>(expected.size()));
  for (std::size_t n = 0; n < expected.size(); ++n) {
    CAPTURE(n);
    CHECK(std::abs(sum_of(tensor, static_cast<std::int64_t>(n)) - expected[n]) <= kTenDecimals);
  }
}

// A filled layer in f64, in which published numbers are compared.
struct Filled {
  ref::Config config;
  std::vector<ref::Parameter> parameters;
  Recurrent layer;

  explicit Filled(const ref::Config& c, Dtype dtype = Dtype::f64)
      : config(c),
        parameters(ref::filled_parameters(c)),
        layer(make_layer(c, parameters, {.dtype = dtype})) {}
};

Tensor x_of(std::int64_t T, std::int64_t N, std::int64_t I) {
  return tensor_of(ref::xin(T, N, I), {T, N, I}, Dtype::f64);
}

}  // namespace

TEST_CASE("B01: total_length beyond every length, whole and in two halves") {
  const Filled lstm(config_of(Kind::lstm, 3, 4));
  Context context;
  const Tensor x = x_of(8, 4, 3);
  const PackedOutput whole =
      host::forward(context, lstm.layer, host::pack_padded_sequence(context, x, {6, 4, 2, 1}));
  const Tensor y = host::pad_packed_sequence(context, whole.output, {.total_length = 8});
  REQUIRE(y.shape() == Shape{8, 4, 4});
  check_sums(y, {-1.3067667337, -0.6394163273, -0.3087096809, -0.0689868759});
  check_sums(whole.state.h, {-0.2621595995, -0.2763604255, -0.1761406045, -0.0689868759});
  check_sums(whole.state.c, {-0.3822863532, -0.3726255266, -0.1990640573, -0.0502559960});

  // Two shards of two sequences each, padded to the common length, side by side again.
  const Batch batch = batch_from(lstm.config, ref::xin(8, 4, 3), {6, 4, 2, 1});
  for (const std::int64_t first : {0, 2}) {
    const Batch half{batch[static_cast<std::size_t>(first)],
                     batch[static_cast<std::size_t>(first + 1)]};
    const Run shard = run(context, lstm.layer, lstm.config, half);
    const Tensor part = host::pad_packed_sequence(context, shard.output, {.total_length = 8});
    for (std::int64_t n = 0; n < 2; ++n)
      CHECK(ref::column(doubles_of(part), 2, 4, n, 8) ==
            ref::column(doubles_of(y), 4, 4, first + n, 8));
  }
  for (const std::int64_t n : {5, 0})
    check_refused(
        "total_length",
        [&] { (void)host::pad_packed_sequence(context, whole.output, {.total_length = n}); },
        {"total_length", std::to_string(n), "6"});
}

TEST_CASE("B23: unsorted lengths: outputs and states in the caller's order") {
  const Kind kind = GENERATE(from_range(kKinds));
  Context context;
  const ref::Config config = config_of(kind, 3, 4, 2, true);
  const Filled filled(config);
  const Batch batch = batch_from(config, ref::xin(6, 3, 3), {3, 6, 1});
  const Run result = run(context, filled.layer, config, batch);
  CHECK(Counts(result.output.layout().sorted_indices().begin(),
               result.output.layout().sorted_indices().end()) == Counts{1, 0, 2});
  CHECK(Counts(result.output.layout().batch_sizes().begin(),
               result.output.layout().batch_sizes().end()) == Counts{3, 2, 2, 1, 1, 1});
  check_run(config, filled.parameters, batch, result);

  // 200 random orders, most of which are not their own inverse.
  std::mt19937 generator(23);
  for (int round = 0; round < on_cpu_or_device(200, 15); ++round) {
    const auto N = static_cast<std::int64_t>(1 + generator() % 9);
    const Counts lengths = random_lengths(generator, N, 0, 5);
    CAPTURE(lengths);
    const Batch random = random_batch(config, lengths, static_cast<unsigned>(round));
    check_run(config, filled.parameters, random, run(context, filled.layer, config, random));
  }
}

TEST_CASE("B26: zero-length sequences keep their state and take no part") {
  const Kind kind = GENERATE(from_range(kKinds));
  const bool bidirectional = GENERATE(false, true);
  const Dtype dtype = GENERATE(Dtype::f32, Dtype::f64);
  PACKRNN_ONE_IN(5);
  const ref::Config config = config_of(kind, 3, 4, 2, bidirectional);
  const std::vector<ref::Parameter> parameters = random_parameters(config);
  const Recurrent layer = make_layer(config, parameters, {.dtype = dtype});
  Context context;
  for (const Counts& lengths : {Counts{5, 0, 5}, Counts{5, 0, 3}, Counts{3, 0, 5}}) {
    CAPTURE(lengths);
    const Batch batch = random_batch(config, lengths);
    const Run result = run(context, layer, config, batch);
    check_run(config, parameters, batch, result);
    const State initial = state_of(config, batch, dtype);
    const std::int64_t slabs = result.state.h.size(0), S = config.state_size();
    CHECK(ref::column(doubles_of(result.state.h), 3, S, 1, slabs) ==
          ref::column(doubles_of(initial.h), 3, S, 1, slabs));
    if (config.cell == ref::Cell::lstm)
      CHECK(ref::column(doubles_of(result.state.c), 3, 4, 1, slabs) ==
            ref::column(doubles_of(initial.c), 3, 4, 1, slabs));
    // Its absence changes nothing for the others.
    const Run without = run(context, layer, config, {batch[0], batch[2]});
    CHECK((bits_of(result, 0) == bits_of(without, 0)));
    CHECK((bits_of(result, 2) == bits_of(without, 1)));

    const Tensor x = padded_of(config, batch, dtype, 5, false, NAN);
    const DenseOutput padded = host::forward_padded(context, layer, x, lengths, {.state = initial});
    check_dense(config, parameters, batch, padded);
  }
}

TEST_CASE("B32: rows past the end hold the padding value, whatever memory held before") {
  const Kind kind = GENERATE(from_range(kKinds));
  const Dtype dtype = GENERATE(Dtype::f32, Dtype::f64);
  const ref::Config config = config_of(kind, 3, 4, 1, true);
  const Recurrent layer = make_layer(config, random_parameters(config), {.dtype = dtype});
  const Batch batch = random_batch(config, {2, 1});
  const std::int64_t F = 2 * config.state_size();
  for (const std::int64_t T : {2, 5, 9})
    for (const double value : {0.0, -7.5}) {
      Context context;
      const Run result = run(context, layer, config, batch);
      const Tensor y = host::pad_packed_sequence(context, result.output,
                                                 {.padding_value = value, .total_length = T});
      REQUIRE(y.shape() == Shape{T, 2, F});
      const Doubles values = doubles_of(y);
      for (std::int64_t t = 1; t < T; ++t)
        for (std::int64_t n = t == 1 ? 1 : 0; n < 2; ++n)
          for (std::int64_t j = 0; j < F; ++j)
            REQUIRE(values[static_cast<std::size_t>((t * 2 + n) * F + j)] == value);
      // Freed memory of the same sizes, full of NaN, and once more.
      Tensor junk = Tensor::empty(y.shape(), dtype);
      std::memset(junk.span().raw(), 0xFF, junk.view().bytes());
      for (int i = 0; i < 4; ++i) (void)context.to_device(junk);
      junk = {};
      CHECK(
          same_bits(y, host::pad_packed_sequence(context, run(context, layer, config, batch).output,
                                                 {.padding_value = value, .total_length = T})));
    }
}

TEST_CASE("B33: sixteen unsorted lengths, packed and padded") {
  const Kind kind = GENERATE(from_range(kKinds));
  const Dtype dtype = GENERATE(Dtype::f32, Dtype::f64);
  const bool batch_first = GENERATE(false, true);
  PACKRNN_ONE_IN(5);
  Counts lengths{12, 32, 4, 52, 8, 64, 20, 36, 48, 40, 24, 60, 44, 16, 28, 56};
  if (on_device())
    for (std::int64_t& length : lengths) length /= 4;
  const ref::Config config = config_of(kind, 16, on_cpu_or_device(32, 9), 1, true);
  const std::vector<ref::Parameter> parameters = random_parameters(config);
  const Recurrent layer =
      make_layer(config, parameters, {.dtype = dtype, .batch_first = batch_first});
  const Batch batch = random_batch(config, lengths);
  Context context(Device::best(), {.threads = 2});
  check_run(config, parameters, batch, run(context, layer, config, batch));
  const Tensor x = padded_of(config, batch, dtype, 64, batch_first, NAN);
  const State state = state_of(config, batch, dtype);
  check_dense(config, parameters, batch,
              host::forward_padded(context, layer, x, lengths, {.state = state}), batch_first);
}

TEST_CASE("B34: final states are the outputs at each sequence's own end") {
  const Kind kind = GENERATE(from_range(kKinds));
  const Dtype dtype = GENERATE(Dtype::f32, Dtype::f64);
  const ref::Config config = config_of(kind, 3, 6, 2, true);
  const Recurrent layer = make_layer(config, random_parameters(config), {.dtype = dtype});
  const Counts lengths{5, 3, 1};
  Context context;
  const Run result = run(context, layer, config, random_batch(config, lengths));
  const Doubles y = doubles_of(result.output.data()), h = doubles_of(result.state.h);
  const std::int64_t S = config.state_size();
  for (std::int64_t n = 0; n < 3; ++n)
    for (std::int64_t j = 0; j < S; ++j) {
      const PackedLayout& layout = result.output.layout();
      const std::int64_t end = layout.row(n, lengths[static_cast<std::size_t>(n)] - 1);
      const std::int64_t start = layout.row(n, 0);
      const auto at = [](std::int64_t i) { return static_cast<std::size_t>(i); };
      CHECK(h[at((2 * 3 + n) * S + j)] == y[at(end * 2 * S + j)]);
      CHECK(h[at((3 * 3 + n) * S + j)] == y[at(start * 2 * S + S + j)]);
    }
}

TEST_CASE("B09, B35: one step, one sequence, equal lengths") {
  Context context;
  const Filled gru(config_of(Kind::gru, 1, 1, 2, true));
  const PackedOutput one = host::forward(
      context, gru.layer, host::pack_padded_sequence(context, x_of(1, 3, 1), {1, 1, 1}));
  const Doubles expected{-0.1792668538, 0.1100155143,  -0.1794922415,
                         0.1104213999,  -0.1794281676, 0.1104988208};
  const Doubles got = doubles_of(one.output.data());
  REQUIRE(got.size() == expected.size());
  for (std::size_t j = 0; j < got.size(); ++j)
    CHECK(std::abs(got[j] - expected[j]) <= kTenDecimals);

  for (const Kind kind : kKinds) {
    const ref::Config config = config_of(kind, 2, 5, 2, true);
    const std::vector<ref::Parameter> parameters = random_parameters(config);
    const Recurrent layer = make_layer(config, parameters);
    const std::int64_t many = on_cpu_or_device(89, 29);
    for (const Counts& lengths :
         {Counts{6, 6, 6}, Counts{1}, Counts{7}, Counts{many, many, 1, 1}}) {
      const Batch batch = random_batch(config, lengths, 1, false);
      const Run packed = run(context, layer, config, batch);
      check_run(config, parameters, batch, packed);
      if (lengths.front() != lengths.back()) continue;
      const Tensor x = padded_of(config, batch, Dtype::f32, lengths[0], false, 0.0);
      const DenseOutput dense = host::forward(context, layer, x);
      CHECK(same_bits(dense.output, host::pad_packed_sequence(context, packed.output)));
      CHECK(same_bits(dense.state, packed.state));
    }
  }
}

TEST_CASE("B36: one very long sequence among many short ones", "[slow]") {
  const Kind kind = GENERATE(Kind::lstm, Kind::gru, Kind::rnn_tanh);
  Counts lengths(on_cpu_or_device(256U, 100U), 1);
  lengths[77] = on_device() ? 60 : small_shapes() ? 400 : 4000;
  Context context(Device::best(), {.threads = 2});
  {  // values, at a width that the reference can afford
    const ref::Config config = config_of(kind, 8, on_cpu_or_device(32, 16));
    const std::vector<ref::Parameter> parameters = random_parameters(config);
    const Recurrent layer = make_layer(config, parameters);
    const Batch batch = random_batch(config, lengths);
    check_run(config, parameters, batch, run(context, layer, config, batch));
  }
  const ref::Config config = config_of(kind, 8, on_cpu_or_device(256, 40));
  const Recurrent layer = make_layer(config, random_parameters(config));
  const Batch batch = random_batch(config, lengths);
  const Run result = run(context, layer, config, batch);
  for (const std::size_t n : {std::size_t{0}, std::size_t{77}, lengths.size() - 1})
    CHECK((bits_of(run(context, layer, config, {batch[n]}), 0) ==
           bits_of(result, static_cast<std::int64_t>(n))));
}

TEST_CASE("B37: the reverse direction never starts in the padding") {
  const Kind kind = GENERATE(from_range(kKinds));
  const ref::Config config = config_of(kind, 3, 4, 2, true);
  const Filled filled(config);
  const Batch batch = batch_from(config, ref::xin(6, 3, 3), {6, 3, 1});
  Context context;
  const Run expected = run(context, filled.layer, config, batch);
  check_run(config, filled.parameters, batch, expected);
  for (const std::int64_t T : {6, 7, 50}) {
    const Tensor x = padded_of(config, batch, Dtype::f64, T, false, 0.0);
    const DenseOutput got = host::forward_padded(context, filled.layer, x, Lengths{6, 3, 1});
    check_dense(config, filled.parameters, batch, got);
    CHECK(same_bits(got.output,
                    host::pad_packed_sequence(context, expected.output, {.total_length = T})));
    CHECK(same_bits(got.state, expected.state));
  }
}

TEST_CASE("B37: the size of the error that padding taken for data would make") {
  // So that this test is known to see the failure it is named after.
  const ref::Config config = config_of(Kind::lstm, 3, 4, 2, true);
  const Filled filled(config);
  Doubles x = ref::xin(6, 3, 3);
  for (std::size_t t = 0; t < 6; ++t)
    for (std::size_t n = 1; n < 3; ++n)
      if (t >= (n == 1 ? 3U : 1U))
        std::fill_n(x.begin() + static_cast<std::ptrdiff_t>((t * 3 + n) * 3), 3, 0.0);
  Context context;
  const Run right = run(context, filled.layer, config, batch_from(config, x, {6, 3, 1}));
  const Run wrong = run(context, filled.layer, config, batch_from(config, x, {6, 6, 6}));
  const Tensor a = host::pad_packed_sequence(context, right.output);
  const Tensor b = host::pad_packed_sequence(context, wrong.output);
  const Counts lengths{6, 3, 1};
  const Doubles error{0.0, 0.085, 0.094};
  for (std::int64_t n = 0; n < 3; ++n) {
    const std::int64_t rows = lengths[static_cast<std::size_t>(n)];
    const Doubles p = ref::column(doubles_of(a), 3, 8, n, rows);
    const Doubles q = ref::column(doubles_of(b), 3, 8, n, rows);
    double worst = 0.0;
    for (std::size_t j = 0; j < p.size(); ++j) worst = std::max(worst, std::abs(p[j] - q[j]));
    CHECK(std::abs(worst - error[static_cast<std::size_t>(n)]) < 0.0006);
  }
}

TEST_CASE("B39: the reverse half is a forward layer over the reversed sequence") {
  const Kind kind = GENERATE(from_range(kKinds));
  const Dtype dtype = GENERATE(Dtype::f32, Dtype::f64);
  const ref::Config config = config_of(kind, 9, 5, 1, true);
  const std::vector<ref::Parameter> parameters = random_parameters(config);
  const Recurrent both = make_layer(config, parameters, {.dtype = dtype});
  ref::Config single = config;
  single.bidirectional = false;
  std::vector<ref::Parameter> reverse_parameters = ref::parameters(single);
  for (ref::Parameter& parameter : reverse_parameters)
    for (const ref::Parameter& source : parameters)
      if (source.name == parameter.name + "_reverse") parameter.value = source.value;
  const Recurrent reverse = make_layer(single, reverse_parameters, {.dtype = dtype});

  const Counts lengths{7, 4, 2};
  const Batch batch = random_batch(config, lengths);
  const auto I = static_cast<std::ptrdiff_t>(config.input_size);
  Batch mirrored = batch;
  for (std::size_t n = 0; n < batch.size(); ++n) {
    for (std::int64_t t = 0; t < lengths[n]; ++t)
      std::copy_n(batch[n].x.begin() + t * I, I, mirrored[n].x.begin() + (lengths[n] - 1 - t) * I);
    const auto second_half = [](Doubles& state) {
      state.erase(state.begin(), state.begin() + static_cast<std::ptrdiff_t>(state.size() / 2));
    };
    second_half(mirrored[n].h0);
    if (!mirrored[n].c0.empty()) second_half(mirrored[n].c0);
  }
  Context context;
  const Run a = run(context, both, config, batch);
  const Run b = run(context, reverse, single, mirrored);
  const std::int64_t S = config.state_size();
  const Doubles y = doubles_of(a.output.data()), z = doubles_of(b.output.data());
  for (std::int64_t n = 0; n < 3; ++n)
    for (std::int64_t t = 0; t < lengths[static_cast<std::size_t>(n)]; ++t)
      for (std::int64_t j = 0; j < S; ++j) {
        const std::int64_t there =
            b.output.layout().row(n, lengths[static_cast<std::size_t>(n)] - 1 - t);
        REQUIRE(y[static_cast<std::size_t>((a.output.layout().row(n, t) * 2 + 1) * S + j)] ==
                z[static_cast<std::size_t>(there * S + j)]);
      }
  CHECK(same_bits(a.state.h.view().rows(1, 2), b.state.h));
  if (b.state.c.defined()) CHECK(same_bits(a.state.c.view().rows(1, 2), b.state.c));
}

TEST_CASE("B40: reversed output is in time order, states layer by layer") {
  const Filled lstm(config_of(Kind::lstm, 1, 1, 1, true));
  Context context;
  const Tensor x = x_of(4, 2, 1);
  const DenseOutput result = host::forward_padded(context, lstm.layer, x, Lengths{4, 1});
  const Doubles first{-0.1159218985, 0.2020003527, -0.1535527885, 0.1698769729,
                      -0.1704019104, 0.1457446888, -0.1833144842, 0.1047387161};
  const Doubles second{-0.1123667953, 0.1082189552};
  const Doubles y = doubles_of(result.output);
  for (std::size_t t = 0; t < 4; ++t)
    for (std::size_t j = 0; j < 2; ++j) {
      CHECK(std::abs(y[(t * 2 + 0) * 2 + j] - first[t * 2 + j]) <= kTenDecimals);
      if (t == 0) CHECK(std::abs(y[2 + j] - second[j]) <= kTenDecimals);
    }

  const ref::Config stacked = config_of(Kind::lstm, 1, 2, 2, true);
  const Filled deep(stacked);
  const Batch batch = batch_from(stacked, ref::xin(4, 2, 1), {4, 1});
  const Run run_deep = run(context, deep.layer, stacked, batch);
  for (std::size_t n = 0; n < 2; ++n)
    CHECK(ref::run(stacked, deep.parameters, batch[n]).h_n.size() == 8);
  check_run(stacked, deep.parameters, batch, run_deep);
  // Rows 0 and 1 are the lower layer's: a single layer with its weights has them alone.
  ref::Config lower = stacked;
  lower.num_layers = 1;
  const Recurrent bottom = make_layer(
      lower, std::span(deep.parameters).first(deep.parameters.size() / 2), {.dtype = Dtype::f64});
  CHECK(same_bits(run_deep.state.h.view().rows(0, 2), run(context, bottom, lower, batch).state.h));
}

TEST_CASE("B42: NaN or infinity in the padding") {
  const Kind kind = GENERATE(from_range(kKinds));
  const ref::Config config = config_of(kind, 3, 4, 2, true);
  const Filled filled(config);
  const Batch batch = batch_from(config, ref::xin(6, 3, 3), {6, 3, 1});
  Context context;
  const DenseOutput clean = host::forward_padded(
      context, filled.layer, padded_of(config, batch, Dtype::f64, 6, false, 0.0), Lengths{6, 3, 1});
  check_dense(config, filled.parameters, batch, clean);
  for (const double bad : {double(NAN), double(INFINITY), -double(INFINITY)}) {
    const DenseOutput got =
        host::forward_padded(context, filled.layer,
                             padded_of(config, batch, Dtype::f64, 6, false, bad), Lengths{6, 3, 1});
    CHECK(same_bits(got.output, clean.output));
    CHECK(same_bits(got.state, clean.state));
  }
}

TEST_CASE("B43: neighbours do not leak, and do not even round") {
  const Kind kind = GENERATE(from_range(kKinds));
  const bool bidirectional = GENERATE(false, true);
  PACKRNN_ONE_IN(5);
  const ref::Config config = config_of(kind, 7, 20, 2, bidirectional);
  const Recurrent layer = make_layer(config, random_parameters(config));
  Context context(Device::best(), {.threads = 2});
  for (const Counts& lengths :
       {Counts{9, 9, 4, 1}, Counts{9, 1, 9, 4}, Counts{4, 9, 1, 9}, Counts{1, 4, 9, 9}}) {
    Batch batch = random_batch(config, lengths, 1);
    const SequenceBits expected = bits_of(run(context, layer, config, batch), 0);
    // Other content beside it, then NaN in one neighbour.
    Batch other = random_batch(config, lengths, 2);
    other[0] = batch[0];
    CHECK((bits_of(run(context, layer, config, other), 0) == expected));
    std::ranges::fill(other[2].x, NAN);
    CHECK((bits_of(run(context, layer, config, other), 0) == expected));
    // Alone, among 3, among 64: other systems only round differently here; we do not.
    CHECK((bits_of(run(context, layer, config, {batch[0]}), 0) == expected));
    for (const std::size_t N : {3U, on_cpu_or_device(64U, 20U)}) {
      Batch crowd = random_batch(config, Counts(N, 9), 3);
      crowd[N / 2] = batch[0];
      CHECK((bits_of(run(context, layer, config, crowd), static_cast<std::int64_t>(N / 2)) ==
             expected));
    }
  }
}

// Why the reference can be trusted: numbers published elsewhere or worked out by hand, the
// identities that its definition implies, and the tolerances that are built on it.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/catch.hpp"
#include "tests/reference/fill.hpp"
#include "tests/reference/rnn.hpp"
#include "tests/reference/tolerance.hpp"

namespace {

using namespace packrnn::reference;
using Values = std::vector<double>;

// The expected numbers of this file are given with ten decimals.
constexpr double kTenDecimals = 0.6e-10;

double difference(const Values& got, const Values& expected) {
  REQUIRE(got.size() == expected.size());
  double worst = 0.0;
  for (std::size_t j = 0; j < got.size(); ++j) {
    REQUIRE(std::isfinite(got[j]));
    worst = std::max(worst, std::abs(got[j] - expected[j]));
  }
  return worst;
}

double sum(const Values& values) {
  double total = 0.0;
  for (double value : values) {
    total += value;
  }
  return total;
}

// Every sequence of a time-major batch, alone. States are [L*D, N, width] or empty.
std::vector<Result> run_each(const Config& config, const Values& x,
                             const std::vector<std::int64_t>& lengths, const Values& h0 = {},
                             const Values& c0 = {}) {
  const std::vector<Parameter> weights = filled_parameters(config);
  const auto N = static_cast<std::int64_t>(lengths.size());
  const std::int64_t rows = config.num_layers * config.directions();
  std::vector<Result> results;
  for (std::int64_t n = 0; n < N; ++n) {
    Sequence sequence;
    sequence.x = column(x, N, config.input_size, n, lengths[static_cast<std::size_t>(n)]);
    if (!h0.empty()) {
      sequence.h0 = column(h0, N, config.state_size(), n, rows);
    }
    if (!c0.empty()) {
      sequence.c0 = column(c0, N, config.hidden_size, n, rows);
    }
    results.push_back(run(config, weights, sequence));
  }
  return results;
}

std::vector<Parameter> constant_parameters(const Config& config, double value) {
  std::vector<Parameter> list = parameters(config);
  for (Parameter& parameter : list) {
    std::fill(parameter.value.begin(), parameter.value.end(), value);
  }
  return list;
}

// Uniform in +-1/sqrt(H), as layers are initialised, and exact in f32.
std::vector<Parameter> initial_parameters(const Config& config, unsigned seed) {
  std::mt19937 generator(seed);
  std::vector<Parameter> list = parameters(config);
  for (Parameter& parameter : list) {
    for (double& value : parameter.value) {
      const double unit = static_cast<double>(generator()) / 4294967296.0;
      value = (2.0 * unit - 1.0) / std::sqrt(static_cast<double>(config.hidden_size));
    }
  }
  round_to_float(list);
  return list;
}

Config small(Cell cell) {
  Config config;
  config.cell = cell;
  return config;
}

// What run() says when it refuses a list of parameters.
std::string refusal(const Config& config, const std::vector<Parameter>& weights) {
  try {
    static_cast<void>(run(config, weights, {}));
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "not refused";
}

constexpr Cell kCells[] = {Cell::lstm, Cell::gru, Cell::gru_reset_before, Cell::rnn_tanh,
                           Cell::rnn_relu};

}  // namespace

TEST_CASE("B69 B77: one unit, every weight a half, three ones") {
  const auto output = [](Cell cell) {
    const Config config = small(cell);
    return run(config, constant_parameters(config, 0.5), {{1.0, 1.0, 1.0}, {}, {}});
  };
  const Result lstm = output(Cell::lstm);
  CHECK(difference(lstm.y, {0.5143859225, 0.7612810362, 0.8406515509}) < kTenDecimals);
  CHECK(difference(lstm.c_n, {2.0731060396}) < kTenDecimals);
  CHECK(difference(output(Cell::gru).y, {0.1618545505, 0.2881370289, 0.3891617314}) < kTenDecimals);
  CHECK(difference(output(Cell::gru_reset_before).y, {0.1651221443, 0.2932303975, 0.3953111851}) <
        kTenDecimals);
  CHECK(difference(output(Cell::rnn_tanh).y, {0.9051482536, 0.9605191271, 0.9626060341}) <
        kTenDecimals);
  // By hand: 0.5 + 0.5 + 0.5 = 1.5; 1.5 + 0.75 = 2.25; 1.5 + 1.125 = 2.625.
  CHECK(output(Cell::rnn_relu).y == Values{1.5, 2.25, 2.625});
}

TEST_CASE("B77: on filled weights the two GRU forms differ by 0.146") {
  Config config{Cell::gru, 3, 4};
  const std::vector<Result> after = run_each(config, xin(5, 2, 3), {5, 5});
  config.cell = Cell::gru_reset_before;
  const std::vector<Result> before = run_each(config, xin(5, 2, 3), {5, 5});
  const double worst =
      std::max(difference(after[0].y, before[0].y), difference(after[1].y, before[1].y));
  CHECK(std::abs(worst - 0.146) < 0.5e-3);
}

TEST_CASE("B01: an LSTM over four lengths") {
  const std::vector<Result> results = run_each({Cell::lstm, 3, 4}, xin(8, 4, 3), {6, 4, 2, 1});
  const Values y{-1.3067667337, -0.6394163273, -0.3087096809, -0.0689868759};
  const Values h{-0.2621595995, -0.2763604255, -0.1761406045, -0.0689868759};
  const Values c{-0.3822863532, -0.3726255266, -0.1990640573, -0.0502559960};
  for (std::size_t n = 0; n < 4; ++n) {
    CHECK(std::abs(sum(results[n].y) - y[n]) < kTenDecimals);
    CHECK(std::abs(sum(results[n].h_n) - h[n]) < kTenDecimals);
    CHECK(std::abs(sum(results[n].c_n) - c[n]) < kTenDecimals);
  }
}

TEST_CASE("B10: the squares of all valid outputs") {
  double squares = 0.0;
  std::size_t count = 0;
  for (const Result& result : run_each({Cell::lstm, 2, 3}, xin(8, 4, 2), {8, 1, 1, 1})) {
    for (double value : result.y) {
      squares += value * value;
      ++count;
    }
  }
  CHECK(count == 33);
  CHECK(std::abs(squares - 0.8017417737) < kTenDecimals);
}

TEST_CASE("B35: two layers, both directions, a single step") {
  Config config{Cell::gru, 1, 1, 2};
  config.bidirectional = true;
  const Values expected[] = {
      {-0.1792668538, 0.1100155143}, {-0.1794922415, 0.1104213999}, {-0.1794281676, 0.1104988208}};
  const std::vector<Result> results = run_each(config, xin(1, 3, 1), {1, 1, 1});
  for (std::size_t n = 0; n < 3; ++n) {
    CHECK(difference(results[n].y, expected[n]) < kTenDecimals);
  }
}

TEST_CASE("B40: the reverse direction starts at each sequence's own end, in time order") {
  Config config{Cell::lstm, 1, 1};
  config.bidirectional = true;
  const std::vector<Result> results = run_each(config, xin(4, 2, 1), {4, 1});
  CHECK(difference(results[0].y, {-0.1159218985, 0.2020003527, -0.1535527885, 0.1698769729,
                                  -0.1704019104, 0.1457446888, -0.1833144842, 0.1047387161}) <
        kTenDecimals);
  CHECK(difference(results[1].y, {-0.1123667953, 0.1082189552}) < kTenDecimals);
  // The states are the outputs where each direction ends.
  CHECK(results[0].h_n == Values{results[0].y[6], results[0].y[1]});
}

TEST_CASE("B41: every row of the initial states is different") {
  Config config{Cell::lstm, 2, 3, 2};
  config.bidirectional = true;
  Values h0(4 * 3 * 3);
  Values c0(4 * 3 * 3);
  for (std::size_t j = 0; j < h0.size(); ++j) {
    h0[j] = 0.1 * std::cos(static_cast<double>(j));
    c0[j] = 0.2 * std::sin(static_cast<double>(j));
  }
  double h = 0.0;
  double c = 0.0;
  for (const Result& result : run_each(config, xin(5, 3, 2), {5, 3, 1}, h0, c0)) {
    h += sum(result.h_n);
    c += sum(result.c_n);
  }
  CHECK(std::abs(h - -0.6269152155) < kTenDecimals);
  CHECK(std::abs(c - 0.1699904853) < kTenDecimals);
}

TEST_CASE("B63: projection, its shapes and sums") {
  Config config{Cell::lstm, 5, 6, 2, 4};
  config.bidirectional = true;
  const std::vector<Parameter> list = parameters(config);
  const auto shape = [&](const std::string& name) {
    for (const Parameter& parameter : list) {
      if (parameter.name == name) {
        return parameter.shape;
      }
    }
    throw std::runtime_error("no parameter " + name);
  };
  using Shape = std::vector<std::int64_t>;
  CHECK(shape("weight_hh_l0") == Shape{24, 4});
  CHECK(shape("weight_hr_l1_reverse") == Shape{4, 6});
  CHECK(shape("weight_ih_l1") == Shape{24, 8});

  const std::vector<Result> results = run_each(config, xin(4, 3, 5), {4, 2, 1});
  const Values y{1.9780641988, 1.0034382496, 0.3587383660};
  const Values h{0.8045952327, 1.5606789811, 0.2488619315};
  const Values c{1.2597609336, 1.2856188741, 0.4797973283};
  for (std::size_t n = 0; n < 3; ++n) {
    CHECK(std::abs(sum(results[n].y) - y[n]) < kTenDecimals);
    CHECK(std::abs(sum(results[n].h_n) - h[n]) < kTenDecimals);
    CHECK(std::abs(sum(results[n].c_n) - c[n]) < kTenDecimals);
  }
}

TEST_CASE("parameters have PyTorch's names in PyTorch's order") {
  const auto names = [](const Config& config) {
    std::string text;
    for (const Parameter& parameter : parameters(config)) {
      text += parameter.name + " ";
    }
    return text;
  };
  Config config{Cell::lstm, 5, 6, 1, 4};
  config.bidirectional = true;
  CHECK(names(config) ==
        "weight_ih_l0 weight_hh_l0 bias_ih_l0 bias_hh_l0 weight_hr_l0 weight_ih_l0_reverse "
        "weight_hh_l0_reverse bias_ih_l0_reverse bias_hh_l0_reverse weight_hr_l0_reverse ");
  config = {Cell::gru, 5, 6, 2};
  config.bias = false;
  CHECK(names(config) == "weight_ih_l0 weight_hh_l0 weight_ih_l1 weight_hh_l1 ");
}

TEST_CASE("no steps: the states come back as they went in") {
  for (Cell cell : kCells) {
    Config config{cell, 2, 1, 2};
    Sequence sequence;
    sequence.h0 = {0.25, -0.5};
    if (cell == Cell::lstm) {
      sequence.c0 = {2.0, 3.0};
    }
    const Result result = run(config, filled_parameters(config), sequence);
    CHECK(result.y.empty());
    CHECK(result.cells.empty());
    CHECK(result.h_n == sequence.h0);
    CHECK(result.c_n == sequence.c0);
    CHECK(run(config, filled_parameters(config), {}).h_n == Values{0.0, 0.0});
  }
}

TEST_CASE("two calls with the state carried over are one call") {
  for (Cell cell : kCells) {
    const Config config{cell, 3, 4, 2};
    const std::vector<Parameter> weights = filled_parameters(config);
    const Values x = xin(7, 1, 3);
    const Result whole = run(config, weights, {x, {}, {}});
    const Result first = run(config, weights, {Values(x.begin(), x.begin() + 6), {}, {}});
    const Result second =
        run(config, weights, {Values(x.begin() + 6, x.end()), first.h_n, first.c_n});
    Values y = first.y;
    y.insert(y.end(), second.y.begin(), second.y.end());
    CHECK(y == whole.y);
    CHECK(second.h_n == whole.h_n);
    CHECK(second.c_n == whole.c_n);
  }
}

TEST_CASE("a step of every cell state is the final state of the shorter sequence") {
  Config config{Cell::lstm, 3, 4, 2};
  const std::vector<Parameter> weights = filled_parameters(config);
  const Values x = xin(5, 1, 3);
  const Result whole = run(config, weights, {x, {}, {}});
  REQUIRE(whole.cells.size() == 2 * 5 * 4);
  for (std::size_t t = 0; t < 5; ++t) {
    const auto length = static_cast<std::ptrdiff_t>(3 * (t + 1));
    const Result cut = run(config, weights, {Values(x.begin(), x.begin() + length), {}, {}});
    for (std::size_t layer = 0; layer < 2; ++layer) {
      for (std::size_t u = 0; u < 4; ++u) {
        CHECK(whole.cells[(layer * 5 + t) * 4 + u] == cut.c_n[layer * 4 + u]);
      }
    }
  }
}

TEST_CASE("the reverse half is a forward layer on the reversed sequence") {
  for (Cell cell : kCells) {
    Config both{cell, 2, 3};
    both.bidirectional = true;
    const Config forward{cell, 2, 3};
    const std::vector<Parameter> weights = filled_parameters(both);
    std::vector<Parameter> reverse(weights.begin() + 4, weights.end());
    for (Parameter& parameter : reverse) {
      parameter.name.resize(parameter.name.size() - std::string("_reverse").size());
    }
    const Values x = xin(4, 1, 2);
    Values backwards;
    for (std::size_t t = 4; t-- > 0;) {
      backwards.insert(backwards.end(), {x[2 * t], x[2 * t + 1]});
    }
    const Result expected = run(forward, reverse, {backwards, {}, {}});
    const Result got = run(both, weights, {x, {}, {}});
    for (std::size_t t = 0; t < 4; ++t) {
      for (std::size_t u = 0; u < 3; ++u) {
        CHECK(got.y[t * 6 + 3 + u] == expected.y[(3 - t) * 3 + u]);
      }
    }
  }
}

TEST_CASE("NaN is not lost on the way, not even by relu") {
  for (Cell cell : kCells) {
    const Config config = small(cell);
    const Result result = run(config, constant_parameters(config, 0.5),
                              {{1.0, std::numeric_limits<double>::quiet_NaN(), 1.0}, {}, {}});
    CHECK_FALSE(std::isnan(result.y[0]));
    CHECK(std::isnan(result.y[1]));
    CHECK(std::isnan(result.y[2]));
  }
}

TEST_CASE("linear and column") {
  // [2, 3] weight, two rows: (1 2 3), (1 0 -1).
  CHECK(linear({1, 2, 3, 4, 5, 6}, {10, 20}, {1, 2, 3, 1, 0, -1}, 3, 2) == Values{24, 52, 8, 18});
  CHECK(linear({1, 2, 3, 4, 5, 6}, {}, {1, 2, 3}, 3, 2) == Values{14, 32});
  CHECK(linear({1, 2, 3, 4, 5, 6}, {}, {}, 3, 2).empty());
  CHECK(column({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, 2, 3, 1, 2) == Values{3, 4, 5, 9, 10, 11});
  CHECK(column({0, 1, 2, 3, 4, 5}, 2, 3, 0, 0).empty());
  CHECK_THROWS_AS(column({0, 1, 2, 3}, 2, 2, 2, 1), std::invalid_argument);
  CHECK_THROWS_AS(column({0, 1, 2, 3}, 2, 2, 0, 2), std::invalid_argument);
}

TEST_CASE("what does not fit is refused") {
  CHECK_THROWS_AS(parameters({Cell::gru, 3, 4, 1, 2}), std::invalid_argument);
  CHECK_THROWS_AS(parameters({Cell::lstm, 3, 4, 1, 4}), std::invalid_argument);
  CHECK_THROWS_AS(parameters({Cell::lstm, 0, 4}), std::invalid_argument);

  const Config config{Cell::gru, 3, 4};
  const std::vector<Parameter> weights = filled_parameters(config);
  CHECK_THROWS_AS(run(config, weights, {Values(4), {}, {}}), std::invalid_argument);
  CHECK_THROWS_AS(run(config, weights, {Values(3), Values(3), {}}), std::invalid_argument);
  CHECK_THROWS_AS(run(config, weights, {Values(3), {}, Values(4)}), std::invalid_argument);
  std::vector<Parameter> swapped = weights;
  std::swap(swapped[0], swapped[1]);
  CHECK(refusal(config, swapped) == "reference: parameter weight_hh_l0, expected weight_ih_l0");
  std::vector<Parameter> transposed = weights;
  transposed[0].shape = {3, 12};
  CHECK(refusal(config, transposed) == "reference: parameter weight_ih_l0 has the wrong shape");
  CHECK(refusal(config, {}) == "reference: 0 parameters, expected 4");
}

// --- tolerances ---

namespace {

double worst_difference(const Result& got, const Result& expected) {
  return std::max({difference(got.y, expected.y), difference(got.h_n, expected.h_n),
                   difference(got.c_n, expected.c_n), difference(got.cells, expected.cells)});
}

Sequence float_sequence(std::int64_t T, std::int64_t I) {
  Sequence sequence;
  sequence.x = xin(T, 1, I);
  round_to_float(std::span<double>(sequence.x));
  return sequence;
}

}  // namespace

TEST_CASE("f32 loops stay within the f32 tolerance, and not by far") {
  double least = 1.0;
  double most = 0.0;
  for (Cell cell : kCells) {
    for (std::int64_t H : {1, 3, 16, 64, 150}) {
      for (std::int64_t L : {1, 3}) {
        for (std::int64_t T : {1, 10, 100}) {
          for (bool bidirectional : {false, true}) {
            Config config{cell, H / 2 + 1, H, L, cell == Cell::lstm ? H / 4 : 0};
            config.bidirectional = bidirectional;
            if (H * L * T > 15000) {
              continue;
            }
            INFO("cell " << static_cast<int>(cell) << " H " << H << " L " << L << " T " << T);
            const std::vector<Parameter> weights = initial_parameters(config, 7);
            const Sequence sequence = float_sequence(T, config.input_size);
            const Result exact = run(config, weights, sequence);
            const double error = worst_difference(run_in_float(config, weights, sequence), exact);
            const double allowed = tolerance(kF32, work(config, T, exact.magnitude));
            CHECK(error <= allowed);
            if (H >= 16 && L == 1 && T <= 10) {
              least = std::min(least, error / allowed);
            }
            most = std::max(most, error / allowed);
          }
        }
      }
    }
  }
  // Exponential and tanh of the C library err by half a unit, where four are allowed.
  CAPTURE(least, most);
  CHECK(most < 0.5);
  CHECK(least > 0.005);
}

namespace {

// The part of one parameter's weights in which a relative error shows as more than `allowed`.
// Weights below 0.1 are left out: 1e-3 of almost nothing is not an error. So are those that no
// output depends on at all (relu).
double part_caught(const Config& config, const std::vector<Parameter>& weights, std::size_t p,
                   const Sequence& sequence, double relative, double allowed) {
  const Result exact = run(config, weights, sequence);
  double caught = 0.0;
  double tried = 0.0;
  for (std::size_t j = 0; j < weights[p].value.size(); ++j) {
    std::vector<Parameter> wrong = weights;
    wrong[p].value[j] *= 1.0 + relative;
    const double effect = worst_difference(run(config, wrong, sequence), exact);
    if (std::abs(weights[p].value[j]) < 0.1 || effect == 0.0) {
      continue;
    }
    tried += 1.0;
    caught += effect > allowed ? 1.0 : 0.0;
  }
  REQUIRE(tried > 0.0);
  return caught / tried;
}

}  // namespace

TEST_CASE("the tolerances catch a small error in a single weight") {
  for (Cell cell : kCells) {
    const Config config{cell, 8, 16};
    const std::int64_t T = 8;
    const std::vector<Parameter> weights = initial_parameters(config, 3);
    Sequence sequence = float_sequence(T, config.input_size);
    sequence.h0 = xin(1, 1, 16);
    if (cell == Cell::lstm) {
      sequence.c0 = xin(1, 1, 16);
    }
    const double magnitude = run(config, weights, sequence).magnitude;
    const double f32 = tolerance(kF32, work(config, T, magnitude));
    const double f64 = tolerance(kF64, work(config, T, magnitude));
    for (std::size_t p = 0; p < weights.size(); ++p) {
      INFO("cell " << static_cast<int>(cell) << " " << weights[p].name << " allowed " << f32);
      // Gates damp the effect of most weights to little more than what rounding does to f32.
      CHECK(part_caught(config, weights, p, sequence, 1e-3, f32) > 0.5);
      CHECK(part_caught(config, weights, p, sequence, 1e-2, f32) > 0.9);
      CHECK(part_caught(config, weights, p, sequence, 1e-9, f64) == 1.0);
    }
  }
}

TEST_CASE("the tolerance grows with what it is made of") {
  const Work base{64, 10, 1, 1.0};
  const double t = tolerance(kF32, base);
  CHECK(tolerance(kF32, {256, 10, 1, 1.0}) > t);
  CHECK(tolerance(kF32, {64, 40, 1, 1.0}) > t);
  CHECK(tolerance(kF32, {64, 10, 2, 1.0}) > t);
  CHECK(tolerance(kF32, {64, 10, 1, 2.0}) > t);
  CHECK(tolerance(kF64, base) == t * 0x1p-29);
  CHECK(tolerance(kF16, base) > t);
  CHECK(tolerance(kBf16, base) > tolerance(kF16, base));
  // In numbers, so that a slip in the formula is seen: about 1e-5 for f32 at modest sizes.
  CHECK(t > 1e-6);
  CHECK(t < 1e-5);

  const Config config{Cell::lstm, 10, 20, 2, 4};
  CHECK(work(config, 0, 1.0).steps == 1);
  CHECK(work(config, 5, 1.0).terms == 20);  // the projection's own sum is the longest here
  CHECK(work({Cell::gru, 10, 20, 2}, 5, 1.0).terms == 42);
}

// The reference's gradients: against central differences of its own results, for every cell and
// everything that a result depends on, and one worked out by hand.
#include <cmath>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/catch.hpp"
#include "tests/reference/fill.hpp"
#include "tests/reference/rnn.hpp"

namespace {

using namespace packrnn::reference;
using Values = std::vector<double>;

Values random_values(std::mt19937& generator, std::size_t count) {
  std::uniform_real_distribution<double> uniform(-1.0, 1.0);
  Values values(count);
  for (double& value : values) value = uniform(generator);
  return values;
}

double dot(const Values& a, const Values& b) {
  REQUIRE(a.size() == b.size());
  double sum = 0.0;
  for (std::size_t n = 0; n < a.size(); ++n) sum += a[n] * b[n];
  return sum;
}

double loss(const Config& config, const std::vector<Parameter>& parameters,
            const Sequence& sequence, const OutputGradients& by) {
  const Result result = run(config, parameters, sequence);
  return dot(result.y, by.y) + dot(result.h_n, by.h_n) + dot(result.c_n, by.c_n);
}

// Every number of `values`, which `evaluate` reads, moved up and down.
template <class Evaluate>
void check_differences(Values& values, const Values& gradient, Evaluate&& evaluate) {
  constexpr double kStep = 1e-5;
  REQUIRE(gradient.size() == values.size());
  for (std::size_t n = 0; n < values.size(); ++n) {
    const double kept = values[n];
    values[n] = kept + kStep;
    const double up = evaluate();
    values[n] = kept - kStep;
    const double down = evaluate();
    values[n] = kept;
    const double expected = (up - down) / (2.0 * kStep);
    // Truncation of kStep^2 and rounding of 1e-16 / kStep, both times something of order one.
    CHECK(std::abs(gradient[n] - expected) <= 1e-8 * (1.0 + std::abs(expected)));
  }
}

void check_gradients(const Config& config, std::size_t steps) {
  std::mt19937 generator(7);
  std::vector<Parameter> parameters = filled_parameters(config);
  const auto rows = static_cast<std::size_t>(config.num_layers * config.directions());
  const auto P = static_cast<std::size_t>(config.state_size());
  const auto H = static_cast<std::size_t>(config.hidden_size);
  const bool lstm = config.cell == Cell::lstm;
  Sequence sequence{random_values(generator, steps * static_cast<std::size_t>(config.input_size)),
                    random_values(generator, rows * P),
                    lstm ? random_values(generator, rows * H) : Values{}};
  const OutputGradients by{
      random_values(generator, steps * static_cast<std::size_t>(config.directions()) * P),
      random_values(generator, rows * P), lstm ? random_values(generator, rows * H) : Values{}};
  const Gradients got = gradients(config, parameters, sequence, by);
  const auto evaluate = [&] { return loss(config, parameters, sequence, by); };
  check_differences(sequence.x, got.x, evaluate);
  check_differences(sequence.h0, got.h0, evaluate);
  check_differences(sequence.c0, got.c0, evaluate);
  REQUIRE(got.parameters.size() == parameters.size());
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    CAPTURE(parameters[p].name);
    CHECK(got.parameters[p].name == parameters[p].name);
    CHECK(got.parameters[p].shape == parameters[p].shape);
    check_differences(parameters[p].value, got.parameters[p].value, evaluate);
  }
}

TEST_CASE("gradients of every cell are those of central differences") {
  const Cell cell =
      GENERATE(Cell::lstm, Cell::gru, Cell::gru_reset_before, Cell::rnn_tanh, Cell::rnn_relu);
  const bool bidirectional = GENERATE(false, true);
  Config config{.cell = cell, .input_size = 3, .hidden_size = 4, .num_layers = 2};
  config.bidirectional = bidirectional;
  CAPTURE(static_cast<int>(cell), bidirectional);
  check_gradients(config, 5);
  config.bias = false;
  check_gradients(config, 3);
}

TEST_CASE("gradients of an LSTM with projection are those of central differences") {
  check_gradients({.cell = Cell::lstm,
                   .input_size = 2,
                   .hidden_size = 5,
                   .num_layers = 2,
                   .proj_size = 3,
                   .bidirectional = true},
                  4);
}

TEST_CASE("a gradient worked out by hand: two steps of one tanh unit") {
  const Config config{.cell = Cell::rnn_tanh, .input_size = 1, .hidden_size = 1, .bias = false};
  std::vector<Parameter> parameters = packrnn::reference::parameters(config);
  const double w = 0.5, u = -0.3, x1 = 0.7, x2 = -1.1;
  parameters[0].value = {w};
  parameters[1].value = {u};
  const double h1 = std::tanh(w * x1), h2 = std::tanh(w * x2 + u * h1);
  const double d1 = 1 - h1 * h1, d2 = 1 - h2 * h2;
  const Gradients got = gradients(config, parameters, {{x1, x2}, {}, {}}, {{0.0, 1.0}, {}, {}});
  CHECK(got.parameters[0].value[0] == Approx(d2 * (x2 + u * d1 * x1)).epsilon(1e-12));
  CHECK(got.parameters[1].value[0] == Approx(d2 * h1).epsilon(1e-12));
  CHECK(got.x[0] == Approx(d2 * u * d1 * w).epsilon(1e-12));
  CHECK(got.x[1] == Approx(d2 * w).epsilon(1e-12));
  CHECK(got.h0.empty());
}

TEST_CASE("a sequence without steps passes gradients of its final state to its initial one") {
  const Config config{.cell = Cell::lstm, .input_size = 2, .hidden_size = 3};
  const Values h{0.1, 0.2, 0.3}, c{0.4, 0.5, 0.6}, dh{1, 2, 3}, dc{4, 5, 6};
  const Gradients got = gradients(config, filled_parameters(config), {{}, h, c}, {{}, dh, dc});
  CHECK(got.h0 == dh);
  CHECK(got.c0 == dc);
  for (const Parameter& parameter : got.parameters)
    for (const double value : parameter.value) CHECK(value == 0.0);
  CHECK_THROWS_AS(gradients(config, filled_parameters(config), {{}, h, c}, {{1.0}, {}, {}}),
                  std::invalid_argument);
}

}  // namespace

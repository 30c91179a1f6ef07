// Gradients of recurrent layers by a tape on any device, and the reference's, in one form.
#pragma once

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "packrnn/layers/tape.hpp"
#include "tests/layers/layer_fixture.hpp"

namespace packrnn::tests {

inline Doubles down(Context& context, const TensorView& tensor) {
  return doubles_of(context.to_host(tensor));
}

/// d loss / d results, as a batch has results: y of each sequence, h_n and c_n of each.
inline std::vector<ref::OutputGradients> random_upstream(const ref::Config& config,
                                                         const Counts& lengths, unsigned seed = 9) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<double> uniform(-1.0, 1.0);
  const auto values = [&](std::int64_t count) {
    Doubles result(static_cast<std::size_t>(count));
    for (double& value : result) value = static_cast<float>(uniform(generator));
    return result;
  };
  const std::int64_t rows = config.num_layers * config.directions();
  std::vector<ref::OutputGradients> list;
  for (const std::int64_t length : lengths)
    list.push_back(
        {values(length * config.directions() * config.state_size()),
         values(rows * config.state_size()),
         config.cell == ref::Cell::lstm ? values(rows * config.hidden_size) : Doubles()});
  return list;
}

/// As tensors: upstream sequences are written as if they were inputs and states.
struct Upstream {
  PackedSequence y;
  State state;
};
inline Upstream upstream_of(const ref::Config& config, const std::vector<ref::OutputGradients>& by,
                            Dtype dtype) {
  ref::Config shaped = config;
  shaped.input_size = config.directions() * config.state_size();
  Batch batch;
  for (const ref::OutputGradients& one : by) batch.push_back({one.y, one.h_n, one.c_n});
  return {packed_of(shaped, batch, dtype), state_of(shaped, batch, dtype)};
}

/// Everything that a backward gives.
struct AllGradients {
  std::vector<Doubles> parameters;
  Doubles x, h_0, c_0;  // x packed
};

enum class LossOf { all, h_only, c_only, y_only };

inline AllGradients tape_gradients(Context& context, Recurrent& layer, const ref::Config& config,
                                   const Batch& batch, const std::vector<ref::OutputGradients>& by,
                                   LossOf loss = LossOf::all, const TapeOptions& options = {}) {
  const Dtype dtype = layer.config().dtype;
  layer.parameters().to(context);
  layer.parameters().zero_gradients();
  Tape tape(context, options);
  const PackedVariable x = tape.input(host::up(context, packed_of(config, batch, dtype)));
  State given = to_device(context, state_of(config, batch, dtype));
  StateVariable state;
  if (given.h.defined()) state.h = tape.input(std::move(given.h));
  if (given.c.defined()) state.c = tape.input(std::move(given.c));
  const PackedOutputVariable out = layer.forward(tape, x, state);
  const Upstream wanted = upstream_of(config, by, dtype);
  const PackedSequence dy = host::up(context, wanted.y);
  const State d_state = to_device(context, wanted.state);
  std::vector<Tape::Start> starts;
  if (loss == LossOf::all || loss == LossOf::y_only) starts.push_back({out.output.data, dy.data()});
  if (loss == LossOf::all || loss == LossOf::h_only) starts.push_back({out.state.h, d_state.h});
  if (out.state.c.defined() && (loss == LossOf::all || loss == LossOf::c_only))
    starts.push_back({out.state.c, d_state.c});
  tape.backward(starts);
  AllGradients result;
  for (std::int64_t i = 0; i < layer.parameters().count(); ++i)
    result.parameters.push_back(down(context, layer.parameters().gradient(i)));
  const auto gradient = [&](const Variable& variable) {
    return variable.defined() && variable.gradient().defined() ? down(context, variable.gradient())
                                                               : Doubles();
  };
  result.x = gradient(x.data);
  result.h_0 = gradient(state.h);
  result.c_0 = gradient(state.c);
  return result;
}

/// The same from the reference: sequences alone, parameters summed over them.
inline AllGradients reference_gradients(const ref::Config& config,
                                        const std::vector<ref::Parameter>& parameters,
                                        const Batch& batch, std::vector<ref::OutputGradients> by,
                                        LossOf loss = LossOf::all) {
  AllGradients sum;
  for (const ref::Parameter& parameter : parameters)
    sum.parameters.emplace_back(parameter.value.size(), 0.0);
  Batch as_batch;
  for (std::size_t n = 0; n < batch.size(); ++n) {
    if (loss == LossOf::h_only || loss == LossOf::c_only) by[n].y = {};
    if (loss == LossOf::y_only || loss == LossOf::c_only) by[n].h_n = {};
    if (loss == LossOf::y_only || loss == LossOf::h_only) by[n].c_n = {};
    const ref::Gradients one = ref::gradients(config, parameters, batch[n], by[n]);
    for (std::size_t p = 0; p < parameters.size(); ++p)
      for (std::size_t j = 0; j < sum.parameters[p].size(); ++j)
        sum.parameters[p][j] += one.parameters[p].value[j];
    as_batch.push_back({one.x, one.h0, one.c0});
  }
  sum.x = doubles_of(packed_of(config, as_batch, Dtype::f64).data());
  const State state = state_of(config, as_batch, Dtype::f64);
  if (state.h.defined()) sum.h_0 = doubles_of(state.h);
  if (state.c.defined()) sum.c_0 = doubles_of(state.c);
  return sum;
}

/// The largest difference in units of the largest expected entry; NaN is infinite.
inline double difference(const Doubles& got, const Doubles& expected) {
  REQUIRE(got.size() == expected.size());
  double worst = 0.0, scale = 1e-300;
  for (const double value : expected) scale = std::max(scale, std::abs(value));
  for (std::size_t j = 0; j < got.size(); ++j) {
    const double error = std::abs(got[j] - expected[j]);
    worst = std::isnan(error) ? INFINITY : std::max(worst, error);
  }
  return worst / std::max(scale, 1.0);
}

inline double difference(const AllGradients& got, const AllGradients& expected) {
  double worst = std::max({difference(got.x, expected.x), difference(got.h_0, expected.h_0),
                           difference(got.c_0, expected.c_0)});
  REQUIRE(got.parameters.size() == expected.parameters.size());
  for (std::size_t p = 0; p < got.parameters.size(); ++p)
    worst = std::max(worst, difference(got.parameters[p], expected.parameters[p]));
  return worst;
}

inline bool equal(const AllGradients& a, const AllGradients& b) {
  return a.parameters == b.parameters && a.x == b.x && a.h_0 == b.h_0 && a.c_0 == b.c_0;
}

// Gradients pass through the network twice, forward and back, and are sums over all tokens; both
// walks of rounding errors are those of tolerance.hpp with twice the steps, and the sum over tokens
// adds theirs as a walk again.
inline double allowed(const ref::Config& config, Dtype dtype, const Counts& lengths) {
  const std::int64_t steps = std::max<std::int64_t>(1, *std::ranges::max_element(lengths));
  const double tokens = std::max(1.0, sum(Doubles(lengths.begin(), lengths.end())));
  return ref::tolerance(precision_of(dtype), ref::work(config, 2 * steps, 4.0)) * std::sqrt(tokens);
}

}  // namespace packrnn::tests

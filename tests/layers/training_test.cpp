// Recurrent layers on a tape: gradients against the reference's, against PyTorch's files, and what
// docs/known-failures.md tells of backward passes elsewhere.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "packrnn/layers/tape.hpp"
#include "tests/golden/golden.hpp"
#include "tests/layers/layer_fixture.hpp"

using namespace packrnn;
using namespace packrnn::tests;

namespace {

constexpr Dtype kF64 = Dtype::f64;
const std::string kFolder = PACKRNN_SOURCE_DIR "/tests/golden";

/// d loss / d results, as a batch has results: y of each sequence, h_n and c_n of each.
std::vector<ref::OutputGradients> random_upstream(const ref::Config& config, const Counts& lengths,
                                                  unsigned seed = 9) {
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
Upstream upstream_of(const ref::Config& config, const std::vector<ref::OutputGradients>& by,
                     Dtype dtype) {
  ref::Config shaped = config;
  shaped.input_size = config.directions() * config.state_size();
  Batch batch;
  for (const ref::OutputGradients& one : by) batch.push_back({one.y, one.h_n, one.c_n});
  return {packed_of(shaped, batch, dtype), state_of(shaped, batch, dtype)};
}

/// Everything that a backward gives.
struct Result {
  std::vector<Doubles> parameters;
  Doubles x, h_0, c_0;  // x packed
};

enum class Loss { all, h_only, c_only, y_only };

Result train(Context& context, Recurrent& layer, const ref::Config& config, const Batch& batch,
             const std::vector<ref::OutputGradients>& by, Loss loss = Loss::all,
             const TapeOptions& options = {}) {
  const Dtype dtype = layer.config().dtype;
  layer.parameters().zero_gradients();
  Tape tape(context, options);
  const PackedVariable x = tape.input(packed_of(config, batch, dtype));
  State given = state_of(config, batch, dtype);
  StateVariable state;
  if (given.h.defined()) state.h = tape.input(std::move(given.h));
  if (given.c.defined()) state.c = tape.input(std::move(given.c));
  const PackedOutputVariable out = layer.forward(tape, x, state);
  const Upstream up = upstream_of(config, by, dtype);
  std::vector<Tape::Start> starts;
  if (loss == Loss::all || loss == Loss::y_only) starts.push_back({out.output.data, up.y.data()});
  if (loss == Loss::all || loss == Loss::h_only) starts.push_back({out.state.h, up.state.h});
  if (out.state.c.defined() && (loss == Loss::all || loss == Loss::c_only))
    starts.push_back({out.state.c, up.state.c});
  tape.backward(starts);
  Result result;
  for (std::int64_t i = 0; i < layer.parameters().count(); ++i)
    result.parameters.push_back(doubles_of(layer.parameters().gradient(i)));
  const auto gradient = [](const Variable& variable) {
    return variable.defined() && variable.gradient().defined() ? doubles_of(variable.gradient())
                                                               : Doubles();
  };
  result.x = gradient(x.data);
  result.h_0 = gradient(state.h);
  result.c_0 = gradient(state.c);
  return result;
}

/// The same from the reference: sequences alone, parameters summed over them.
Result expected(const ref::Config& config, const std::vector<ref::Parameter>& parameters,
                const Batch& batch, std::vector<ref::OutputGradients> by, Loss loss = Loss::all) {
  Result sum;
  for (const ref::Parameter& parameter : parameters)
    sum.parameters.emplace_back(parameter.value.size(), 0.0);
  Batch as_batch;
  for (std::size_t n = 0; n < batch.size(); ++n) {
    if (loss == Loss::h_only || loss == Loss::c_only) by[n].y = {};
    if (loss == Loss::y_only || loss == Loss::c_only) by[n].h_n = {};
    if (loss == Loss::y_only || loss == Loss::h_only) by[n].c_n = {};
    const ref::Gradients one = ref::gradients(config, parameters, batch[n], by[n]);
    for (std::size_t p = 0; p < parameters.size(); ++p)
      for (std::size_t j = 0; j < sum.parameters[p].size(); ++j)
        sum.parameters[p][j] += one.parameters[p].value[j];
    as_batch.push_back({one.x, one.h0, one.c0});
  }
  sum.x = doubles_of(packed_of(config, as_batch, kF64).data());
  const State state = state_of(config, as_batch, kF64);
  if (state.h.defined()) sum.h_0 = doubles_of(state.h);
  if (state.c.defined()) sum.c_0 = doubles_of(state.c);
  return sum;
}

/// The largest difference in units of the largest expected entry; NaN is infinite.
double difference(const Doubles& got, const Doubles& expected) {
  REQUIRE(got.size() == expected.size());
  double worst = 0.0, scale = 1e-300;
  for (const double value : expected) scale = std::max(scale, std::abs(value));
  for (std::size_t j = 0; j < got.size(); ++j) {
    const double error = std::abs(got[j] - expected[j]);
    worst = std::isnan(error) ? INFINITY : std::max(worst, error);
  }
  return worst / std::max(scale, 1.0);
}

double difference(const Result& got, const Result& expected) {
  double worst = std::max({difference(got.x, expected.x), difference(got.h_0, expected.h_0),
                           difference(got.c_0, expected.c_0)});
  REQUIRE(got.parameters.size() == expected.parameters.size());
  for (std::size_t p = 0; p < got.parameters.size(); ++p)
    worst = std::max(worst, difference(got.parameters[p], expected.parameters[p]));
  return worst;
}

bool equal(const Result& a, const Result& b) {
  return a.parameters == b.parameters && a.x == b.x && a.h_0 == b.h_0 && a.c_0 == b.c_0;
}

// Gradients pass through the network twice, forward and back, and are sums over all tokens; both
// walks of rounding errors are those of tolerance.hpp with twice the steps, and the sum over tokens
// adds theirs as a walk again.
double allowed(const ref::Config& config, Dtype dtype, const Counts& lengths) {
  const std::int64_t steps = std::max<std::int64_t>(1, *std::ranges::max_element(lengths));
  const double tokens = std::max(1.0, sum(Doubles(lengths.begin(), lengths.end())));
  return ref::tolerance(precision_of(dtype), ref::work(config, 2 * steps, 4.0)) * std::sqrt(tokens);
}

}  // namespace

TEST_CASE("packed gradients are the sums over sequences alone") {
  const Kind kind = GENERATE(from_range(kKinds));
  const bool bidirectional = GENERATE(false, true);
  const std::int64_t layers = GENERATE(1, 2);
  PACKRNN_ONE_IN(2);
  const ref::Config config = config_of(kind, 3, 5, layers, bidirectional);
  CAPTURE(describe(config));
  const Counts lengths{4, 0, 7, 1, 4};
  const Batch batch = random_batch(config, lengths);
  const auto by = random_upstream(config, lengths);
  const std::vector<ref::Parameter> parameters = random_parameters(config);
  const Result right = expected(config, parameters, batch, by);
  for (const Dtype dtype : {Dtype::f64, Dtype::f32}) {
    CAPTURE(packrnn::name_of(dtype));
    Recurrent layer = make_layer(config, parameters, {.dtype = dtype});
    Context context(Device::cpu(), {.threads = 1});
    const Result got = train(context, layer, config, batch, by);
    CHECK(difference(got, right) <= allowed(config, dtype, lengths));
    for (const int threads : {2, 3}) {
      Context team(Device::cpu(), {.threads = threads});
      CHECK(equal(train(team, layer, config, batch, by), got));
    }
  }
}

TEST_CASE("gradients are those of PyTorch's files") {
  const std::vector<golden::File> files = golden::gradient_files(kFolder);
  CHECK(files.size() == 20);
  for (const golden::File& right : files) {
    CAPTURE(right.name);
    const golden::File file = golden::read(
        kFolder + "/" + right.name.substr(std::string("gradients_").size()) + ".safetensors");
    static const std::map<std::string, Kind> kinds{{"lstm", Kind::lstm},
                                                   {"gru", Kind::gru},
                                                   {"rnn_tanh", Kind::rnn_tanh},
                                                   {"rnn_relu", Kind::rnn_relu}};
    ref::Config config = config_of(kinds.at(file.text("cell")), file.number("input_size"),
                                   file.number("hidden_size"), file.number("num_layers"),
                                   file.flag("bidirectional"));
    config.proj_size = file.number("proj_size");
    std::vector<ref::Parameter> parameters = ref::parameters(config);
    for (ref::Parameter& parameter : parameters) parameter.value = file.at(parameter.name).value;
    const Counts lengths = file.lengths();
    const Doubles c_0 = file.has("c0") ? file.at("c0").value : Doubles();
    const Batch batch =
        batch_from(config, file.at("input").value, lengths, file.at("h0").value, c_0);
    ref::Config shaped = config;
    shaped.input_size = config.directions() * config.state_size();
    std::vector<ref::OutputGradients> by;
    for (ref::Sequence& one :
         batch_from(shaped, right.at("by.output").value, lengths, right.at("by.h_n").value,
                    file.has("c0") ? right.at("by.c_n").value : Doubles()))
      by.push_back({std::move(one.x), std::move(one.h0), std::move(one.c0)});
    Recurrent layer = make_layer(config, parameters, {.dtype = kF64});
    Context context(Device::cpu(), {.threads = 1});
    const Result got = train(context, layer, config, batch, by);
    for (std::size_t p = 0; p < parameters.size(); ++p)
      CHECK(difference(got.parameters[p], right.at(parameters[p].name).value) <= 1e-12);
    CHECK(difference(got.h_0, right.at("h0").value) <= 1e-12);
    if (!c_0.empty()) CHECK(difference(got.c_0, right.at("c0").value) <= 1e-12);
    const Batch inputs = batch_from(config, right.at("input").value, lengths);
    CHECK(difference(got.x, doubles_of(packed_of(config, inputs, kF64).data())) <= 1e-12);
  }
}

TEST_CASE("B44: a loss of some results only") {
  const ref::Config config = config_of(Kind::lstm, 3, 4, 2, true);
  const Counts lengths{5, 3, 1};
  const Batch batch = random_batch(config, lengths);
  const auto by = random_upstream(config, lengths);
  const std::vector<ref::Parameter> parameters = random_parameters(config);
  Recurrent layer = make_layer(config, parameters, {.dtype = kF64});
  Context context(Device::cpu(), {.threads = 1});
  for (const Loss loss : {Loss::h_only, Loss::c_only, Loss::y_only})
    CHECK(difference(train(context, layer, config, batch, by, loss),
                     expected(config, parameters, batch, by, loss)) <= 1e-12);
}

TEST_CASE("B42: NaN in the gradient of padding and in padded input reaches nothing") {
  const ref::Config config = config_of(Kind::lstm, 3, 4, 2, true);
  const Counts lengths{6, 3, 1};
  const Batch batch = random_batch(config, lengths, 1, false);
  Recurrent layer = make_layer(config, random_parameters(config), {.dtype = kF64});
  Context context(Device::cpu(), {.threads = 1});
  std::vector<Doubles> gradients;
  for (const double padding :
       {0.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    layer.parameters().zero_gradients();
    Tape tape(context);
    const PackedOutputVariable out = layer.forward(
        tape,
        pack_padded_sequence(context, padded_of(config, batch, kF64, 6, false, padding), lengths));
    // The gradient of the padded output, packed again as a padding op's backward does.
    const Tensor ones = Tensor::from(Doubles(10 * 8, 1.0), {10, 8});
    tape.backward({{out.output.data, ones}});
    gradients.push_back(doubles_of(layer.parameters().gradients()));
  }
  CHECK(gradients[1] == gradients[0]);
  CHECK(gradients[2] == gradients[0]);
}

TEST_CASE("B49: the two biases of every layer have equal gradients where they are one sum") {
  for (const Kind kind : kKinds) {
    if (kind == Kind::gru_reset_before) continue;
    const ref::Config config = config_of(kind, 3, 4, 3, true);
    const Counts lengths{5, 2};
    Recurrent layer = make_layer(config, random_parameters(config), {.dtype = kF64});
    Context context(Device::cpu(), {.threads = 1});
    train(context, layer, config, random_batch(config, lengths), random_upstream(config, lengths));
    for (std::int64_t l = 0; l < 3; ++l)
      for (const char* direction : {"", "_reverse"}) {
        const std::string end = "_l" + std::to_string(l) + direction;
        CAPTURE(describe(config), end);
        Doubles ih = doubles_of(layer.parameters().gradient("bias_ih" + end));
        Doubles hh = doubles_of(layer.parameters().gradient("bias_hh" + end));
        CHECK(std::ranges::any_of(ih, [](double value) { return value != 0.0; }));
        if (kind == Kind::gru) {
          CHECK(ih != hh);
          ih.resize(2 * 4);
          hh.resize(2 * 4);
        }
        CHECK(ih == hh);
      }
  }
}

TEST_CASE("B53: backward once per tape; interleaved tapes do not meet; gradients accumulate") {
  const ref::Config config = config_of(Kind::gru, 3, 4, 2);
  const Counts lengths{4, 2};
  Recurrent layer = make_layer(config, random_parameters(config), {.dtype = kF64});
  Context context(Device::cpu(), {.threads = 1});
  const Tensor ones = Tensor::from(Doubles(6 * 4, 1.0), {6, 4});
  const auto record = [&](Tape& tape, unsigned seed) {
    return layer.forward(tape, packed_of(config, random_batch(config, lengths, seed, false), kF64))
        .output.data;
  };
  const auto one = [&](unsigned seed) {
    layer.parameters().zero_gradients();
    Tape tape(context);
    const Variable y = record(tape, seed);
    tape.backward({{y, ones}});
    CHECK(tape.used());
    CHECK_THROWS_AS(tape.backward({{y, ones}}), InvalidArgument);
    CHECK_THROWS_AS(record(tape, seed), InvalidArgument);
    return doubles_of(layer.parameters().gradients());
  };
  const Doubles a = one(1), b = one(2);
  CHECK(a == one(1));
  layer.parameters().zero_gradients();
  Tape tape_a(context), tape_b(context);
  const Variable y_a = record(tape_a, 1), y_b = record(tape_b, 2);
  tape_b.backward({{y_b, ones}});
  CHECK(doubles_of(layer.parameters().gradients()) == b);
  tape_a.backward({{y_a, ones}});
  Doubles both = doubles_of(layer.parameters().gradients());
  for (std::size_t j = 0; j < both.size(); ++j)
    CHECK(both[j] == Approx(a[j] + b[j]).epsilon(1e-12).margin(1e-14));
}

TEST_CASE("B56: the backward uses the forward's dropout masks") {
  const Kind kind = GENERATE(Kind::lstm, Kind::gru);
  const bool bidirectional = GENERATE(false, true);
  const ref::Config config = config_of(kind, 4, 4, 3, bidirectional);
  const Counts lengths{3, 2};
  const Batch batch = random_batch(config, lengths);
  const auto by = random_upstream(config, lengths);
  Recurrent layer = make_layer(config, random_parameters(config), {.dtype = kF64, .dropout = 0.5});
  Context context(Device::cpu(), {.threads = 1, .seed = 5});
  const auto gradients = [&](bool training) {
    context.random().reseed(5);
    return train(context, layer, config, batch, by, Loss::all, {.training = training});
  };
  const Result got = gradients(true);
  CHECK(equal(gradients(true), got));
  const Result evaluated = gradients(false);
  CHECK_FALSE(equal(evaluated, got));
  CHECK(difference(evaluated, expected(config, random_parameters(config), batch, by)) <= 1e-12);

  // Central differences along the first input, with the seed set again before each evaluation.
  const Upstream up = upstream_of(config, by, kF64);
  const auto loss_at = [&](std::size_t j, double step) {
    context.random().reseed(5);
    PackedSequence x = packed_of(config, batch, kF64);
    x.data_span().values<double>()[j] += step;
    const State state = state_of(config, batch, kF64);
    const PackedOutput out = layer.forward(context, x, {.state = state, .training = true});
    const auto dot = [](const TensorView& a, const TensorView& b) {
      const Doubles left = doubles_of(a), right = doubles_of(b);
      double total = 0.0;
      for (std::size_t i = 0; i < left.size(); ++i) total += left[i] * right[i];
      return total;
    };
    double total = dot(out.output.data(), up.y.data()) + dot(out.state.h, up.state.h);
    if (out.state.c.defined()) total += dot(out.state.c, up.state.c);
    return total;
  };
  for (std::size_t j = 0; j < got.x.size(); ++j) {
    constexpr double kStep = 1e-5;
    const double slope = (loss_at(j, kStep) - loss_at(j, -kStep)) / (2 * kStep);
    CHECK(got.x[j] == Approx(slope).epsilon(1e-6).margin(1e-8));
  }
}

TEST_CASE("truncated back-propagation: a detached state carries values, not gradients") {
  const ref::Config config = config_of(Kind::lstm, 3, 4);
  const Counts lengths{6, 6};
  const Batch whole = random_batch(config, lengths);
  const std::vector<ref::Parameter> parameters = random_parameters(config);
  Recurrent layer = make_layer(config, parameters, {.dtype = kF64});
  Context context(Device::cpu(), {.threads = 1});
  Batch second;
  for (const ref::Sequence& sequence : whole) second.push_back(steps_of(config, sequence, 3, 6));
  for (std::size_t n = 0; n < whole.size(); ++n) {
    const ref::Result first = ref::run(config, parameters, steps_of(config, whole[n], 0, 3));
    second[n].h0 = first.h_n;
    second[n].c0 = first.c_n;
  }
  Batch first;
  for (const ref::Sequence& sequence : whole) first.push_back(steps_of(config, sequence, 0, 3));
  Tape tape(context, {.training = false});
  const State given = state_of(config, first, kF64);
  const PackedOutputVariable before =
      layer.forward(tape, packed_of(config, first, kF64),
                    {tape.constant(given.h.clone()), tape.constant(given.c.clone())});
  Tape next(context);
  const PackedOutputVariable after =
      layer.forward(next, packed_of(config, second, kF64), before.state.detach());
  const auto by = random_upstream(config, {3, 3});
  next.backward({{after.output.data, upstream_of(config, by, kF64).y.data()}});
  const Result right = expected(config, parameters, second, by, Loss::y_only);
  for (std::int64_t i = 0; i < layer.parameters().count(); ++i)
    CHECK(difference(doubles_of(layer.parameters().gradient(i)),
                     right.parameters[static_cast<std::size_t>(i)]) <= 1e-12);
}

TEST_CASE("parameters that are not trainable get no gradient; inputs still do") {
  const ref::Config config = config_of(Kind::gru, 3, 4);
  const Counts lengths{4, 2};
  const Batch batch = random_batch(config, lengths);
  const auto by = random_upstream(config, lengths);
  Recurrent layer = make_layer(config, random_parameters(config), {.dtype = kF64});
  Context context(Device::cpu(), {.threads = 1});
  const Result all = train(context, layer, config, batch, by);
  layer.parameters().set_trainable(false);
  const Result frozen = train(context, layer, config, batch, by);
  CHECK(frozen.x == all.x);
  CHECK(frozen.h_0 == all.h_0);
  for (const Doubles& gradient : frozen.parameters)
    for (const double value : gradient) CHECK(value == 0.0);

  Tape tape(context);
  const PackedOutputVariable out = layer.forward(tape, packed_of(config, batch, kF64));
  CHECK_FALSE(out.output.data.needs_gradient());
  check_refused("nothing to differentiate",
                [&] {
                  tape.backward({{out.output.data, Tensor::zeros({6, 4}, kF64)}});
                },
                {"depends on nothing"});
}

TEST_CASE("states with the batch first have gradients with the batch first") {
  const ref::Config config = config_of(Kind::lstm, 3, 4, 2, true);
  const Counts lengths{4, 2, 3};
  const Batch batch = random_batch(config, lengths);
  const auto by = random_upstream(config, lengths);
  const std::vector<ref::Parameter> parameters = random_parameters(config);
  Recurrent layer = make_layer(config, parameters, {.dtype = kF64});
  Context context(Device::cpu(), {.threads = 1});
  Tape tape(context);
  State given = state_of(config, batch, kF64, true);
  const StateVariable state{tape.input(std::move(given.h)), tape.input(std::move(given.c))};
  const PackedOutputVariable out = layer.forward(tape, packed_of(config, batch, kF64), state, true);
  CHECK(out.state.h.shape() == Shape{3, 4, 4});
  Batch ups;
  for (const ref::OutputGradients& one : by) ups.push_back({{}, one.h_n, one.c_n});
  const State up = state_of(config, ups, kF64, true);
  tape.backward({{out.state.h, up.h}, {out.state.c, up.c}});
  std::vector<ref::OutputGradients> states_only = by;
  for (ref::OutputGradients& one : states_only) one.y = {};
  Batch right;
  for (std::size_t n = 0; n < batch.size(); ++n) {
    const ref::Gradients one = ref::gradients(config, parameters, batch[n], states_only[n]);
    right.push_back({{}, one.h0, one.c0});
  }
  const State gradients = state_of(config, right, kF64, true);
  CHECK(difference(doubles_of(state.h.gradient()), doubles_of(gradients.h)) <= 1e-12);
  CHECK(difference(doubles_of(state.c.gradient()), doubles_of(gradients.c)) <= 1e-12);
}

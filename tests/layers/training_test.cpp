// Recurrent layers on a tape: gradients against the reference's, against PyTorch's files, and what
// docs/known-failures.md tells of backward passes elsewhere.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/golden/golden.hpp"
#include "tests/layers/training_fixture.hpp"

using namespace packrnn;
using namespace packrnn::tests;
using host::up;

namespace {

constexpr Dtype kF64 = Dtype::f64;
const std::string kFolder = PACKRNN_SOURCE_DIR "/tests/golden";

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
  const AllGradients right = reference_gradients(config, parameters, batch, by);
  for (const Dtype dtype : {Dtype::f64, Dtype::f32}) {
    CAPTURE(packrnn::name_of(dtype));
    Recurrent layer = make_layer(config, parameters, {.dtype = dtype});
    Context context = test_context();
    const AllGradients got = tape_gradients(context, layer, config, batch, by);
    CHECK(difference(got, right) <= allowed(config, dtype, lengths));
    for (const int threads : {2, 3}) {
      if (on_device()) break;
      Context team = test_context(threads);
      CHECK(equal(tape_gradients(team, layer, config, batch, by), got));
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
    Context context = test_context();
    const AllGradients got = tape_gradients(context, layer, config, batch, by);
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
  Context context = test_context();
  for (const LossOf loss : {LossOf::h_only, LossOf::c_only, LossOf::y_only})
    CHECK(difference(tape_gradients(context, layer, config, batch, by, loss),
                     reference_gradients(config, parameters, batch, by, loss)) <= 1e-12);
}

TEST_CASE("B42: NaN in the gradient of padding and in padded input reaches nothing") {
  const ref::Config config = config_of(Kind::lstm, 3, 4, 2, true);
  const Counts lengths{6, 3, 1};
  const Batch batch = random_batch(config, lengths, 1, false);
  Recurrent layer = make_layer(config, random_parameters(config), {.dtype = kF64});
  Context context = test_context();
  std::vector<Doubles> gradients;
  for (const double padding :
       {0.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    layer.parameters().to(context);
    layer.parameters().zero_gradients();
    Tape tape(context);
    const Tensor padded = context.to_device(padded_of(config, batch, kF64, 6, false, padding));
    const PackedOutputVariable out =
        layer.forward(tape, pack_padded_sequence(context, padded, lengths));
    // The gradient of the padded output, packed again as a padding op's backward does.
    const Tensor ones = context.to_device(Tensor::from(Doubles(10 * 8, 1.0), {10, 8}));
    tape.backward({{out.output.data, ones}});
    gradients.push_back(down(context, layer.parameters().gradients()));
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
    Context context = test_context();
    tape_gradients(context, layer, config, random_batch(config, lengths),
                   random_upstream(config, lengths));
    for (std::int64_t l = 0; l < 3; ++l)
      for (const char* direction : {"", "_reverse"}) {
        const std::string end = "_l" + std::to_string(l) + direction;
        CAPTURE(describe(config), end);
        Doubles ih = down(context, layer.parameters().gradient("bias_ih" + end));
        Doubles hh = down(context, layer.parameters().gradient("bias_hh" + end));
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
  Context context = test_context();
  layer.parameters().to(context);
  const Tensor ones = context.to_device(Tensor::from(Doubles(6 * 4, 1.0), {6, 4}));
  const auto record = [&](Tape& tape, unsigned seed) {
    const Batch batch = random_batch(config, lengths, seed, false);
    return layer.forward(tape, up(context, packed_of(config, batch, kF64))).output.data;
  };
  const auto one = [&](unsigned seed) {
    layer.parameters().zero_gradients();
    Tape tape(context);
    const Variable y = record(tape, seed);
    tape.backward({{y, ones}});
    CHECK(tape.used());
    CHECK_THROWS_AS(tape.backward({{y, ones}}), InvalidArgument);
    CHECK_THROWS_AS(record(tape, seed), InvalidArgument);
    return down(context, layer.parameters().gradients());
  };
  const Doubles a = one(1), b = one(2);
  CHECK(a == one(1));
  layer.parameters().zero_gradients();
  Tape tape_a(context), tape_b(context);
  const Variable y_a = record(tape_a, 1), y_b = record(tape_b, 2);
  tape_b.backward({{y_b, ones}});
  CHECK(down(context, layer.parameters().gradients()) == b);
  tape_a.backward({{y_a, ones}});
  Doubles both = down(context, layer.parameters().gradients());
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
  Context context = test_context();
  const auto gradients = [&](bool training) {
    context.random().reseed(5);
    return tape_gradients(context, layer, config, batch, by, LossOf::all, {.training = training});
  };
  const AllGradients got = gradients(true);
  CHECK(equal(gradients(true), got));
  const AllGradients evaluated = gradients(false);
  CHECK_FALSE(equal(evaluated, got));
  CHECK(difference(evaluated, reference_gradients(config, random_parameters(config), batch, by)) <=
        1e-12);

  // Central differences along the first input, with the seed set again before each evaluation.
  if (on_device()) return;
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
  Context context = test_context();
  Batch second;
  for (const ref::Sequence& sequence : whole) second.push_back(steps_of(config, sequence, 3, 6));
  for (std::size_t n = 0; n < whole.size(); ++n) {
    const ref::Result first = ref::run(config, parameters, steps_of(config, whole[n], 0, 3));
    second[n].h0 = first.h_n;
    second[n].c0 = first.c_n;
  }
  Batch first;
  for (const ref::Sequence& sequence : whole) first.push_back(steps_of(config, sequence, 0, 3));
  layer.parameters().to(context);
  Tape tape(context, {.training = false});
  State given = to_device(context, state_of(config, first, kF64));
  const PackedOutputVariable before =
      layer.forward(tape, up(context, packed_of(config, first, kF64)),
                    {tape.constant(std::move(given.h)), tape.constant(std::move(given.c))});
  Tape next(context);
  const PackedOutputVariable after =
      layer.forward(next, up(context, packed_of(config, second, kF64)), before.state.detach());
  const auto by = random_upstream(config, {3, 3});
  const PackedSequence dy = up(context, upstream_of(config, by, kF64).y);
  next.backward({{after.output.data, dy.data()}});
  const AllGradients right = reference_gradients(config, parameters, second, by, LossOf::y_only);
  for (std::int64_t i = 0; i < layer.parameters().count(); ++i)
    CHECK(difference(down(context, layer.parameters().gradient(i)),
                     right.parameters[static_cast<std::size_t>(i)]) <= 1e-12);
}

TEST_CASE("parameters that are not trainable get no gradient; inputs still do") {
  const ref::Config config = config_of(Kind::gru, 3, 4);
  const Counts lengths{4, 2};
  const Batch batch = random_batch(config, lengths);
  const auto by = random_upstream(config, lengths);
  Recurrent layer = make_layer(config, random_parameters(config), {.dtype = kF64});
  Context context = test_context();
  const AllGradients all = tape_gradients(context, layer, config, batch, by);
  layer.parameters().set_trainable(false);
  const AllGradients frozen = tape_gradients(context, layer, config, batch, by);
  CHECK(frozen.x == all.x);
  CHECK(frozen.h_0 == all.h_0);
  for (const Doubles& gradient : frozen.parameters)
    for (const double value : gradient) CHECK(value == 0.0);

  Tape tape(context);
  const PackedOutputVariable out = layer.forward(tape, up(context, packed_of(config, batch, kF64)));
  CHECK_FALSE(out.output.data.needs_gradient());
  const Tensor zeros = context.zeros({6, 4}, kF64);
  check_refused("nothing to differentiate",
                [&] {
                  tape.backward({{out.output.data, zeros}});
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
  Context context = test_context();
  layer.parameters().to(context);
  Tape tape(context);
  State given = to_device(context, state_of(config, batch, kF64, true));
  const StateVariable state{tape.input(std::move(given.h)), tape.input(std::move(given.c))};
  const PackedOutputVariable out =
      layer.forward(tape, up(context, packed_of(config, batch, kF64)), state, true);
  CHECK(out.state.h.shape() == Shape{3, 4, 4});
  Batch ups;
  for (const ref::OutputGradients& one : by) ups.push_back({{}, one.h_n, one.c_n});
  const State d_state = to_device(context, state_of(config, ups, kF64, true));
  tape.backward({{out.state.h, d_state.h}, {out.state.c, d_state.c}});
  std::vector<ref::OutputGradients> states_only = by;
  for (ref::OutputGradients& one : states_only) one.y = {};
  Batch right;
  for (std::size_t n = 0; n < batch.size(); ++n) {
    const ref::Gradients one = ref::gradients(config, parameters, batch[n], states_only[n]);
    right.push_back({{}, one.h0, one.c0});
  }
  const State gradients = state_of(config, right, kF64, true);
  CHECK(difference(down(context, state.h.gradient()), doubles_of(gradients.h)) <= 1e-12);
  CHECK(difference(down(context, state.c.gradient()), doubles_of(gradients.c)) <= 1e-12);
}

TEST_CASE("dense input on a tape: the bits of the same rows packed") {
  const bool batch_first = GENERATE(false, true);
  const ref::Config config = config_of(Kind::lstm, 3, 4, 2, true);
  const std::int64_t T = 5, N = 3;
  const Counts lengths{T, T, T};
  const Batch batch = random_batch(config, lengths, 1, false);
  const auto by = random_upstream(config, lengths);
  Recurrent layer =
      make_layer(config, random_parameters(config), {.dtype = kF64, .batch_first = batch_first});
  Context context = test_context();
  const AllGradients packed = tape_gradients(context, layer, config, batch, by, LossOf::y_only);

  layer.parameters().zero_gradients();
  Tape tape(context);
  const Tensor dense = padded_of(config, batch, kF64, T, batch_first, 0.0);
  const Variable x = tape.input(context.to_device(dense));
  const DenseOutputVariable out = layer.forward(tape, x);
  CHECK(out.output.shape() == (batch_first ? Shape{N, T, 8} : Shape{T, N, 8}));
  const PackedSequence dy = up(context, upstream_of(config, by, kF64).y);
  const Tensor padded = pad_packed_sequence(context, dy, {.batch_first = batch_first});
  tape.backward({{out.output, padded}});
  for (std::int64_t i = 0; i < layer.parameters().count(); ++i)
    CHECK(down(context, layer.parameters().gradient(i)) ==
          packed.parameters[static_cast<std::size_t>(i)]);
  const Tensor dx = context.to_host(x.gradient());
  const PackedSequence dx_rows =
      host::pack_padded_sequence(context, dx, lengths, {.batch_first = batch_first});
  CHECK(doubles_of(dx_rows.data()) == packed.x);

  Tape other(context);
  const Variable none =
      other.constant(context.zeros(batch_first ? Shape{N, 0, 3} : Shape{0, N, 3}, kF64));
  check_refused("no steps", [&] { (void)layer.forward(other, none); }, {"input", "one step"});
}

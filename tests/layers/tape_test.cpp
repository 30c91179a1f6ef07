#include "packrnn/layers/tape.hpp"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "packrnn/layers/functions.hpp"
#include "packrnn/layers/linear.hpp"
#include "packrnn/layers/packed_ops.hpp"
#include "tests/catch.hpp"
#include "tests/layers/gradient_check.hpp"
#include "tests/packing_cases.hpp"

namespace packrnn {
namespace {

using namespace packrnn::tests;

using Doubles = std::vector<double>;

Doubles doubles(Context& context, const TensorView& tensor) {
  const Tensor here = context.to_host(tensor);
  return {here.values<double>().begin(), here.values<double>().end()};
}
bool says(const std::string& message, const char* part) {
  return message.find(part) != std::string::npos;
}

TEST_CASE("a variable used twice has the sum of both gradients") {
  Context context;
  Tape tape(context);
  const Variable x = tape.input(context.to_device(Tensor::from({3.0}, {1})));
  const Variable square = multiply(tape, x, x);
  tape.backward(add(tape, square, scale(tape, x, 10.0)));
  CHECK(doubles(context, x.gradient()) == Doubles{16.0});
}

TEST_CASE("a loss times a scale has gradients times that scale") {
  Context context;
  Tape tape(context);
  const Variable x = tape.input(context.to_device(Tensor::from({3.0}, {1})));
  tape.backward(multiply(tape, x, x), 0.25);
  CHECK(doubles(context, x.gradient()) == Doubles{1.5});
}

TEST_CASE("a backward can start from several results, intermediate ones among them") {
  Context context;
  Tape tape(context);
  const Variable x = tape.input(context.to_device(Tensor::from({1.0, 2.0}, {2})));
  const Variable y = scale(tape, x, 3.0), z = scale(tape, y, 5.0);
  tape.backward({{y, context.to_device(Tensor::from({1.0, 0.0}, {2}))},
                 {z, context.to_device(Tensor::from({0.0, 1.0}, {2}))}});
  CHECK(doubles(context, x.gradient()) == Doubles{3.0, 15.0});
}

TEST_CASE("a tape goes backward once") {
  Context context;
  Tape tape(context);
  const Variable x = tape.input(context.to_device(Tensor::from({3.0}, {1})));
  const Variable y = scale(tape, x, 2.0);
  CHECK_FALSE(tape.used());
  tape.backward(y);
  CHECK(tape.used());
  CHECK(says(thrown([&] { tape.backward(y); }), "new Tape"));
  CHECK(says(thrown([&] { scale(tape, x, 2.0); }), "new Tape"));
  CHECK(says(thrown([&] { tape.input(context.to_device(Tensor::from({3.0}, {1}))); }), "new Tape"));
  CHECK(doubles(context, x.gradient()) == Doubles{2.0});  // as it was
}

TEST_CASE("a backward refuses what it cannot start from") {
  Context context;
  Tape tape(context);
  const Variable x = tape.input(context.to_device(Tensor::from({1.0, 2.0}, {2})));
  CHECK(says(thrown([&] { tape.backward(x); }), "[2]"));
  CHECK(says(thrown([&] { tape.backward(Variable{}); }), "not defined"));
  const Variable constant = tape.constant(context.to_device(Tensor::from({1.0}, {1})));
  CHECK(says(thrown([&] { tape.backward(constant); }), "no parameter"));
  CHECK(says(thrown([&] {
               tape.backward({{x, context.to_device(Tensor::from({1.0}, {1}))}});
             }),
             "[1]"));
  CHECK(says(thrown([&] { tape.input(context.zeros({2}, Dtype::i64)); }), "i64"));
  CHECK_FALSE(tape.used());
}

TEST_CASE("only inputs keep their gradients, and those of unused ones are undefined") {
  Context context;
  Tape tape(context);
  const Variable x = tape.input(context.to_device(Tensor::from({1.0}, {1}))),
                 unused = tape.input(context.to_device(Tensor::from({1.0}, {1})));
  const Variable y = scale(tape, x, 2.0);
  scale(tape, unused, 2.0);
  tape.backward(y);
  CHECK(x.gradient().defined());
  CHECK_FALSE(unused.gradient().defined());
  CHECK(says(thrown([&] { y.gradient(); }), "Tape::input()"));
  CHECK(says(thrown([&] { tape.constant(context.to_device(Tensor::from({1.0}, {1}))).gradient(); }),
             "Tape::input()"));
}

TEST_CASE("detach cuts: the value stays, the gradient does not pass") {
  Context context;
  Tape tape(context);
  const Variable x = tape.input(context.to_device(Tensor::from({3.0}, {1})));
  const Variable square = multiply(tape, x, x);
  CHECK_FALSE(square.detach().needs_gradient());
  CHECK(square.detach().value().raw() == square.value().raw());
  tape.backward(multiply(tape, square.detach(), x));
  CHECK(doubles(context, x.gradient()) == Doubles{9.0});
}

TEST_CASE("values are freed as the backward passes") {
  Context context;
  Tape tape(context);
  const Variable x = tape.input(context.to_device(Tensor::from({0.5}, {1})));
  std::weak_ptr<const Tensor> early, late;
  Variable loss;
  {
    const Variable a = tanh(tape, x);
    early = a.value_ptr();
    // Between the two on the tape: runs after the later one is passed.
    tape.record([&](Context&) {
      CHECK(late.expired());
      CHECK_FALSE(early.expired());
    });
    const Variable b = tanh(tape, a);
    late = b.value_ptr();
    loss = scale(tape, b, 1.0);
  }
  CHECK_FALSE(early.expired());
  CHECK_FALSE(late.expired());
  tape.backward(loss);
  CHECK(early.expired());
}

TEST_CASE("a backward is given its result's gradient, or not called at all") {
  Context context;
  Tape tape(context);
  const auto one = [&] { return context.to_device(Tensor::from({0.5}, {1})); };
  Doubles given;
  const auto backward = [&](Context& c, const Tensor& gradient) {
    for (const double value : doubles(c, gradient)) given.push_back(value);
  };
  tape.record(tape.result(one(), false), backward);  // needs none
  tape.record(tape.result(one(), true), backward);   // none arrives
  const Variable y = tape.result(one(), true);
  tape.record(y, backward);
  tape.backward(y, 3.0);
  CHECK(given == Doubles{3.0});
}

TEST_CASE("a backward that throws frees the rest") {
  Context context;
  Tape tape(context);
  const Variable x = tape.input(context.to_device(Tensor::from({0.5}, {1})));
  Variable y = tanh(tape, x);
  const std::weak_ptr<const Tensor> value = y.value_ptr();
  tape.record([](Context&) { throw InvalidArgument("on purpose"); });
  const Variable loss = scale(tape, y, 1.0);
  y = {};
  CHECK(thrown([&] { tape.backward(loss); }) == "on purpose");
  CHECK(value.expired());
  CHECK(tape.used());
}

TEST_CASE("evaluation has gradients too, but no dropout") {
  Context context;
  Tape tape(context, {.training = false});
  const Variable x = tape.input(context.to_device(Tensor::from({1.0, 2.0}, {1, 2})));
  tape.backward({{dropout(tape, x, 0.9), context.to_device(Tensor::from({3.0, 4.0}, {1, 2}))}});
  CHECK(doubles(context, x.gradient()) == Doubles{3.0, 4.0});
}

TEST_CASE("packed inputs keep their layout") {
  Context context;
  Tape tape(context);
  const auto layout = PackedLayout::make(Lengths({1, 2}));
  const PackedVariable x =
      tape.input(PackedSequence(context.to_device(random_tensor({3, 2}, 1)), layout));
  CHECK(x.layout == layout);
  CHECK(tape.constant(PackedSequence(context.to_device(random_tensor({3, 2}, 1)), layout)).layout ==
        layout);
  CHECK_FALSE(x.detach().data.needs_gradient());
  const Variable y = sum_sequences(tape, x);
  tape.backward({{y, context.to_device(Tensor::from({1.0, 2.0, 3.0, 4.0}, {2, 2}))}});
  CHECK(doubles(context, x.data.gradient()) == Doubles{3.0, 4.0, 1.0, 2.0, 3.0, 4.0});
}

// ---- parameters, by means of Linear -------------------------------------------------------------

Linear linear(Context& context) {
  Linear layer({.in_features = 2, .out_features = 3, .dtype = Dtype::f64});
  layer.parameters().to(context);
  return layer;
}

TEST_CASE("gradients of parameters add up over backwards until they are zeroed") {
  Context context;
  Linear layer = linear(context);
  const auto step = [&] {
    Tape tape(context);
    const Variable y =
        layer.forward(tape, tape.constant(context.to_device(random_tensor({4, 2}, 1))));
    tape.backward({{y, context.to_device(random_tensor({4, 3}, 2))}});
  };
  step();
  const Doubles once = doubles(context, layer.parameters().gradients());
  step();
  const Doubles twice = doubles(context, layer.parameters().gradients());
  for (std::size_t i = 0; i < once.size(); ++i) CHECK(twice[i] == 2.0 * once[i]);
  layer.parameters().zero_gradients();
  step();
  CHECK(doubles(context, layer.parameters().gradients()) == once);
}

TEST_CASE("frozen parameters have no gradient, and let that of the input through") {
  Context context;
  Linear layer = linear(context);
  layer.parameters().set_trainable(false);
  Tape tape(context);
  const Variable data = tape.constant(context.to_device(random_tensor({4, 2}, 1)));
  CHECK_FALSE(layer.forward(tape, data).needs_gradient());
  const Variable x = tape.input(context.to_device(random_tensor({4, 2}, 1)));
  tape.backward({{layer.forward(tape, x), context.to_device(random_tensor({4, 3}, 2))}});
  CHECK(x.gradient().defined());
  CHECK_FALSE(layer.parameters().has_gradients());
}

TEST_CASE("parameters may not change between forward and backward") {
  Context context;
  Linear layer = linear(context);
  Tape tape(context);
  const Variable y = layer.forward(tape, tape.input(context.to_device(random_tensor({1, 2}, 1))));
  layer.parameters().set("bias", Tensor::zeros({3}, Dtype::f64));
  CHECK(says(thrown([&] {
               tape.backward({{y, context.to_device(random_tensor({1, 3}, 2))}});
             }),
             "changed between forward and backward"));
}

TEST_CASE("a tape outlives the layer") {
  Context context;
  Tape tape(context);
  const Variable x = tape.input(context.to_device(random_tensor({1, 2}, 1)));
  Variable y;
  {
    Linear layer = linear(context);
    y = layer.forward(tape, x);
  }
  tape.backward({{y, context.to_device(random_tensor({1, 3}, 2))}});
  CHECK(x.gradient().defined());
}

TEST_CASE("gradients of Linear are central differences") {
  Context context;
  Linear layer = linear(context);
  for (const std::int64_t rows : {0, 1, 5}) {
    CAPTURE(rows);
    const TapeFunction of_input = [&](Tape& tape, const std::vector<Variable>& v) {
      // One layer of each dtype, with the same parameters.
      Linear own({.in_features = 2, .out_features = 3, .dtype = v[0].dtype()});
      own.load(layer.state_dict());
      own.parameters().to(tape.context());
      return own.forward(tape, v[0]);
    };
    std::vector<Tensor> inputs;
    inputs.push_back(random_tensor({rows, 2}, 1));
    check_gradients(of_input, std::move(inputs));
  }

  const Tensor x = random_tensor({5, 2}, 1), upstream = random_tensor({5, 3}, 2);
  const Tensor there = context.to_device(x);
  Tape tape(context);
  const auto layout = PackedLayout::make(Lengths({2, 3}));
  const PackedVariable y =
      layer.forward(tape, tape.constant(PackedSequence(context.to_device(x), layout)));
  CHECK(y.layout == layout);
  CHECK(doubles(context, y.data.value()) == doubles(context, layer.forward(context, there)));
  tape.backward({{y.data, context.to_device(upstream)}});
  const Doubles dw = doubles(context, layer.parameters().gradient("weight")),
                db = doubles(context, layer.parameters().gradient("bias"));
  // y is linear in them: the gradient of W[o, i] is the sum of dy[m, o] x[m, i].
  for (std::int64_t o = 0; o < 3; ++o) {
    double bias = 0.0, weight[2] = {};
    for (std::int64_t m = 0; m < 5; ++m) {
      const double dy = upstream.values<double>()[static_cast<std::size_t>(m * 3 + o)];
      bias += dy;
      for (std::size_t i = 0; i < 2; ++i)
        weight[i] += dy * x.values<double>()[static_cast<std::size_t>(m * 2) + i];
    }
    const auto at = static_cast<std::size_t>(o);
    CHECK(db[at] == Approx(bias).epsilon(1e-13));
    for (std::size_t i = 0; i < 2; ++i) CHECK(dw[at * 2 + i] == Approx(weight[i]).epsilon(1e-13));
  }
}

TEST_CASE("Linear's gradients have the same bits on any number of threads") {
  if (Device::best() != Device::cpu()) PACKRNN_SKIP("threads of the CPU engine");
  std::vector<std::vector<std::byte>> parameters;
  const TapeFunction function = [&](Tape& tape, const std::vector<Variable>& v) {
    Linear layer({.in_features = 70, .out_features = 45});
    // The layer dies with this call; its parameters do not.
    const auto kept = std::make_shared<Parameters>(layer.parameters().shared());
    tape.record([&, kept](Context&) { parameters.push_back(bytes_of(kept->gradients())); });
    return layer.forward(tape, v[0]);
  };
  std::vector<Tensor> inputs;
  inputs.push_back(random_tensor({3000, 70}, 3, Dtype::f32));
  check_threads(function, inputs);
  REQUIRE(parameters.size() == 3);
  CHECK(difference(parameters[1], parameters[0]) == "");
  CHECK(difference(parameters[2], parameters[0]) == "");
}

}  // namespace
}  // namespace packrnn

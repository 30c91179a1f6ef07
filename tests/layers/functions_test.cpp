#include "packrnn/layers/functions.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "packrnn/kernels/elementwise.hpp"
#include "packrnn/layers/embedding.hpp"
#include "packrnn/layers/layer_norm.hpp"
#include "packrnn/layers/linear.hpp"
#include "packrnn/layers/packed_ops.hpp"
#include "packrnn/layers/packing.hpp"
#include "packrnn/runtime/gpu.hpp"
#include "tests/catch.hpp"
#include "tests/layers/gradient_check.hpp"
#include "tests/packing_cases.hpp"

namespace packrnn {
namespace {

using namespace packrnn::tests;
using Variables = std::vector<Variable>;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

template <class... Tensors>
std::vector<Tensor> list(Tensors&&... tensors) {
  std::vector<Tensor> all;
  (all.push_back(std::forward<Tensors>(tensors)), ...);
  return all;
}

Tensor ints(const Ints& values) {
  return Tensor::from(values, {static_cast<std::int64_t>(values.size())});
}

// On the tape's device.
Tensor ints(Tape& tape, const Ints& values) { return tape.context().to_device(ints(values)); }

std::vector<double> doubles(Context& context, const TensorView& tensor) {
  const Tensor here = context.to_host(tensor);
  return {here.values<double>().begin(), here.values<double>().end()};
}
Bytes fetched(Context& context, const TensorView& tensor) {
  return bytes_of(context.to_host(tensor));
}

// An operation on rows that are packed with these lengths.
template <class Operation>
TapeFunction packed(const Ints& lengths, Operation operation) {
  return [layout = PackedLayout::make(lengths), operation](Tape& tape, const Variables& v) {
    return operation(tape, PackedVariable{v[0], layout});
  };
}

// ---- elementwise and shapes ---------------------------------------------------------------------

struct Named {
  const char* name;
  std::size_t arguments;
  TapeFunction function;
};

std::vector<Named> elementwise() {
  return {
      {"add", 2, [](Tape& t, const Variables& v) { return add(t, v[0], v[1]); }},
      {"add to itself", 1, [](Tape& t, const Variables& v) { return add(t, v[0], v[0]); }},
      {"subtract", 2, [](Tape& t, const Variables& v) { return subtract(t, v[0], v[1]); }},
      {"multiply", 2, [](Tape& t, const Variables& v) { return multiply(t, v[0], v[1]); }},
      {"square", 1, [](Tape& t, const Variables& v) { return multiply(t, v[0], v[0]); }},
      {"scale", 1, [](Tape& t, const Variables& v) { return scale(t, v[0], -2.5); }},
      {"relu", 1, [](Tape& t, const Variables& v) { return relu(t, v[0]); }},
      {"tanh", 1, [](Tape& t, const Variables& v) { return tanh(t, v[0]); }},
      {"sigmoid", 1, [](Tape& t, const Variables& v) { return sigmoid(t, v[0]); }},
      {"concat", 2,
       [](Tape& t, const Variables& v) {
         return concat(t, {v[0], v[1], v[0]});
       }},
      {"columns", 1,
       [](Tape& t, const Variables& v) { return columns(t, v[0], 1, v[0].size(-1)); }},
      {"reshape", 1,
       [](Tape& t, const Variables& v) {
         return tanh(t, reshape(t, v[0], {v[0].shape().elements()}));
       }},
      {"dropout", 1, [](Tape& t, const Variables& v) { return dropout(t, v[0], 0.4); }},
  };
}

TEST_CASE("gradients of elementwise functions and of shapes are central differences") {
  for (const Named& f : elementwise()) {
    CAPTURE(f.name);
    std::vector<Tensor> inputs;
    for (std::size_t k = 0; k < f.arguments; ++k) inputs.push_back(random_tensor({3, 5}, 10 + k));
    check_gradients(f.function, std::move(inputs));
  }
}

TEST_CASE("elementwise functions have the same bits on any number of threads") {
  for (const Named& f : elementwise()) {
    CAPTURE(f.name);
    std::vector<Tensor> inputs;
    for (std::size_t k = 0; k < f.arguments; ++k)
      inputs.push_back(random_tensor({1001, 131}, 10 + k, Dtype::f32));
    check_threads(f.function, inputs);
  }
}

TEST_CASE("activations of special values") {
  Context context;
  Tape tape(context);
  const double inf = std::numeric_limits<double>::infinity();
  const Variable x =
      tape.input(context.to_device(Tensor::from({kNan, -inf, -1.0, 0.0, 2.0, inf}, {6})));
  const Variable y = relu(tape, x);
  const std::vector<double> value = doubles(context, y.value());
  CHECK(std::isnan(value[0]));
  CHECK(std::vector<double>(value.begin() + 1, value.end()) ==
        std::vector<double>{0, 0, 0, 2, inf});
  const std::vector<double> hyperbolic = doubles(context, tanh(tape, x).value()),
                            logistic = doubles(context, sigmoid(tape, x).value());
  CHECK(std::isnan(hyperbolic[0]));
  CHECK(hyperbolic[1] == -1.0);
  CHECK(hyperbolic[4] == Approx(std::tanh(2.0)).epsilon(1e-14));
  CHECK(logistic[4] == Approx(1.0 / (1.0 + std::exp(-2.0))));
  CHECK(logistic[5] == 1.0);
  tape.backward({{y, context.to_device(Tensor::from({1.0, inf, inf, inf, 3.0, 4.0}, {6}))}});
  const std::vector<double> gradient = doubles(context, x.gradient());
  CHECK(std::vector<double>(gradient.begin() + 1, gradient.end()) ==
        std::vector<double>{0, 0, 0, 3, 4});
}

TEST_CASE("functions refuse what does not fit") {
  Context context;
  Tape tape(context);
  const Variable a = tape.input(context.to_device(random_tensor({2, 3}, 1))),
                 b = tape.input(context.to_device(random_tensor({3, 2}, 2)));
  const Variable narrow = tape.input(context.to_device(random_tensor({2, 3}, 1, Dtype::f32)));
  CHECK(thrown([&] { add(tape, a, b); }).find("[3, 2]") != std::string::npos);
  CHECK(thrown([&] { multiply(tape, a, narrow); }).find("f32") != std::string::npos);
  CHECK(thrown([&] { relu(tape, {}); }).find("not defined") != std::string::npos);
  CHECK(thrown([&] { concat(tape, {}); }).find("empty") != std::string::npos);
  CHECK(thrown([&] { columns(tape, a, 2, 4); }).find("[2, 4)") != std::string::npos);
  CHECK(thrown([&] { reshape(tape, a, {5}); }).find("[5]") != std::string::npos);
  CHECK(thrown([&] { dropout(tape, a, 1.5); }).find("1.5") != std::string::npos);
  // Indices that only a GPU sees are found wrong there.
  CHECK(thrown([&] {
          gather_rows(tape, a, ints(tape, {0, 2}));
          context.synchronize();
        }).find("is 2") != std::string::npos);
  CHECK(thrown([&] {
          segment_sum(tape, a, ints(tape, {0, 3}), 3);
          context.synchronize();
        }).find("is 3") != std::string::npos);
  CHECK(thrown([&] { segment_sum(tape, a, ints(tape, {0}), 3); }).find("[1]") != std::string::npos);
  CHECK(add(tape, a, a).defined());  // the tape is as it was
}

// ---- rows ---------------------------------------------------------------------------------------

TEST_CASE("gather_rows and segment_sum") {
  const TapeFunction gather = [](Tape& t, const Variables& v) {
    return gather_rows(t, v[0], ints(t, {2, 0, -1, 2, 2, 4}));
  };
  const TapeFunction segments = [](Tape& t, const Variables& v) {
    return segment_sum(t, v[0], ints(t, {3, 0, 3, -1, 1}), 5);
  };
  check_gradients(gather, list(random_tensor({5, 3}, 1)));
  check_gradients(segments, list(random_tensor({5, 3}, 1)));
  const Gradients gathered = gradients_of(gather, list(random_tensor({5, 3}, 1)));
  CHECK(gathered.result.values<double>()[6] == 0.0);
  const Gradients summed =
      gradients_of(segments, list(Tensor::from({1.0, 2.0, 3.0, kNan, 5.0}, {5, 1})));
  CHECK(std::ranges::equal(summed.result.values<double>(), std::vector<double>{2, 5, 0, 4, 0}));
}

TEST_CASE("sums by index have the same bits on any number of threads") {
  Random random(3);
  Ints many(20000);
  for (auto& index : many) index = random.below(random.below(2) == 0 ? 3 : 500) - 1;
  check_threads([&](Tape& t, const Variables& v) { return gather_rows(t, v[0], ints(many)); },
                list(random_tensor({500, 40}, 1, Dtype::f32)));
  check_threads([&](Tape& t, const Variables& v) { return segment_sum(t, v[0], ints(many), 500); },
                list(random_tensor({20000, 40}, 1, Dtype::f32)));
}

// ---- dropout ------------------------------------------------------------------------------------

TEST_CASE("dropout: one mask both ways, belonging to the sequence; none in evaluation") {
  const auto layout = PackedLayout::make(Lengths({3, 0, 2}));
  const TapeFunction function = [&](Tape& t, const Variables& v) {
    return dropout(t, PackedVariable{v[0], layout}, 0.5).data;
  };
  check_gradients(function, list(random_tensor({5, 7}, 3)));

  Context context;
  const auto ones = [&](std::int64_t rows = 5) {
    Tensor tensor = context.empty({rows, 7}, Dtype::f64);
    kernels::fill(context, 1.0, tensor);
    return tensor;
  };
  Tape tape(context);
  const Variable x = tape.input(ones());
  const Variable y = dropout(tape, PackedVariable{x, layout}, 0.5).data;
  const Variable z = dropout(tape, PackedVariable{x, layout}, 0.5).data;
  CHECK(fetched(context, y.value()) != fetched(context, z.value()));  // each call has its own mask
  tape.backward({{y, ones()}});
  CHECK(fetched(context, x.gradient()) == fetched(context, y.value()));

  context.random().reseed(context.random().seed());
  Tape alone(context);
  const auto third = PackedLayout::make(Lengths({2}), {.sequence_ids = {2}});
  const Variable part = dropout(alone, PackedVariable{alone.constant(ones(2)), third}, 0.5).data;
  CHECK(fetched(context, part.value().rows(0, 1)) == fetched(context, y.value().rows(1, 2)));
  CHECK(fetched(context, part.value().rows(1, 2)) == fetched(context, y.value().rows(3, 4)));

  Tape evaluation(context, {.training = false});
  const Variable same = evaluation.input(ones());
  CHECK(dropout(evaluation, same, 0.5).value().raw() == same.value().raw());
  CHECK(dropout(evaluation, PackedVariable{same, layout}, 0.5).data.value().raw() ==
        same.value().raw());
}

// ---- packed operations --------------------------------------------------------------------------

const std::vector<Ints> kLengths = {{1}, {2, 4, 1}, {0, 3, 0, 3, 1}, {0, 0}, {}};

TEST_CASE("gradients of packed operations are central differences, empty sequences and all") {
  for (const Ints& lengths : kLengths) {
    CAPTURE(lengths);
    const Shape shape = {sum(lengths), 2, 3};
    const auto check_one = [&](auto operation) {
      check_gradients(packed(lengths, operation), list(random_tensor(shape, 5)));
    };
    using P = PackedVariable;
    check_one([](Tape& t, const P& x) { return first_element(t, x); });
    check_one([](Tape& t, const P& x) { return last_element(t, x, 7.0); });
    check_one([](Tape& t, const P& x) { return sum_sequences(t, x); });
    check_one([](Tape& t, const P& x) { return mean_sequences(t, x); });
    check_one([](Tape& t, const P& x) { return max_sequences(t, x, -1.0); });
    check_one(
        [](Tape& t, const P& x) { return pad_packed_sequence(t, x, {.padding_value = 3.0}); });
    check_one([](Tape& t, const P& x) {
      const std::vector<P> both = {x, x};
      return concat_features(t, both).data;
    });
    check_one([](Tape& t, const P& x) {
      return on_rows(x, [&](const Variable& rows) { return tanh(t, rows); }).data;
    });
    for (const bool batch_first : {false, true}) {
      const auto batch = static_cast<std::int64_t>(lengths.size());
      const std::int64_t steps = longest(lengths) + 1;
      check_gradients(
          [&](Tape& t, const Variables& v) {
            return pack_padded_sequence(t, v[0], lengths, {.batch_first = batch_first}).data;
          },
          list(random_tensor(batch_first ? Shape{batch, steps, 2} : Shape{steps, batch, 2}, 2)));
    }
  }
}

TEST_CASE("results on a tape have the bits of those without one") {
  Context context;
  const Ints lengths = {2, 0, 4, 4};
  const auto layout = PackedLayout::make(lengths);
  const PackedSequence x(context.to_device(random_tensor({10, 3}, 1)), layout);
  Tape tape(context);
  const PackedVariable v = tape.input(PackedSequence(context.to_device(x.data()), layout));
  CHECK(fetched(context, last_element(tape, v, 2.0).value()) ==
        fetched(context, last_element(context, x, 2.0)));
  CHECK(fetched(context, first_element(tape, v).value()) ==
        fetched(context, first_element(context, x)));
  CHECK(fetched(context, mean_sequences(tape, v).value()) ==
        fetched(context, mean_sequences(context, x)));
  CHECK(fetched(context, max_sequences(tape, v).value()) ==
        fetched(context, max_sequences(context, x)));
  CHECK(fetched(context, pad_packed_sequence(tape, v).value()) ==
        fetched(context, pad_packed_sequence(context, x)));
}

TEST_CASE("the gradient of a maximum goes to the first of equals, and to the first NaN") {
  const Gradients result = gradients_of(
      packed({3, 3}, [](Tape& t, const PackedVariable& x) { return max_sequences(t, x); }),
      list(Tensor::from({1.0, 5.0, 2.0, kNan, 2.0, kNan}, {6, 1})));
  std::vector<bool> reached;
  for (const double g : result.inputs[0].values<double>()) reached.push_back(g != 0.0);
  CHECK(reached == std::vector<bool>{false, false, true, true, false, false});
}

TEST_CASE("NaN in padding reaches nothing, in either direction") {
  Context context;
  const Ints lengths = {1, 3, 0};
  Tensor padded = random_tensor({3, 3, 2}, 4);
  Tensor upstream = random_tensor({3, 3, 2}, 5);
  const auto poison = [&](Tensor& tensor) {
    for (std::int64_t t = 0; t < 3; ++t)
      for (std::int64_t n = 0; n < 3; ++n)
        if (t >= lengths[static_cast<std::size_t>(n)])
          for (std::int64_t f = 0; f < 2; ++f)
            tensor.values<double>()[static_cast<std::size_t>((t * 3 + n) * 2 + f)] = kNan;
  };
  poison(padded);
  poison(upstream);
  Tape tape(context);
  const Variable x = tape.input(context.to_device(padded));
  const Variable y = pad_packed_sequence(tape, pack_padded_sequence(tape, x, lengths));
  tape.backward({{y, context.to_device(upstream)}});
  const auto from = upstream.view().values<double>();
  const std::vector<double> to = doubles(context, x.gradient());
  for (std::size_t i = 0; i < from.size(); ++i)
    CHECK(to[i] == (std::isnan(from[i]) ? 0.0 : from[i]));
}

TEST_CASE("packed operations have the same bits on any number of threads") {
  Random random(9);
  Ints lengths(60);
  for (auto& length : lengths) length = random.below(60);
  const Shape shape = {sum(lengths), 70};
  const auto check_one = [&](auto operation) {
    check_threads(packed(lengths, operation), list(random_tensor(shape, 5, Dtype::f32)));
  };
  using P = PackedVariable;
  check_one([](Tape& t, const P& x) { return last_element(t, x); });
  check_one([](Tape& t, const P& x) { return mean_sequences(t, x); });
  check_one([](Tape& t, const P& x) { return max_sequences(t, x); });
  check_one([](Tape& t, const P& x) { return pad_packed_sequence(t, x); });
}

// ---- Embedding ----------------------------------------------------------------------------------

// d weight for an upstream of ones.
Tensor embedding_gradient(Embedding& layer, const TensorView& indices, int threads = 1) {
  Context context(Device::best(), {.threads = threads});
  layer.parameters().to(context);
  layer.parameters().zero_gradients();
  Tape tape(context);
  const Variable y = layer.forward(tape, context.to_device(indices));
  Tensor ones = context.empty(y.shape(), y.dtype());
  kernels::fill(context, 1.0, ones);
  tape.backward({{y, ones}});
  return context.to_host(layer.parameters().gradient("weight"));
}

TEST_CASE("B54: the gradient of an embedding counts every use, and none of the padding") {
  constexpr std::int64_t kWidth = 3;
  for (const std::int64_t count : {1, 768, 769, 3072, 3073, 70000}) {
    CAPTURE(count);
    Embedding layer({.num_embeddings = 10, .embedding_dim = kWidth, .padding_idx = 0});
    const Tensor padding = embedding_gradient(layer, Tensor::zeros({count}, Dtype::i64));
    for (const float g : padding.values<float>()) REQUIRE(g == 0.0F);

    Random random(static_cast<std::uint64_t>(count));
    Ints indices(static_cast<std::size_t>(count)), uses(10);
    for (auto& index : indices) ++uses[static_cast<std::size_t>(index = random.below(9))];
    uses[0] = 0;
    for (const int threads : {1, 2, 3}) {
      const Tensor mixed = embedding_gradient(layer, ints(indices), threads);
      for (std::int64_t i = 0; i < 10 * kWidth; ++i)
        REQUIRE(mixed.values<float>()[static_cast<std::size_t>(i)] ==
                static_cast<float>(uses[static_cast<std::size_t>(i / kWidth)]));
    }
  }
}

TEST_CASE("B54: an index out of range is refused on a tape, and all goes on") {
  Embedding layer({.num_embeddings = 4, .embedding_dim = 2});
  Context context = cpu_context();
  Tape tape(context);
  CHECK(thrown([&] {
          layer.forward(tape, ints({0, 4}));
        }).find("index [1] is 4") != std::string::npos);
  const PackedSequence indices(ints({1, 3, 1}), PackedLayout::make(Lengths({2, 1})));
  const PackedVariable y = layer.forward(tape, indices);
  CHECK(y.data.shape() == Shape{3, 2});
  CHECK(bytes_of(layer.forward(tape, tape.constant(indices.clone())).data.value()) ==
        bytes_of(y.data.value()));
  tape.backward({{y.data, Tensor::from({1.0F, 2.0F, 3.0F, 4.0F, 5.0F, 6.0F}, {3, 2})}});
  CHECK(std::ranges::equal(layer.parameters().gradient("weight").values<float>(),
                           std::vector<float>{0, 0, 6, 8, 0, 0, 3, 4}));
}

// ---- on a GPU -----------------------------------------------------------------------------------

TEST_CASE("steps of training on a GPU do not make the host wait") {
  Context context;
  if (context.device() == Device::cpu()) PACKRNN_SKIP("the device under test is the CPU");
  const auto dtype = GENERATE(Dtype::f32, Dtype::bf16);
  Embedding embedding({.num_embeddings = 10, .embedding_dim = 6, .padding_idx = 0, .dtype = dtype});
  LayerNorm norm({.features = 6, .dtype = dtype});
  Linear linear({.in_features = 6, .out_features = 3, .dtype = dtype});
  const std::array all = {&embedding.parameters(), &norm.parameters(), &linear.parameters()};
  for (Parameters* parameters : all) parameters->to(context);
  const auto layout = PackedLayout::make(Lengths({3, 1, 2}));
  const PackedSequence indices(context.to_device(ints({1, 0, 4, 4, 9, 1})), layout);
  const Tensor upstream = context.to_device(random_tensor({3, 3}, 1, dtype));
  const auto step = [&] {
    for (Parameters* parameters : all) {
      parameters->zero_gradients();
      parameters->change_values();  // as an optimizer does
    }
    Tape tape(context);
    const PackedVariable x = norm.forward(tape, embedding.forward(tape, indices));
    const PackedVariable y = on_rows(x, [&](const Variable& rows) {
      // The layer twice in a step.
      return add(tape, relu(tape, linear.forward(tape, rows)), linear.forward(tape, rows));
    });
    tape.backward({{mean_sequences(tape, y), upstream}});
  };
  step();
  step();  // what is kept between calls is there
  const std::int64_t before = gpu::waits();
  step();
  CHECK(gpu::waits() == before);
  for (Parameters* parameters : all) {
    const Tensor gradients = context.to_host(parameters->gradients());
    CHECK(std::ranges::any_of(gradients.values<float>(), [](float g) { return g != 0; }));
    CHECK(std::ranges::all_of(gradients.values<float>(), [](float g) { return std::isfinite(g); }));
  }
}

}  // namespace
}  // namespace packrnn

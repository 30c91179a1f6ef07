#include "packrnn/layers/linear.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "packrnn/layers/packing.hpp"
#include "tests/catch.hpp"
#include "tests/layers/host_calls.hpp"
#include "tests/packing_cases.hpp"
#include "tests/reference/tolerance.hpp"

namespace packrnn {
namespace {

using namespace packrnn::tests;

template <class T>
Tensor random_numbers(const Shape& shape, std::uint64_t seed) {
  Tensor tensor = Tensor::empty(shape, kDtypeOf<T>);
  Random random(seed);
  for (T& value : tensor.values<T>()) value = static_cast<T>(random.number());
  return tensor;
}

template <class T>
std::vector<double> doubles(const TensorView& tensor) {
  return {tensor.values<T>().begin(), tensor.values<T>().end()};
}

template <class T>
double allowed(std::int64_t I, double magnitude) {
  const auto precision = std::is_same_v<T, double> ? reference::kF64 : reference::kF32;
  return reference::tolerance(precision, {.terms = I + 1, .magnitude = magnitude});
}

TEMPLATE_TEST_CASE("Linear computes x W^T + b", "", float, double) {
  using T = TestType;
  Context context = test_context(2);
  const Ints inputs = on_device() ? Ints{1, 3, 17, 64} : Ints{1, 3, 17, 64, 100};
  const Ints outputs = on_device() ? Ints{1, 16, 33} : Ints{1, 2, 16, 33, 65};
  for (const std::int64_t I : inputs) {
    for (const std::int64_t O : outputs) {
      for (const bool bias : {true, false}) {
        const Linear layer(
            {.in_features = I, .out_features = O, .bias = bias, .dtype = kDtypeOf<T>, .seed = 5});
        for (const std::int64_t M : {0, 1, 2, 7, 40}) {
          CAPTURE(I, O, bias, M);
          const Tensor x = random_numbers<T>({M, I}, static_cast<std::uint64_t>(M + I));
          const Tensor y = host::forward(context, layer, x);
          REQUIRE(y.shape() == Shape{M, O});
          REQUIRE(y.dtype() == kDtypeOf<T>);
          const std::vector<double> expected = reference::linear(
              doubles<T>(layer.parameters().value("weight")),
              bias ? doubles<T>(layer.parameters().value("bias")) : std::vector<double>{},
              doubles<T>(x), I, O);
          const double most = allowed<T>(I, std::sqrt(static_cast<double>(I)) + 1.0);
          for (std::size_t i = 0; i < expected.size(); ++i)
            REQUIRE(std::abs(static_cast<double>(y.values<T>()[i]) - expected[i]) <= most);
        }
      }
    }
  }
}

TEST_CASE("Linear of 16 bits computes x W^T + b on a GPU") {
  if (!on_device()) PACKRNN_SKIP("16 bits compute on a GPU only");
  Context context = test_context();
  const auto numbers = [](const TensorView& tensor) {
    const Tensor wide = convert(tensor, Dtype::f64);
    return doubles<double>(wide);
  };
  for (const Dtype dtype : {Dtype::bf16, Dtype::f16})
    for (const std::int64_t I : {3, 16, 40})
      for (const std::int64_t O : {1, 24}) {
        CAPTURE(dtype, I, O);
        const Linear layer({.in_features = I, .out_features = O, .dtype = dtype, .seed = 5});
        const Tensor x = convert(random_numbers<float>({7, I}, 3), dtype);
        const Tensor y = host::forward(context, layer, x);
        REQUIRE(y.shape() == Shape{7, O});
        REQUIRE(y.dtype() == dtype);
        const std::vector<double> expected =
            reference::linear(numbers(layer.parameters().value("weight")),
                              numbers(layer.parameters().value("bias")), numbers(x), I, O);
        const double magnitude = std::sqrt(static_cast<double>(I)) + 1.0;
        const double most =
            reference::tolerance(dtype == Dtype::f16 ? reference::kF16 : reference::kBf16,
                                 {.terms = I + 1, .magnitude = magnitude});
        const std::vector<double> got = numbers(y);
        for (std::size_t i = 0; i < expected.size(); ++i)
          REQUIRE(std::abs(got[i] - expected[i]) <= most);
      }
}

TEST_CASE("small integers give exact results") {
  Context context = test_context();
  Linear layer({.in_features = 2, .out_features = 3});
  StateDict state;
  state.push_back({"weight", Tensor::from<float>({1, 2, 3, 4, 5, 6}, {3, 2})});
  state.push_back({"bias", Tensor::from<float>({10, 20, 30}, {3})});
  layer.load(state);
  const Tensor x = Tensor::from<float>({1, -1, 2, 0}, {2, 2});
  CHECK(std::ranges::equal(host::forward(context, layer, x).values<float>(),
                           std::vector<float>{9, 19, 29, 12, 26, 40}));
}

TEST_CASE("any leading dimensions, packed or dense") {
  Context context = test_context();
  const Linear layer({.in_features = 3, .out_features = 5, .seed = 2});
  const Tensor x = random_numbers<float>({4, 2, 3}, 1);
  const Tensor y = host::forward(context, layer, x);
  CHECK(y.shape() == Shape{4, 2, 5});
  const Tensor one = host::forward(
      context, layer, x.view().rows(0, 1).rows(0, 1).reshape({2, 3}).rows(0, 1).reshape({3}));
  CHECK(one.shape() == Shape{5});
  CHECK(std::ranges::equal(one.values<float>(), y.values<float>().first(5)));
  CHECK(host::forward(context, layer, Tensor::zeros({0, 2, 3}, Dtype::f32)).shape() ==
        Shape{0, 2, 5});

  const auto layout = PackedLayout::make({1, 0, 3});
  const PackedSequence packed(random_numbers<float>({4, 2, 3}, 1), layout);
  const PackedSequence out = host::forward(context, layer, packed);
  CHECK(out.layout_ptr() == layout);
  CHECK(out.data().shape() == Shape{4, 2, 5});
  CHECK(bytes_of(out.data()) == bytes_of(y));
}

TEST_CASE("B43: a row has the same bits alone, in company and with 1, 2 and 5 threads") {
  const Linear layer({.in_features = 70, .out_features = 45, .seed = 3});
  const std::int64_t rows = on_device() ? 75 : 500;
  const Tensor x = random_numbers<float>({rows, 70}, 4);
  Context first_context = test_context();
  const Tensor y = host::forward(first_context, layer, x);
  for (const int threads : {1, 2, 5}) {
    if (on_device() && threads > 1) continue;  // only the CPU engine has teams
    Context context = test_context(threads);
    CHECK(difference(bytes_of(host::forward(context, layer, x)), bytes_of(y)) == "");
    for (const auto& [begin, end] : {std::pair<std::int64_t, std::int64_t>{0, 1},
                                     {rows - 1, rows},
                                     {17, 20},
                                     {rows / 5, rows - 29}})
      CHECK(difference(bytes_of(host::forward(context, layer, x.view().rows(begin, end))),
                       bytes_of(y.view().rows(begin, end))) == "");
  }
  Tensor dirty = x.clone();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::ranges::fill(dirty.span().rows(7, 8).values<float>(), nan);
  const Tensor z = host::forward(first_context, layer, dirty);
  CHECK(difference(bytes_of(z.view().rows(0, 7)), bytes_of(y.view().rows(0, 7))) == "");
  CHECK(difference(bytes_of(z.view().rows(8, rows)), bytes_of(y.view().rows(8, rows))) == "");
  CHECK(std::isnan(z.view().rows(7, 8).values<float>()[0]));
}

TEST_CASE("Linear has PyTorch's names, shapes and initial range") {
  const Linear layer({.in_features = 16, .out_features = 400, .seed = 1});
  const StateDict state = layer.state_dict("head.");
  REQUIRE(state.size() == 2);
  CHECK(state[0].name == "head.weight");
  CHECK(state[0].tensor.shape() == Shape{400, 16});
  CHECK(state[1].name == "head.bias");
  CHECK(state[1].tensor.shape() == Shape{400});
  for (const NamedTensor& entry : state) {
    const auto values = entry.tensor.values<float>();
    const auto [least, most] = std::ranges::minmax(values);
    CHECK(least >= -0.25F);
    CHECK(most <= 0.25F);
    CHECK(least < -0.23F);
    CHECK(most > 0.23F);
  }
  CHECK(Linear({.in_features = 2, .out_features = 2, .bias = false}).state_dict().size() == 1);

  const auto weights = [](std::uint64_t seed) {
    return bytes_of(
        Linear({.in_features = 5, .out_features = 4, .seed = seed}).parameters().value("weight"));
  };
  CHECK(weights(1) == weights(1));
  CHECK(weights(1) != weights(2));
}

TEST_CASE("new weights take effect at once") {
  Context context = test_context();
  Linear a({.in_features = 6, .out_features = 3, .seed = 1});
  Linear b({.in_features = 6, .out_features = 3, .seed = 2});
  const Tensor x = random_numbers<float>({4, 6}, 9);
  const Bytes before = bytes_of(host::forward(context, a, x)),
              other = bytes_of(host::forward(context, b, x));
  REQUIRE(before != other);
  a.load(b.state_dict("b."), {.prefix = "b."});
  CHECK(bytes_of(host::forward(context, a, x)) == other);
  a.parameters().set("weight", Tensor::zeros({3, 6}, Dtype::f32));
  CHECK(std::ranges::equal(host::forward(context, a, x).view().rows(2, 3).values<float>(),
                           b.parameters().value("bias").values<float>()));
}

TEST_CASE("one Linear serves several threads from its first call on") {
  const Linear layer({.in_features = 64, .out_features = 64, .seed = 7});
  const Tensor x = random_numbers<float>({50, 64}, 3);
  std::vector<Bytes> results(6);
  std::vector<std::thread> threads;
  for (Bytes& result : results)
    threads.emplace_back([&layer, &x, &result] {
      Context context = test_context(2);
      result = bytes_of(host::forward(context, layer, x));
    });
  for (std::thread& thread : threads) thread.join();
  for (const Bytes& result : results) CHECK(result == results[0]);
}

TEST_CASE("Linear refuses wrong options and inputs") {
  check_throws([] { Linear({.in_features = 0, .out_features = 2}); }, {"in_features", "0"});
  check_throws([] { Linear({.in_features = 2, .out_features = -3}); }, {"out_features", "-3"});
  check_throws([] { Linear({.in_features = 2, .out_features = 2, .dtype = Dtype::i64}); },
               {"dtype", "i64"});
  Context cpu = cpu_context();
  for (const Dtype dtype : {Dtype::bf16, Dtype::f16}) {  // exist everywhere, run on a GPU
    const Linear narrow({.in_features = 2, .out_features = 2, .dtype = dtype});
    check_throws<Unsupported>(
        [&] {
          narrow.forward(cpu, Tensor::zeros({3, 2}, dtype));
        },
        {dtype == Dtype::f16 ? "f16" : "bf16", "GPU", "f32"});
  }

  Context context = test_context();
  const Linear layer({.in_features = 3, .out_features = 2});
  const auto run = [&](const TensorView& x) {
    return [&context, &layer, x] { host::forward(context, layer, x); };
  };
  const Tensor wide = Tensor::zeros({5, 4}, Dtype::f32),
               doubles = Tensor::zeros({5, 3}, Dtype::f64), scalar = Tensor::zeros({}, Dtype::f32);
  check_throws(run(wide), {"[5, 4]", "in_features = 3"});
  check_throws(run(doubles), {"f64", "f32"});
  check_throws(run(scalar), {"[]", "in_features = 3"});
  check_throws(run(TensorView{}), {"x is not defined"});
  const TensorView far(wide.view().raw(), {5, 3}, Dtype::f32, Device::cuda(7));
  const std::string here = context.device().name();
  check_throws([&] { layer.forward(context, far); }, {"cuda:7", here.c_str()});
  check_throws([&] { host::forward(context, layer, PackedSequence{}); }, {"x is not defined"});
  const PackedSequence packed(Tensor::zeros({3, 4}, Dtype::f32), PackedLayout::make({2, 1}));
  check_throws([&] { host::forward(context, layer, packed); }, {"[3, 4]", "in_features = 3"});
}

TEST_CASE("layers move, with what they derived from their parameters") {
  Context context(Device::best(), {.threads = 1});
  Linear first({.in_features = 3, .out_features = 2});
  const Tensor x = Tensor::from({1.0F, 2.0F, 3.0F}, {1, 3});
  const Tensor before = host::forward(context, first, x.view());
  std::vector<Linear> layers;
  layers.push_back(std::move(first));
  const Tensor after = host::forward(context, layers[0], x.view());
  CHECK(std::ranges::equal(before.values<float>(), after.values<float>()));
}

}  // namespace
}  // namespace packrnn

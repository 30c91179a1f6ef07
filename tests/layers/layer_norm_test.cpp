#include "packrnn/layers/layer_norm.hpp"

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "tests/catch.hpp"
#include "tests/layers/gradient_check.hpp"
#include "tests/packing_cases.hpp"

namespace packrnn {
namespace {

using namespace packrnn::tests;

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

LayerNorm layer_of(Context& context, const TensorView& weight, const TensorView& bias,
                   Dtype dtype) {
  LayerNorm layer({.features = weight.size(0), .bias = bias.defined(), .dtype = dtype});
  layer.parameters().set("weight", weight);
  if (bias.defined()) layer.parameters().set("bias", bias);
  layer.parameters().to(context);
  return layer;
}

TEST_CASE("LayerNorm computes its formula, with and without bias") {
  Context context;
  for (const std::int64_t F : {1, 3, 8, 37}) {
    for (const bool with_bias : {true, false}) {
      const Tensor x = random_tensor({4, F}, 1), weight = random_tensor({F}, 2);
      const Tensor bias = with_bias ? random_tensor({F}, 3) : Tensor();
      for (const Dtype dtype : {Dtype::f64, Dtype::f32}) {
        CAPTURE(F, with_bias, dtype);
        const Tensor y =
            context.to_host(layer_of(context, weight, bias, dtype)
                                .forward(context, context.to_device(convert(x, dtype))));
        REQUIRE(y.shape() == x.shape());
        const Tensor wide = convert(y, Dtype::f64);
        for (std::int64_t m = 0; m < 4; ++m) {
          const auto row = x.view().rows(m, m + 1).values<double>();
          double mean = 0.0, variance = 0.0;
          for (const double v : row) mean += v / static_cast<double>(F);
          for (const double v : row) variance += (v - mean) * (v - mean) / static_cast<double>(F);
          for (std::int64_t i = 0; i < F; ++i) {
            const double expected =
                (row[at(i)] - mean) / std::sqrt(variance + 1e-5) * weight.values<double>()[at(i)] +
                (with_bias ? bias.values<double>()[at(i)] : 0.0);
            // Computed in double: f32 only rounds the result. The reference's own sums err by F
            // roundings, which a variance of 0 (F = 1) magnifies by 1 / sqrt(eps).
            const double most =
                dtype == Dtype::f32
                    ? std::abs(expected) * std::numeric_limits<float>::epsilon() + 1e-12
                    : 1e-12;
            CHECK(std::abs(wide.values<double>()[at(m * F + i)] - expected) <= most);
          }
        }
      }
    }
  }
}

TEST_CASE("gradients of LayerNorm are central differences, those of its parameters too") {
  Context context;
  for (const std::int64_t F : {2, 5, 11}) {
    CAPTURE(F);
    const Tensor weight = random_tensor({F}, 2), bias = random_tensor({F}, 3);
    std::vector<Tensor> inputs;
    inputs.push_back(random_tensor({3, F}, 1));
    // The slope is up to 1 / the row's deviation, which magnifies f32's rounding of x and dy.
    check_gradients(
        [&](Tape& tape, const std::vector<Variable>& v) {
          return layer_of(tape.context(), weight, bias, v[0].dtype()).forward(tape, v[0]);
        },
        std::move(inputs), 64);

    // y is linear in weight and bias: their gradients are exact differences of any step.
    const Tensor x = context.to_device(random_tensor({3, F}, 1)),
                 upstream = random_tensor({3, F}, 7);
    LayerNorm layer = layer_of(context, weight, bias, Dtype::f64);
    Tape tape(context);
    tape.backward(
        {{layer.forward(tape, tape.constant(context.to_device(x))), context.to_device(upstream)}});
    const Tensor dweight = context.to_host(layer.parameters().gradient("weight")),
                 dbias = context.to_host(layer.parameters().gradient("bias"));
    const Tensor zeros = Tensor::zeros({F}, Dtype::f64);
    for (std::int64_t i = 0; i < F; ++i) {
      Tensor one = Tensor::zeros({F}, Dtype::f64);
      one.values<double>()[at(i)] = 1.0;
      const auto along = [&](const Tensor& w, const Tensor& b) {
        const Tensor y = context.to_host(layer_of(context, w, b, Dtype::f64).forward(context, x));
        double sum = 0.0;
        for (std::size_t j = 0; j < y.values<double>().size(); ++j)
          sum += y.values<double>()[j] * upstream.view().values<double>()[j];
        return sum;
      };
      CHECK(dweight.values<double>()[at(i)] == Approx(along(one, zeros)).margin(1e-12));
      CHECK(dbias.values<double>()[at(i)] == Approx(along(zeros, one)).margin(1e-12));
    }
  }
}

TEST_CASE("a row's bits depend on the row alone, and gradients not on the number of threads") {
  if (Device::best() != Device::cpu()) PACKRNN_SKIP("threads of the CPU engine");
  Context context = cpu_context(), three = cpu_context(3);
  const LayerNorm layer({.features = 129});
  const Tensor x = random_tensor({1000, 129}, 5, Dtype::f32);
  const Tensor y = layer.forward(context, x);
  CHECK(difference(bytes_of(layer.forward(three, x)), bytes_of(y)) == "");
  CHECK(bytes_of(layer.forward(context, x.view().rows(17, 18))) == bytes_of(y.view().rows(17, 18)));

  std::vector<Bytes> parameters;
  std::vector<Tensor> inputs;
  inputs.push_back(x.clone());
  check_threads(
      [&](Tape& tape, const std::vector<Variable>& v) {
        LayerNorm own({.features = 129});
        const auto kept = std::make_shared<Parameters>(own.parameters().shared());
        tape.record([&, kept](Context&) { parameters.push_back(bytes_of(kept->gradients())); });
        return own.forward(tape, v[0]);
      },
      inputs);
  REQUIRE(parameters.size() == 3);
  CHECK(difference(parameters[1], parameters[0]) == "");
  CHECK(difference(parameters[2], parameters[0]) == "");
}

TEST_CASE("a large mean does not cost digits") {
  Context context;
  const LayerNorm layer({.features = 2});
  const Tensor y = context.to_host(
      layer.forward(context, context.to_device(Tensor::from({1e6F, 1e6F + 1.0F}, {1, 2}))));
  CHECK(y.values<float>()[0] == Approx(-0.5 / std::sqrt(0.25 + 1e-5)).epsilon(1e-6));
  CHECK(y.values<float>()[1] == Approx(0.5 / std::sqrt(0.25 + 1e-5)).epsilon(1e-6));
}

TEST_CASE("LayerNorm on packed rows, frozen, changed and refused") {
  Context context;
  LayerNorm layer({.features = 3, .dtype = Dtype::f64});
  CHECK(layer.state_dict("norm.")[0].name == "norm.weight");
  const auto layout = PackedLayout::make(Lengths({1, 0, 2}));
  layer.parameters().to(context);
  const auto packed = [&] {
    return PackedSequence(context.to_device(random_tensor({3, 3}, 1)), layout);
  };
  const PackedSequence x = packed();
  const PackedSequence y = layer.forward(context, x);
  CHECK(y.layout_ptr() == layout);
  {
    Tape tape(context);
    layer.parameters().set_trainable(false);
    CHECK_FALSE(layer.forward(tape, tape.constant(packed())).data.needs_gradient());
    const PackedVariable v = tape.input(packed());
    const PackedVariable z = layer.forward(tape, v);
    CHECK(bytes_of(context.to_host(z.data.value())) == bytes_of(context.to_host(y.data())));
    tape.backward({{z.data, context.to_device(random_tensor({3, 3}, 2))}});
    CHECK(v.data.gradient().defined());
    CHECK_FALSE(layer.parameters().has_gradients());
    layer.parameters().set_trainable(true);
  }
  Tape tape(context);
  const PackedVariable z = layer.forward(tape, tape.constant(packed()));
  layer.parameters().set("bias", Tensor::zeros({3}, Dtype::f64));
  CHECK(thrown([&] {
          tape.backward({{z.data, context.to_device(random_tensor({3, 3}, 2))}});
        }).find("changed between forward and backward") != std::string::npos);

  const auto says = [](const std::string& message, const char* part) {
    return message.find(part) != std::string::npos;
  };
  CHECK(says(thrown([] { LayerNorm({.features = 0}); }), "features is 0"));
  CHECK(says(thrown([] { LayerNorm({.features = 2, .eps = -1.0}); }), "eps is -1"));
  CHECK(says(thrown([] { LayerNorm({.features = 2, .dtype = Dtype::i32}); }), "i32"));
  Context cpu = cpu_context();
  CHECK(says(thrown<Unsupported>([&] {
               LayerNorm({.features = 2, .dtype = Dtype::f16})
                   .forward(cpu, Tensor::zeros({1, 2}, Dtype::f16));
             }),
             "f16"));
  CHECK(says(thrown([&] {
               layer.forward(context, context.to_device(random_tensor({3, 2}, 1)));
             }),
             "[3, 2]"));
  CHECK(says(thrown([&] {
               layer.forward(context, context.to_device(random_tensor({1, 3}, 1, Dtype::f32)));
             }),
             "f32"));
  CHECK(layer.forward(context, context.zeros({0, 3}, Dtype::f64)).shape() == Shape{0, 3});
}

}  // namespace
}  // namespace packrnn

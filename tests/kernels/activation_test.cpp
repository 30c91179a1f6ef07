#include "packrnn/kernels/activation.hpp"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "packrnn/kernels/cpu_target.hpp"
#include "tests/catch.hpp"
#include "tests/kernels/numbers.hpp"
#include "tests/packing_cases.hpp"

namespace packrnn::kernels {
namespace {

using namespace packrnn::tests;

struct Function {
  Activation activation;
  double (*value)(double x);
  double (*gradient)(double y, double dy);  // from the result
};

const std::vector<Function>& functions() {
  static const std::vector<Function> all = {
      {Activation::relu, [](double x) { return std::max(0.0, x); },
       [](double y, double dy) { return y <= 0 ? 0 : dy; }},
      {Activation::tanh, [](double x) { return std::tanh(x); },
       [](double y, double dy) { return dy * (1 - y * y); }},
      {Activation::sigmoid, [](double x) { return 1 / (1 + std::exp(-x)); },
       [](double y, double dy) { return dy * y * (1 - y); }}};
  return all;
}

/// Six units in the last place of what is computed with, and one rounding of what is stored. Below
/// the normal numbers of f16 a unit is 2^-25.
double allowed_error(Dtype dtype, double value) {
  const double computed = dtype == Dtype::f64 ? 0x1p-53 : 0x1p-24;
  return (12 * computed + unit_of(dtype)) * std::abs(value) + (dtype == Dtype::f16 ? 0x1p-25 : 0);
}

TEST_CASE("activations and their gradients are those of their definition") {
  const auto dtype = GENERATE(Dtype::f32, Dtype::f64, Dtype::f16, Dtype::bf16);
  const std::int64_t count = GENERATE(0, 1, 7, 16, 1003);
  const bool aligned = GENERATE(true, false);
  Context context;
  if (!on_gpu(context) && size_of(dtype) == 2) return;
  const std::size_t shift = aligned ? 0 : size_of(dtype);
  const Tensor x = random_tensor({count}, dtype, 1, 6.0),
               dy = random_tensor({count}, dtype, 2, 1.0);
  const std::vector<double> xs = doubles_of(x), dys = doubles_of(dy);
  for (const Function& f : functions()) {
    CAPTURE(dtype, count, aligned, static_cast<int>(f.activation));
    const Target y(context, {count}, dtype, std::byte{0xFF}, shift);
    activate(context, f.activation, context.to_device(x), y);
    const Target dx(context, {count}, dtype, std::byte{0xFF}, shift);
    activate_backward(context, f.activation, y.span(), context.to_device(dy), dx);
    const std::vector<double> ys = doubles_of(context.to_host(y.span())),
                              dxs = doubles_of(context.to_host(dx.span()));
    std::int64_t wrong = 0;
    for (std::size_t i = 0; i < ys.size(); ++i) {
      const double value = f.value(xs[i]), gradient = f.gradient(ys[i], dys[i]);
      // 1 - y loses what y was rounded by, but of y as it is nothing.
      wrong += !(std::abs(ys[i] - value) <= allowed_error(dtype, value));
      wrong += !(std::abs(dxs[i] - gradient) <=
                 allowed_error(dtype, gradient) + 12 * 0x1p-24 * (dtype != Dtype::f64));
    }
    CHECK(wrong == 0);
    CHECK(y.guards_intact());
    CHECK(dx.guards_intact());
    // In place, the same bits.
    const Bytes first = y.bytes(), second = dx.bytes();
    context.copy(context.to_device(dy), dx.span());
    activate_backward(context, f.activation, y.span(), dx.span(), dx);
    CHECK(dx.bytes() == second);
    context.copy(context.to_device(x), y.span());
    activate(context, f.activation, y.span(), y);
    CHECK(y.bytes() == first);
  }
}

TEST_CASE("activations on a GPU have the bits of the CPU, and NaN stays NaN") {
  Context context;
  if (!on_gpu(context)) PACKRNN_SKIP("the device under test is the CPU");
  const std::string target = cpu_target();
  if (target.find("AVX") == std::string::npos && target.find("NEON") == std::string::npos)
    PACKRNN_SKIP("this CPU has no fused multiply-add: " + target);
  const auto dtype = GENERATE(Dtype::f32, Dtype::f64);
  Context cpu = cpu_context();
  const double inf = std::numeric_limits<double>::infinity();
  Tensor x = Tensor::empty({2006}, Dtype::f64);
  std::ranges::copy(doubles_of(random_tensor({2000}, dtype, 3, 40.0)), x.values<double>().begin());
  std::ranges::copy(std::vector<double>{0.0, -0.0, inf, -inf, 1e-30, NAN},
                    x.values<double>().begin() + 2000);
  x = convert(x, dtype);
  const Tensor dy = random_tensor({2006}, dtype, 4, 1.0);
  for (const Function& f : functions()) {
    CAPTURE(dtype, static_cast<int>(f.activation));
    Tensor y = Tensor::empty({2006}, dtype), dx = Tensor::empty({2006}, dtype);
    activate(cpu, f.activation, x, y);
    activate_backward(cpu, f.activation, y, dy, dx);
    Tensor y_there = context.empty({2006}, dtype), dx_there = context.empty({2006}, dtype);
    activate(context, f.activation, context.to_device(x), y_there);
    activate_backward(context, f.activation, y_there, context.to_device(dy), dx_there);
    const Tensor got_y = context.to_host(y_there), got_dx = context.to_host(dx_there);
    CHECK(difference(bytes_of(got_y.view().rows(0, 2005)), bytes_of(y.view().rows(0, 2005))) == "");
    CHECK(difference(bytes_of(got_dx.view().rows(0, 2005)), bytes_of(dx.view().rows(0, 2005))) ==
          "");
    CHECK(std::isnan(doubles_of(got_y)[2005]));
  }
}

TEST_CASE("activations refuse what does not fit") {
  Context context;
  const Tensor x = context.zeros({3}, Dtype::f32);
  Tensor narrow = context.zeros({2}, Dtype::f32), y = context.zeros({3}, Dtype::f32);
  check_throws([&] { activate(context, Activation::relu, x, narrow); }, {"y", "[2]", "[3]"});
  check_throws([&] { activate(context, Activation::relu, {}, y); }, {"x is not defined"});
  check_throws([&] { activate_backward(context, Activation::tanh, x, narrow, y); },
               {"dy", "[2]", "[3]"});
  check_throws([&] { activate_backward(context, Activation::tanh, x, x, narrow); },
               {"dx", "[2]", "[3]"});
}

}  // namespace
}  // namespace packrnn::kernels

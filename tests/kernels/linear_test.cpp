#include "packrnn/kernels/linear.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "packrnn/runtime/error.hpp"
#include "packrnn/runtime/random.hpp"
#include "tests/catch.hpp"
#include "tests/kernels/cpu_targets.hpp"
#include "tests/reference/rnn.hpp"
#include "tests/reference/tolerance.hpp"

using namespace packrnn;
using Catch::Matchers::Contains;

namespace {

Tensor uniform(Shape shape, Dtype dtype, std::uint64_t seed) {
  Tensor t = Tensor::empty(shape, dtype);
  Generator generator(seed);
  fill_uniform(generator, t, -1.0, 1.0);
  return t;
}

std::vector<double> doubles(const TensorView& t) {
  const Tensor wide = convert(t, Dtype::f64);
  return {wide.values<double>().begin(), wide.values<double>().end()};
}

Tensor packed(const Tensor& weight) {
  Tensor panels = Tensor::empty(
      {kernels::linear_panel_elements(weight.size(0), weight.size(1), weight.dtype())},
      weight.dtype());
  kernels::pack_linear(weight, panels);
  return panels;
}

/// y with NaN where the kernel failed to write.
Tensor run(Context& context, const TensorView& x, const Tensor& panels, const TensorView& bias,
           std::int64_t outputs) {
  Tensor y = Tensor::empty({x.size(0), outputs}, x.dtype());
  if (x.dtype() == Dtype::f32)
    std::fill(y.values<float>().begin(), y.values<float>().end(), NAN);
  else
    std::fill(y.values<double>().begin(), y.values<double>().end(), NAN);
  kernels::linear(context, x, panels, bias, y);
  return y;
}

}  // namespace

TEST_CASE("linear agrees with the double reference on every instruction set") {
  const auto dtype = GENERATE(Dtype::f32, Dtype::f64);
  const auto rows = GENERATE(0, 1, 2, 3, 5, 6, 7, 47, 48, 49, 131);
  const auto outputs = GENERATE(1, 3, 16, 63, 64, 65, 130);
  const auto k = GENERATE(1, 7, 129, 700);
  const auto precision = dtype == Dtype::f32 ? reference::kF32 : reference::kF64;
  const Tensor x = uniform({rows, k}, dtype, 1), weight = uniform({outputs, k}, dtype, 2),
               bias = uniform({outputs}, dtype, 3);
  const std::vector<double> xs = doubles(x), ws = doubles(weight), bs = doubles(bias);
  for_each_cpu_target([&](const std::string& target) {
    INFO(target << " rows " << rows << " outputs " << outputs << " k " << k);
    Context context(Device::cpu(), {.threads = 2});
    const Tensor y = run(context, x, packed(weight), bias, outputs);
    const std::vector<double> got = doubles(y);
    // The sum of |x w| is at most k, and each of its k roundings is below one unit of that.
    const double allowed =
        precision.arithmetic * (std::sqrt(double(k)) + 2) * std::sqrt(double(k)) * 2;
    double worst = 0;
    for (std::int64_t m = 0; m < rows; ++m)
      for (std::int64_t o = 0; o < outputs; ++o) {
        double sum = bs[std::size_t(o)];
        for (std::int64_t i = 0; i < k; ++i)
          sum += xs[std::size_t(m * k + i)] * ws[std::size_t(o * k + i)];
        const double error = std::abs(got[std::size_t(m * outputs + o)] - sum);
        worst = std::isnan(error) ? INFINITY : std::max(worst, error);
      }
    CHECK(worst <= allowed);
  });
}

TEST_CASE("a row of linear has the same bits alone, in any company, with any number of threads") {
  const auto dtype = GENERATE(Dtype::f32, Dtype::f64);
  constexpr std::int64_t kRows = 200, kOutputs = 150, kK = 300;
  const Tensor x = uniform({kRows, kK}, dtype, 1), weight = uniform({kOutputs, kK}, dtype, 2);
  for_each_cpu_target([&](const std::string& target) {
    INFO(target);
    const Tensor panels = packed(weight);
    Context one(Device::cpu(), {.threads = 1});
    const Tensor whole = run(one, x, panels, {}, kOutputs);
    const std::size_t row_bytes = whole.view().bytes() / kRows;
    const auto* bytes = static_cast<const char*>(whole.view().raw());
    for (const int threads : {1, 2, 5}) {
      Context context(Device::cpu(), {.threads = threads});
      for (const std::int64_t count : {1, 2, 3, 48, 49, 200}) {
        const Tensor part = run(context, x.view().rows(kRows - count, kRows), panels, {}, kOutputs);
        CHECK(std::memcmp(part.view().raw(), bytes + std::size_t(kRows - count) * row_bytes,
                          part.view().bytes()) == 0);
      }
    }
  });
}

TEST_CASE("linear names what does not fit") {
  Context context(Device::cpu(), {.threads = 1});
  const Tensor weight = uniform({4, 3}, Dtype::f32, 1), panels = packed(weight);
  Tensor y = Tensor::empty({2, 4}, Dtype::f32);
  CHECK_THROWS_WITH(kernels::linear(context, uniform({2, 5}, Dtype::f32, 2), panels, {}, y),
                    Contains("panels"));
  CHECK_THROWS_WITH(kernels::linear(context, uniform({3, 3}, Dtype::f32, 2), panels, {}, y),
                    Contains("y has shape [2, 4], expected [3, 4]"));
  CHECK_THROWS_WITH(kernels::linear(context, uniform({2, 3}, Dtype::f64, 2), panels, {}, y),
                    Contains("f32") && Contains("f64"));
  CHECK_THROWS_WITH(kernels::linear(context, uniform({2, 3}, Dtype::f32, 2), panels,
                                    uniform({3}, Dtype::f32, 2), y),
                    Contains("bias has shape [3], expected [4]"));
  CHECK_THROWS_AS(kernels::linear_panel_elements(4, 3, Dtype::f16), Unsupported);
  CHECK_NOTHROW(kernels::linear(context, uniform({2, 3}, Dtype::f32, 2), panels, {}, y));
}

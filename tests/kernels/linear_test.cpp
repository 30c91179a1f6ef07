#include "packrnn/kernels/linear.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "packrnn/kernels/cpu_target.hpp"
#include "packrnn/kernels/recurrent.hpp"
#include "packrnn/runtime/error.hpp"
#include "packrnn/runtime/random.hpp"
#include "tests/catch.hpp"
#include "tests/kernels/cpu_targets.hpp"
#include "tests/kernels/numbers.hpp"
#include "tests/reference/rnn.hpp"
#include "tests/reference/tolerance.hpp"

using namespace packrnn;
using Catch::Matchers::Contains;
using tests::doubles_of, tests::doubles_on, tests::worst;

namespace {

Tensor uniform(Shape shape, Dtype dtype, std::uint64_t seed) {
  Tensor t = Tensor::empty(shape, Dtype::f64);
  Generator generator(seed);
  fill_uniform(generator, t, -1.0, 1.0);
  return convert(t, dtype);
}

Tensor packed(Context& context, const Tensor& weight, const TensorView& bias) {
  Tensor panels = context.empty({kernels::linear_panel_elements(context.device(), weight.size(0),
                                                                weight.size(1), weight.dtype())},
                                weight.dtype());
  kernels::pack_linear(context, weight, bias, panels);
  return panels;
}

/// y, on the host, with NaN where the kernel failed to write. x is on the host.
Tensor run(Context& context, const TensorView& x, const Tensor& panels, std::int64_t outputs) {
  Tensor y = Tensor::empty({x.size(0), outputs}, x.dtype());
  std::memset(y.span().raw(), 0xFF, y.view().bytes());
  Tensor there = context.to_device(y);
  kernels::linear(context, context.to_device(x), panels, there);
  return context.to_host(there);
}

/// The sum of |x w| is at most k, and each of its k roundings is below one unit of that.
double allowed_error(const reference::Precision& precision, std::int64_t k) {
  const double root = std::sqrt(static_cast<double>(k));
  return precision.arithmetic * (root + 2) * root * 2 + precision.storage * root * 2;
}

double worst_error(const std::vector<double>& got, const std::vector<double>& xs,
                   const std::vector<double>& ws, const std::vector<double>& bs, std::int64_t k) {
  const auto outputs = std::int64_t(bs.size()), rows = std::int64_t(xs.size()) / k;
  double worst = std::int64_t(got.size()) == rows * outputs ? 0 : INFINITY;
  for (std::int64_t m = 0; m < rows; ++m)
    for (std::int64_t o = 0; o < outputs; ++o) {
      double sum = bs[std::size_t(o)];
      for (std::int64_t i = 0; i < k; ++i)
        sum += xs[std::size_t(m * k + i)] * ws[std::size_t(o * k + i)];
      const double error = std::abs(got[std::size_t(m * outputs + o)] - sum);
      worst = std::isnan(error) ? INFINITY : std::max(worst, error);
    }
  return worst;
}

Tensor ones(Shape shape, Dtype dtype) {
  Tensor t = Tensor::empty(shape, Dtype::f64);
  std::ranges::fill(t.values<double>(), 1.0);
  return convert(t, dtype);
}

/// dw [O, K] and db [O], from 1 on, of dy [M, O] and x [M, K].
struct Gradients {
  Tensor dw, db;
};

Gradients gradients(Context& context, const TensorView& x, const TensorView& dy) {
  Gradients result{ones({dy.size(1), x.size(1)}, x.dtype()), ones({dy.size(1)}, x.dtype())};
  {  // what earlier work left in the scratch memory is no number
    Workspace::Scope scope(context.workspace());
    const std::span<char> old = scope.take<char>(std::int64_t{4} << 20);
    std::memset(old.data(), 0xFF, old.size());
  }
  kernels::linear_weight_gradient(context, x, dy, result.dw, result.db);
  return result;
}

bool same_bits(const Tensor& a, const Tensor& b) {
  return std::memcmp(a.view().raw(), b.view().raw(), a.view().bytes()) == 0;
}

/// In double: 1 plus the sums over rows of dy x and of dy.
struct Sums {
  std::vector<double> dw, db;
};
Sums sums_from_one(const Tensor& x, const Tensor& dy) {
  const std::vector<double> xs = doubles_of(x), gs = doubles_of(dy);
  const auto O = std::size_t(dy.size(1)), K = std::size_t(x.size(1));
  Sums sums{std::vector<double>(O * K, 1.0), std::vector<double>(O, 1.0)};
  for (std::size_t m = 0; m < std::size_t(x.size(0)); ++m)
    for (std::size_t o = 0; o < O; ++o) {
      sums.db[o] += gs[m * O + o];
      for (std::size_t i = 0; i < K; ++i) sums.dw[o * K + i] += gs[m * O + o] * xs[m * K + i];
    }
  return sums;
}

}  // namespace

TEST_CASE("linear agrees with the double reference on every instruction set") {
  NEEDS_THE_CPU;
  const auto dtype = GENERATE(Dtype::f32, Dtype::f64);
  const auto rows = GENERATE(0, 1, 2, 3, 5, 6, 7, 47, 48, 49, 131);
  const auto outputs = GENERATE(1, 3, 16, 63, 64, 65, 130);
  const auto k = GENERATE(1, 7, 129, 700);
  PACKRNN_ONE_IN(5);
  const auto precision = dtype == Dtype::f32 ? reference::kF32 : reference::kF64;
  const Tensor x = uniform({rows, k}, dtype, 1), weight = uniform({outputs, k}, dtype, 2),
               bias = uniform({outputs}, dtype, 3);
  const std::vector<double> xs = doubles_of(x), ws = doubles_of(weight), bs = doubles_of(bias);
  for_each_cpu_target([&](const std::string& target) {
    INFO(target << " rows " << rows << " outputs " << outputs << " k " << k);
    Context context(Device::cpu(), {.threads = 2});
    const Tensor y = run(context, x, packed(context, weight, bias), outputs);
    CHECK(worst_error(doubles_of(y), xs, ws, bs, k) <= allowed_error(precision, k));
  });
}

TEST_CASE("a row of linear has the same bits alone, in any company, with any number of threads") {
  NEEDS_THE_CPU;
  const auto dtype = GENERATE(Dtype::f32, Dtype::f64);
  constexpr std::int64_t kRows = 200, kOutputs = 150, kK = 300;
  const Tensor x = uniform({kRows, kK}, dtype, 1), weight = uniform({kOutputs, kK}, dtype, 2);
  for_each_cpu_target([&](const std::string& target) {
    INFO(target);
    Context one(Device::cpu(), {.threads = 1});
    const Tensor panels = packed(one, weight, {});
    const Tensor whole = run(one, x, panels, kOutputs);
    const std::size_t row_bytes = whole.view().bytes() / kRows;
    const auto* bytes = static_cast<const char*>(whole.view().raw());
    for (const int threads : {1, 2, 5}) {
      Context context(Device::cpu(), {.threads = threads});
      for (const std::int64_t count : {1, 2, 3, 48, 49, 200}) {
        const Tensor part = run(context, x.view().rows(kRows - count, kRows), panels, kOutputs);
        CHECK(std::memcmp(part.view().raw(), bytes + std::size_t(kRows - count) * row_bytes,
                          part.view().bytes()) == 0);
      }
    }
  });
}

TEST_CASE("linear agrees with the double reference on the device") {
  const auto dtype = GENERATE(Dtype::f32, Dtype::f64, Dtype::f16, Dtype::bf16);
  const auto rows = GENERATE(0, 1, 17, 65, 130);  // small and large tiles
  const auto outputs = GENERATE(1, 33, 70);
  const auto k = GENERATE(1, 37);
  PACKRNN_ONE_IN(11);
  const auto precision = dtype == Dtype::f64   ? reference::kF64
                         : dtype == Dtype::f32 ? reference::kF32
                         : dtype == Dtype::f16 ? reference::kF16
                                               : reference::kBf16;
  Context context;
  const bool gpu = context.device().type == DeviceType::cuda;
  if (!gpu && dtype != Dtype::f32 && dtype != Dtype::f64) return;
  INFO(name_of(dtype) << " rows " << rows << " outputs " << outputs << " k " << k);
  const Tensor x = uniform({rows, k}, dtype, 1), weight = uniform({outputs, k}, dtype, 2),
               bias = uniform({outputs}, dtype, 3);
  const Tensor y = run(context, x, packed(context, weight, bias), outputs);
  CHECK(worst_error(doubles_of(y), doubles_of(x), doubles_of(weight), doubles_of(bias), k) <=
        allowed_error(precision, k));
}

TEST_CASE("linear on a GPU has the bits of the CPU, and a row the same in any company") {
  Context context;
  if (context.device().type != DeviceType::cuda) PACKRNN_SKIP("the device under test is the CPU");
  const std::string target = kernels::cpu_target();
  if (target.find("AVX") == std::string::npos && target.find("NEON") == std::string::npos)
    PACKRNN_SKIP("this CPU has no fused multiply-add: " + target);
  const auto dtype = GENERATE(Dtype::f32, Dtype::f64);
  const auto k = GENERATE(1, 16, 33, 150);
  const auto with_bias = GENERATE(false, true);
  PACKRNN_ONE_IN(3);
  constexpr std::int64_t kRows = 150, kOutputs = 131;
  const Tensor x = uniform({kRows, k}, dtype, 1), weight = uniform({kOutputs, k}, dtype, 2);
  const Tensor bias = with_bias ? uniform({kOutputs}, dtype, 3) : Tensor();
  Context cpu(Device::cpu(), {.threads = 1});
  const Tensor expected = run(cpu, x, packed(cpu, weight, bias), kOutputs);
  const Tensor panels = packed(context, weight, bias);
  for (const std::int64_t count : {1, 3, 64, 65, 150}) {
    const Tensor got = run(context, x.view().rows(kRows - count, kRows), panels, kOutputs);
    const TensorView same = expected.view().rows(kRows - count, kRows);
    CHECK(std::memcmp(got.view().raw(), same.raw(), same.bytes()) == 0);
  }
}

TEST_CASE("panels of the way back multiply with the weight as it lies") {
  const auto dtype = GENERATE(Dtype::f32, Dtype::f64, Dtype::f16, Dtype::bf16);
  const auto outputs = GENERATE(1, 5, 70);
  const auto k = GENERATE(1, 33, 130);
  Context context;
  const bool gpu = context.device().type == DeviceType::cuda;
  if (!gpu && dtype != Dtype::f32 && dtype != Dtype::f64) return;
  const Tensor weight = uniform({outputs, k}, dtype, 1), dy = uniform({9, outputs}, dtype, 2);
  Tensor transposed = Tensor::empty({k, outputs}, Dtype::f64);
  const std::vector<double> ws = doubles_of(weight);
  for (std::int64_t o = 0; o < outputs; ++o)
    for (std::int64_t i = 0; i < k; ++i)
      transposed.values<double>()[std::size_t(i * outputs + o)] = ws[std::size_t(o * k + i)];
  const auto both = [&](Context& there) {
    Tensor panels =
        there.empty({kernels::linear_panel_elements(there.device(), k, outputs, dtype)}, dtype);
    kernels::pack_linear_backward(there, weight, panels);
    const Tensor got = run(there, dy, panels, k);
    const Tensor expected = run(there, dy, packed(there, convert(transposed, dtype), {}), k);
    CHECK(same_bits(got, expected));
  };
  both(context);
  if (gpu) return;
  for_each_cpu_target([&](const std::string& target) {
    INFO(target << " outputs " << outputs << " k " << k);
    Context cpu(Device::cpu(), {.threads = 1});
    both(cpu);
  });
}

TEST_CASE("gradients of linear's weights agree with the double reference") {
  NEEDS_THE_CPU;
  const auto dtype = GENERATE(Dtype::f32, Dtype::f64);
  const auto rows = GENERATE(0, 1, 7, 255, 256, 257, 700);
  const auto outputs = GENERATE(1, 5, 17, 97, 200);
  const auto k = GENERATE(1, 12, 33, 65, 100, 530);
  PACKRNN_ONE_IN(7);
  const auto precision = dtype == Dtype::f32 ? reference::kF32 : reference::kF64;
  const Tensor x = uniform({rows, k}, dtype, 1), dy = uniform({rows, outputs}, dtype, 2);
  const Sums expected = sums_from_one(x, dy);
  // What was there before is one more term.
  const double allowed = rows == 0 ? 0 : allowed_error(precision, rows + 1);
  for_each_cpu_target([&](const std::string& target) {
    INFO(target << " rows " << rows << " outputs " << outputs << " k " << k);
    Context one(Device::cpu(), {.threads = 1});
    const Gradients got = gradients(one, x, dy);
    CHECK(worst(doubles_of(got.dw), expected.dw) <= allowed);
    CHECK(worst(doubles_of(got.db), expected.db) <= allowed);
    for (const int threads : {2, 3}) {
      Context context(Device::cpu(), {.threads = threads});
      const Gradients again = gradients(context, x, dy);
      CHECK(same_bits(again.dw, got.dw));
      CHECK(same_bits(again.db, got.db));
    }
  });
}

TEST_CASE("gradients of linear's weights agree with the double reference on a GPU") {
  const auto dtype = GENERATE(Dtype::f32, Dtype::f64, Dtype::f16, Dtype::bf16);
  const auto rows = GENERATE(0, 1, 300);
  const auto outputs = GENERATE(1, 70);
  Context context;
  if (context.device().type != DeviceType::cuda) PACKRNN_SKIP("the device under test is the CPU");
  constexpr std::int64_t kK = 33;
  const Dtype sums = kernels::cell_dtype(dtype);
  const Tensor x = uniform({rows, kK}, dtype, 1), dy = uniform({rows, outputs}, dtype, 2);
  const Sums expected = sums_from_one(x, dy);
  Tensor dw_there = context.to_device(ones({outputs, kK}, sums)),
         db_there = context.to_device(ones({outputs}, sums));
  const Tensor x_there = context.to_device(x), dy_there = context.to_device(dy);
  kernels::linear_weight_gradient(context, x_there, dy_there, dw_there, {});
  kernels::linear_weight_gradient(context, x_there, dy_there, {}, db_there);
  // What was there before is one more term; factors are exact.
  const double allowed =
      allowed_error(sums == Dtype::f64 ? reference::kF64 : reference::kF32, rows + 1);
  CHECK(worst(doubles_on(context, dw_there), expected.dw) <= allowed);
  CHECK(worst(doubles_on(context, db_there), expected.db) <= allowed);
}

TEST_CASE("weights on a GPU are packed there as the host packs its own") {
  const auto dtype = GENERATE(Dtype::f32, Dtype::f64, Dtype::f16, Dtype::bf16);
  const auto outputs = GENERATE(1, 5, 70);
  const auto k = GENERATE(1, 33);
  Context context;
  if (context.device().type != DeviceType::cuda) PACKRNN_SKIP("the device under test is the CPU");
  const Tensor weight = uniform({outputs, k}, dtype, 1), bias = uniform({outputs}, dtype, 2);
  const Tensor weight_there = context.to_device(weight), bias_there = context.to_device(bias);
  const auto panels = [&](std::int64_t o, std::int64_t i) {
    const std::int64_t elements = kernels::linear_panel_elements(context.device(), o, i, dtype);
    Tensor result = Tensor::empty({elements}, dtype);
    std::memset(result.span().raw(), 0xFF, result.view().bytes());
    return context.to_device(result);
  };
  for (const bool with_bias : {false, true}) {
    Tensor here = panels(outputs, k), there = panels(outputs, k);
    kernels::pack_linear(context, weight, with_bias ? bias.view() : TensorView{}, here);
    kernels::pack_linear(context, weight_there, with_bias ? bias_there.view() : TensorView{},
                         there);
    CHECK(same_bits(context.to_host(there), context.to_host(here)));
  }
  Tensor here = panels(k, outputs), there = panels(k, outputs);
  kernels::pack_linear_backward(context, weight, here);
  kernels::pack_linear_backward(context, weight_there, there);
  CHECK(same_bits(context.to_host(there), context.to_host(here)));
  CHECK_THROWS_WITH(kernels::pack_linear(context, weight_there, bias, here),
                    Contains("bias is on cpu"));
}

TEST_CASE("gradients of linear's weights: one without the other, and what is no number") {
  NEEDS_THE_CPU;
  Tensor x = uniform({9, 21}, Dtype::f32, 1), dy = uniform({9, 7}, Dtype::f32, 2);
  x.values<float>()[3 * 21 + 20] = INFINITY;
  dy.values<float>()[4 * 7 + 6] = NAN;
  for_each_cpu_target([&](const std::string& target) {
    INFO(target);
    Context context(Device::cpu(), {.threads = 1});
    const Gradients both = gradients(context, x, dy);
    int odd = 0;
    for (std::size_t i = 0; i < 7 * 21; ++i) {
      const bool finite = std::isfinite(both.dw.values<float>()[i]);
      odd += finite != (i % 21 != 20 && i / 21 != 6);
    }
    CHECK(odd == 0);
    for (std::size_t o = 0; o < 7; ++o)
      CHECK(std::isfinite(both.db.values<float>()[o]) == (o != 6));
    Gradients apart{ones({7, 21}, Dtype::f32), ones({7}, Dtype::f32)};
    kernels::linear_weight_gradient(context, x, dy, apart.dw, {});
    kernels::linear_weight_gradient(context, x, dy, {}, apart.db);
    kernels::linear_weight_gradient(context, x, dy, {}, {});
    CHECK(same_bits(apart.dw, both.dw));
    CHECK(same_bits(apart.db, both.db));
  });
}

TEST_CASE("the way back through linear names what does not fit") {
  Context context;
  const Device device = context.device();
  const Tensor weight = uniform({4, 3}, Dtype::f32, 1);
  Tensor panels =
      context.empty({kernels::linear_panel_elements(device, 3, 4, Dtype::f32) + 1}, Dtype::f32);
  CHECK_THROWS_WITH(kernels::pack_linear_backward(context, weight, panels), Contains("panels"));
  CHECK_THROWS_WITH(kernels::pack_linear_backward(context, weight.view().reshape({12}), panels),
                    Contains("weight: shape [12], expected [O, K]"));
  const Tensor x = context.to_device(uniform({2, 3}, Dtype::f32, 2));
  Tensor dw = context.empty({4, 3}, Dtype::f32), db = context.empty({4}, Dtype::f32);
  const auto gradient = [&](const Tensor& dy, const TensorSpan& w, const TensorSpan& b) {
    kernels::linear_weight_gradient(context, x, context.to_device(dy), w, b);
  };
  const Tensor dy = uniform({2, 4}, Dtype::f32, 3);
  CHECK_THROWS_WITH(gradient(uniform({5, 4}, Dtype::f32, 3), dw, db),
                    Contains("dy has shape [5, 4], expected [2, 4]"));
  CHECK_THROWS_WITH(gradient(uniform({2, 4}, Dtype::f64, 3), dw, db),
                    Contains("f64") && Contains("f32"));
  CHECK_THROWS_WITH(gradient(uniform({8}, Dtype::f32, 3), dw, db),
                    Contains("dy: shape [8], expected [M, O]"));
  CHECK_THROWS_WITH(gradient(dy, db, db), Contains("dw has shape [4], expected [4, 3]"));
  CHECK_THROWS_WITH(gradient(dy, dw, dw), Contains("db has shape [4, 3], expected [4]"));
}

TEST_CASE("linear names what does not fit") {
  Context context;
  const Tensor weight = uniform({4, 3}, Dtype::f32, 1), panels = packed(context, weight, {});
  Tensor y = context.empty({2, 4}, Dtype::f32);
  const auto linear = [&](Shape shape, Dtype dtype) {
    kernels::linear(context, context.to_device(uniform(shape, dtype, 2)), panels, y);
  };
  CHECK_THROWS_WITH(linear({2, 55}, Dtype::f32), Contains("panels"));
  CHECK_THROWS_WITH(linear({3, 3}, Dtype::f32), Contains("y has shape [2, 4], expected [3, 4]"));
  CHECK_THROWS_WITH(linear({2, 3}, Dtype::f64), Contains("f32") && Contains("f64"));
  CHECK_THROWS_WITH(packed(context, weight, uniform({3}, Dtype::f32, 2)),
                    Contains("bias has shape [3], expected [4]"));
  CHECK_THROWS_AS(kernels::linear_panel_elements(Device::cpu(), 4, 3, Dtype::f16), Unsupported);
  CHECK_THROWS_AS(kernels::linear_panel_elements(Device::cuda(), 4, 3, Dtype::i64), Unsupported);
  CHECK_NOTHROW(linear({2, 3}, Dtype::f32));
}

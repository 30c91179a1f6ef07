#include "packrnn/kernels/layer_norm.hpp"

#include <cmath>
#include <vector>

#include "packrnn/kernels/recurrent.hpp"
#include "tests/catch.hpp"
#include "tests/kernels/numbers.hpp"
#include "tests/packing_cases.hpp"
#include "tests/shapes.hpp"

namespace packrnn::kernels {
namespace {

using namespace packrnn::tests;

constexpr double kEps = 1e-3;

struct Expected {
  std::vector<double> y, dx, dweight, dbias;
};

Expected reference(const std::vector<double>& x, const std::vector<double>& weight,
                   const std::vector<double>& bias, const std::vector<double>& dy,
                   std::int64_t features) {
  const auto F = at(features);
  const std::size_t rows = x.size() / F;
  Expected e{std::vector<double>(x.size()), std::vector<double>(x.size()), std::vector<double>(F),
             std::vector<double>(F)};
  for (std::size_t r = 0; r < rows; ++r) {
    double mean = 0, variance = 0, inner = 0, slope = 0;
    for (std::size_t i = 0; i < F; ++i) mean += x[r * F + i] / static_cast<double>(F);
    for (std::size_t i = 0; i < F; ++i)
      variance += (x[r * F + i] - mean) * (x[r * F + i] - mean) / static_cast<double>(F);
    const double scale = 1 / std::sqrt(variance + kEps);
    for (std::size_t i = 0; i < F; ++i) {
      const double normal = (x[r * F + i] - mean) * scale, up = dy[r * F + i];
      e.y[r * F + i] = normal * weight[i] + (bias.empty() ? 0 : bias[i]);
      e.dweight[i] += up * normal;
      e.dbias[i] += up;
      inner += up * weight[i] / static_cast<double>(F);
      slope += up * weight[i] * normal / static_cast<double>(F);
    }
    for (std::size_t i = 0; i < F; ++i) {
      const double normal = (x[r * F + i] - mean) * scale;
      e.dx[r * F + i] = scale * (dy[r * F + i] * weight[i] - inner - normal * slope);
    }
  }
  return e;
}

TEST_CASE("layer_norm and its gradients are those of their definition") {
  struct Case {
    std::int64_t rows, features;
  };
  const auto shape =
      GENERATE(Case{1, 1}, Case{3, 7}, Case{2, 64}, Case{5, 100}, Case{70, 33}, Case{300, 5});
  const auto dtype = GENERATE(Dtype::f32, Dtype::f64, Dtype::f16, Dtype::bf16);
  const bool with_bias = GENERATE(true, false);
  Context context;
  if (!on_gpu(context) && size_of(dtype) == 2) return;
  CAPTURE(shape.rows, shape.features, dtype, with_bias);
  const Shape whole{shape.rows, shape.features}, one{shape.features};
  const Tensor x = random_tensor(whole, dtype, 1, 1.0), weight = random_tensor(one, dtype, 2, 1.0),
               bias = with_bias ? random_tensor(one, dtype, 3, 1.0) : Tensor(),
               dy = random_tensor(whole, dtype, 4, 1.0);
  const Tensor before = random_tensor(one, cell_dtype(dtype), 5, 1.0);
  const Expected expected = reference(doubles_of(x), doubles_of(weight),
                                      with_bias ? doubles_of(bias) : std::vector<double>{},
                                      doubles_of(dy), shape.features);
  // Sums are in double. What is stored is below 8 (weights times the square root of F at most, and
  // scale at most 1 / sqrt(eps)) in y, and below 64 in dx.
  const double unit = unit_of(dtype) + 16 * 0x1p-53 * static_cast<double>(shape.features);
  const Tensor x_there = context.to_device(x), weight_there = context.to_device(weight),
               bias_there = with_bias ? context.to_device(bias) : Tensor(),
               dy_there = context.to_device(dy);
  const Target y(context, whole, dtype);
  layer_norm(context, x_there, weight_there, with_bias ? bias_there.view() : TensorView{}, kEps, y);
  CHECK(worst(doubles_of(context.to_host(y.span())), expected.y) <= 8 * unit);
  CHECK(y.guards_intact());

  const Target dx(context, whole, dtype), dweight(context, one, before.dtype()),
      dbias(context, one, before.dtype());
  context.copy(context.to_device(before), dweight.span());
  context.copy(context.to_device(before), dbias.span());
  layer_norm_backward(context, x_there, weight_there, kEps, dy_there, dx, dweight, dbias);
  CHECK(worst(doubles_of(context.to_host(dx.span())), expected.dx) <= 64 * unit);
  const auto sums = [&](const std::vector<double>& gradient) {
    std::vector<double> all = doubles_of(before);
    for (std::size_t i = 0; i < all.size(); ++i) all[i] += gradient[i];
    return all;
  };
  // Rounded when they become f32 and when they are added.
  const double rows = static_cast<double>(shape.rows);
  const double allowed = (2 * unit_of(before.dtype()) + 16 * 0x1p-53 * rows) * 8 * rows;
  CHECK(worst(doubles_of(context.to_host(dweight.span())), sums(expected.dweight)) <= allowed);
  CHECK(worst(doubles_of(context.to_host(dbias.span())), sums(expected.dbias)) <= allowed);
  CHECK(dx.guards_intact());
  CHECK(dweight.guards_intact());
  CHECK(dbias.guards_intact());

  // In place, or one alone, the same bits.
  const Bytes dx_bytes = dx.bytes(), dweight_bytes = dweight.bytes(), dbias_bytes = dbias.bytes();
  context.copy(dy_there, dx.span());
  context.copy(context.to_device(before), dweight.span());
  context.copy(context.to_device(before), dbias.span());
  layer_norm_backward(context, x_there, weight_there, kEps, dx.span(), {}, dweight, {});
  layer_norm_backward(context, x_there, weight_there, kEps, dx.span(), {}, {}, dbias);
  layer_norm_backward(context, x_there, weight_there, kEps, dx.span(), dx, {}, {});
  CHECK(dx.bytes() == dx_bytes);
  CHECK(dweight.bytes() == dweight_bytes);
  CHECK(dbias.bytes() == dbias_bytes);
}

TEST_CASE("a row of layer_norm has the same bits alone and in company") {
  const auto dtype = GENERATE(Dtype::f32, Dtype::f64);
  Context context;
  const Tensor x = random_tensor({40, 37}, dtype, 1, 1.0),
               weight = context.to_device(random_tensor({37}, dtype, 2, 1.0)),
               dy = random_tensor({40, 37}, dtype, 3, 1.0);
  const auto run = [&](std::int64_t begin, std::int64_t end) {
    Tensor y = context.empty({end - begin, 37}, dtype),
           dx = context.empty({end - begin, 37}, dtype);
    const Tensor there = context.to_device(x.view().rows(begin, end));
    layer_norm(context, there, weight, {}, kEps, y);
    layer_norm_backward(context, there, weight, kEps, context.to_device(dy.view().rows(begin, end)),
                        dx, {}, {});
    Bytes both = bytes_on(context, y);
    const Bytes second = bytes_on(context, dx);
    both.insert(both.end(), second.begin(), second.end());
    return both;
  };
  const Bytes all = run(0, 40), alone = run(17, 18);
  const auto row = static_cast<std::ptrdiff_t>(alone.size() / 2);
  CHECK(std::equal(alone.begin(), alone.begin() + row, all.begin() + 17 * row));
  CHECK(std::equal(alone.begin() + row, alone.end(), all.begin() + (40 + 17) * row));
}

TEST_CASE("layer_norm refuses what does not fit") {
  Context context;
  const Tensor x = context.zeros({2, 3}, Dtype::f32), weight = context.zeros({3}, Dtype::f32);
  Tensor y = context.zeros({2, 3}, Dtype::f32), narrow = context.zeros({2}, Dtype::f32);
  check_throws([&] { layer_norm(context, x, narrow, {}, kEps, y); }, {"weight", "[2]", "[3]"});
  check_throws([&] { layer_norm(context, x, weight, narrow, kEps, y); }, {"bias", "[2]", "[3]"});
  check_throws([&] { layer_norm(context, x, weight, {}, -1.0, y); }, {"eps", "-1"});
  check_throws([&] { layer_norm(context, x, weight, {}, kEps, narrow); }, {"y", "[2]", "[2, 3]"});
  check_throws([&] { layer_norm_backward(context, x, weight, kEps, x, narrow, {}, {}); },
               {"dx", "[2]", "[2, 3]"});
  check_throws([&] { layer_norm_backward(context, x, weight, kEps, x, y, narrow, {}); },
               {"dweight", "[2]", "[3]"});
  check_throws([&] { layer_norm_backward(context, x, weight, kEps, x, y, {}, narrow); },
               {"dbias", "[2]", "[3]"});
}

}  // namespace
}  // namespace packrnn::kernels

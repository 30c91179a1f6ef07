#include "packrnn/layers/initialize.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "packrnn/layers/gru.hpp"
#include "packrnn/runtime/error.hpp"
#include "tests/catch.hpp"

namespace packrnn::tests {
namespace {

using Catch::Contains;

Parameters matrix(std::int64_t rows, std::int64_t columns, Dtype dtype = Dtype::f64) {
  return {{{"weight", {rows, columns}}}, dtype};
}

/// Largest element of A A^T - gain^2 I (rows <= columns), or of A^T A, of rows [begin, end).
double orthogonality_error(const TensorView& weight, std::int64_t begin, std::int64_t end,
                           double gain) {
  const Tensor converted = convert(weight.rows(begin, end), Dtype::f64);
  const auto a = converted.values<double>();
  const std::int64_t rows = end - begin, columns = weight.size(1);
  const std::int64_t count = std::min(rows, columns), length = std::max(rows, columns);
  const auto at = [&](std::int64_t vector, std::int64_t i) {
    return a[static_cast<std::size_t>(rows <= columns ? vector * columns + i
                                                      : i * columns + vector)];
  };
  double most = 0.0;
  for (std::int64_t u = 0; u < count; ++u)
    for (std::int64_t v = 0; v < count; ++v) {
      double sum = u == v ? -gain * gain : 0.0;
      for (std::int64_t i = 0; i < length; ++i) sum += at(u, i) * at(v, i);
      most = std::max(most, std::abs(sum));
    }
  return most;
}

TEST_CASE("orthogonal matrices are orthogonal, whatever their form") {
  Generator generator(3);
  for (const auto& [rows, columns] :
       {std::pair{200, 200}, std::pair{64, 10}, std::pair{7, 90}, std::pair{1, 1}})
    for (const double gain : {1.0, 1.5}) {
      Parameters parameters = matrix(rows, columns);
      initialize(parameters, "weight", orthogonal(gain), generator);
      // A few roundings for one vector's length, and no more with more vectors before it.
      const double tolerance = 12.0 * gain * gain * std::numeric_limits<double>::epsilon();
      CHECK(orthogonality_error(parameters.value("weight"), 0, rows, gain) < tolerance);
    }
  CHECK(generator.position() == 8);
}

TEST_CASE("xavier has the moments that it promises") {
  constexpr std::int64_t kOut = 200, kIn = 300;
  const double deviation = 1.7 * std::sqrt(2.0 / (kOut + kIn));
  for (const bool uniform : {true, false}) {
    Generator generator(11);
    Parameters parameters = matrix(kOut, kIn);
    initialize(parameters, "weight", uniform ? xavier_uniform(1.7) : xavier_normal(1.7), generator);
    double sum = 0.0, squares = 0.0, most = 0.0;
    for (const double x : parameters.value("weight").values<double>()) {
      sum += x;
      squares += x * x;
      most = std::max(most, std::abs(x));
    }
    // Five standard errors; the fourth moment of a normal number bounds that of a uniform one.
    constexpr double kCount = kOut * kIn;
    CHECK(std::abs(sum / kCount) < 5.0 * deviation / std::sqrt(kCount));
    CHECK(std::abs(squares / kCount / (deviation * deviation) - 1.0) <
          5.0 * std::sqrt(2.0 / kCount));
    // 60 000 normal numbers reach 4 deviations; uniform ones end at sqrt(3).
    if (uniform) {
      CHECK(most <= std::sqrt(3.0) * deviation);
      CHECK(most > 1.7 * deviation);
    } else {
      CHECK(most > 3.5 * deviation);
    }
  }
}

TEST_CASE("equal generators give equal values, and further draws others") {
  Generator one(5), two(5);
  Parameters a = matrix(4, 4, Dtype::f32), b = matrix(4, 4, Dtype::f32);
  initialize(a, "weight", xavier_normal(), one);
  initialize(b, "weight", xavier_normal(), two);
  CHECK(std::ranges::equal(a.values().values<float>(), b.values().values<float>()));
  initialize(b, "weight", xavier_normal(), two);
  CHECK_FALSE(std::ranges::equal(a.values().values<float>(), b.values().values<float>()));
}

TEST_CASE("a linear layer gets its weight and a bias of zeros") {
  Generator generator(2);
  for (const bool bias : {true, false}) {
    Linear layer({.in_features = 6, .out_features = 4, .bias = bias});
    initialize(layer, constant(0.25), generator);
    for (const float x : layer.parameters().value("weight").values<float>()) CHECK(x == 0.25F);
    if (!bias) continue;
    for (const float x : layer.parameters().value("bias").values<float>()) CHECK(x == 0.0F);
  }
}

TEST_CASE("a recurrent layer is initialised as one matrix or gate by gate") {
  Generator generator(2);
  constexpr std::int64_t kHidden = 8;
  for (const bool per_gate : {false, true}) {
    Lstm layer({.input_size = 5,
                .hidden_size = kHidden,
                .num_layers = 2,
                .bidirectional = true,
                .proj_size = 3});
    initialize(layer, {.input = orthogonal(), .projection = constant(2.0), .per_gate = per_gate},
               generator);
    const Parameters& p = layer.parameters();
    for (std::int64_t i = 0; i < p.count(); ++i) {
      const std::string& name = p.name(i);
      INFO(name);
      if (name.starts_with("bias")) {
        for (const float x : p.value(i).values<float>()) CHECK(x == 0.0F);
      } else if (name.starts_with("weight_hr")) {
        for (const float x : p.value(i).values<float>()) CHECK(x == 2.0F);
      } else {
        const std::int64_t rows = per_gate ? kHidden : 4 * kHidden;
        for (std::int64_t begin = 0; begin < 4 * kHidden; begin += rows)
          CHECK(orthogonality_error(p.value(i), begin, begin + rows, 1.0) < 1e-6);
      }
    }
  }
  Gru gru({.input_size = 5, .hidden_size = kHidden});
  initialize(gru, {.per_gate = true}, generator);
  for (std::int64_t gate = 0; gate < 3; ++gate)
    CHECK(orthogonality_error(gru.parameters().value("weight_hh_l0"), gate * kHidden,
                              (gate + 1) * kHidden, 1.0) < 1e-6);
}

TEST_CASE("the forget bias is the second block of four, once") {
  constexpr std::int64_t kHidden = 3;
  Lstm layer({.input_size = 2, .hidden_size = kHidden, .num_layers = 2, .bidirectional = true});
  const StateDict before = layer.state_dict();
  const std::uint64_t version = layer.parameters().version();
  set_forget_bias(layer, 1.5);
  CHECK(layer.parameters().version() != version);
  for (const auto& [name, old] : before) {
    const auto values = layer.parameters().value(name).values<float>();
    for (std::size_t i = 0; i < values.size(); ++i) {
      const bool forget = name.starts_with("bias") && i >= kHidden && i < 2 * kHidden;
      const float share = name.starts_with("bias_ih") ? 1.5F : 0.0F;
      CHECK(values[i] == (forget ? share : old.values<float>()[i]));
    }
  }
  Lstm without({.input_size = 2, .hidden_size = 3, .bias = false});
  CHECK_THROWS_WITH(set_forget_bias(without, 1.5), Contains("1.5"));
}

TEST_CASE("what has no fans or blocks is refused") {
  Generator generator(1);
  Parameters parameters({{"bias", {4}}}, Dtype::f32);
  for (const auto& one : {xavier_uniform(), xavier_normal(), orthogonal()})
    CHECK_THROWS_WITH(initialize(parameters, "bias", one, generator), Contains("[4]"));
  CHECK_THROWS_WITH(initialize(parameters, "bias", per_block(constant(1.0), 3), generator),
                    Contains("[4]") && Contains("3"));
  CHECK_THROWS_WITH(per_block(constant(1.0), 0), Contains("blocks is 0"));
  CHECK_THROWS_WITH(initialize(parameters, "weight", constant(1.0), generator), Contains("weight"));
  CHECK(generator.position() == 0);
  for (const float x : parameters.values().values<float>()) CHECK(x == 0.0F);
}

}  // namespace
}  // namespace packrnn::tests

// The errors that activations-inl.hpp documents, on every instruction set of this CPU.
#include "tests/kernels/activations.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "tests/catch.hpp"
#include "tests/kernels/cpu_targets.hpp"

using packrnn::for_each_cpu_target;

namespace {

/// Positive and negative values of every magnitude: each `stride`-th bit pattern up to `largest`.
template <class T, class Bits>
std::vector<T> spread(T largest, Bits stride) {
  Bits end;
  std::memcpy(&end, &largest, sizeof end);
  std::vector<T> values;
  for (Bits bits = 0; bits <= end; bits += stride) {
    T value;
    std::memcpy(&value, &bits, sizeof value);
    values.push_back(value);
    values.push_back(-value);
  }
  return values;
}

/// Largest error in units in the last place of the exact result.
template <class T, class Exact>
double worst_ulp(const std::vector<T>& x, const std::vector<T>& y, Exact&& exact) {
  double worst = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const long double truth = exact(static_cast<long double>(x[i]));
    int exponent = 0;
    (void)std::frexp(truth, &exponent);
    exponent = std::max(exponent, std::numeric_limits<T>::min_exponent);
    const long double ulp = std::ldexp(1.0L, exponent - std::numeric_limits<T>::digits);
    worst = std::max(worst, static_cast<double>(std::abs(y[i] - truth) / ulp));
  }
  return worst;
}

long double exact_sigmoid(long double x) { return 1.0L / (1.0L + std::exp(-x)); }
long double exact_tanh(long double x) { return std::tanh(x); }

template <class T, class Bits>
void check_errors(Bits stride) {
  // sigmoid stays normal down to -87 (f32) and -708 (f64), where its argument is limited.
  const std::vector<T> x = spread<T, Bits>(sizeof(T) == 4 ? T(86) : T(700), stride);
  for_each_cpu_target([&](const std::string& target) {
    INFO(target << ", " << 8 * sizeof(T) << " bits");
    std::vector<T> y(x.size());
    packrnn::kernels::apply_sigmoid(x.data(), y.data(), x.size());
    CHECK(worst_ulp(x, y, exact_sigmoid) <= 3.0);
    packrnn::kernels::apply_tanh(x.data(), y.data(), x.size());
    CHECK(worst_ulp(x, y, exact_tanh) <= (sizeof(T) == 4 ? 6.0 : 4.0));
    bool bounded = true;
    for (const T value : y) bounded = bounded && std::abs(value) <= T(1);
    CHECK(bounded);
  });
}

template <class T>
void check_specials() {
  const T inf = std::numeric_limits<T>::infinity(), nan = std::numeric_limits<T>::quiet_NaN();
  const std::vector<T> x = {nan, inf, -inf, T(0), T(-0.0), T(1e4), T(-1e4), T(1)};
  for_each_cpu_target([&](const std::string& target) {
    INFO(target << ", " << 8 * sizeof(T) << " bits");
    std::vector<T> y(x.size());
    packrnn::kernels::apply_sigmoid(x.data(), y.data(), x.size());
    CHECK(std::isnan(y[0]));
    CHECK(y[1] == T(1));
    CHECK(y[2] < T(1e-37));
    CHECK(y[2] >= T(0));
    CHECK(y[3] == T(0.5));
    CHECK(y[5] == T(1));
    packrnn::kernels::apply_tanh(x.data(), y.data(), x.size());
    CHECK(std::isnan(y[0]));
    CHECK(y[1] == T(1));
    CHECK(y[2] == T(-1));
    CHECK(y[3] == T(0));
    CHECK(std::signbit(y[4]));
    CHECK(y[6] == T(-1));
  });
}

}  // namespace

TEST_CASE("sigmoid and tanh keep their documented errors over all magnitudes") {
  check_errors<float, std::uint32_t>(4099);
  check_errors<double, std::uint64_t>(std::uint64_t{1} << 44 | 12345);
}

TEST_CASE("sigmoid and tanh keep their documented errors for every float of interest", "[slow]") {
  // From 2^-12, below which tanh is x and sigmoid 1/2 to the last bits, to where both are constant.
  // Double precision is truth enough: it knows 29 bits more.
  constexpr std::uint32_t kFirst = (127U - 12) << 23, kEnd = (127U + 7) << 23, kBlock = 1U << 20;
  const std::uint32_t skip =
      std::getenv("PACKRNN_ALL_FLOATS") ? 1 : packrnn::tests::full_or_small(11, 61);
  std::vector<float> x(2 * std::size_t{kBlock}), y(x.size());
  std::vector<double> sigmoid(x.size()), tanh(x.size());
  std::map<std::string, std::pair<double, double>> worst;
  for (std::uint32_t block = kFirst; block < kEnd; block += kBlock * skip) {
    for (std::uint32_t i = 0; i < kBlock; ++i) {
      const std::uint32_t bits = block + i;
      std::memcpy(&x[2 * std::size_t{i}], &bits, sizeof bits);
      x[2 * std::size_t{i} + 1] = -x[2 * std::size_t{i}];
    }
    for (std::size_t i = 0; i < x.size(); ++i) {
      // Beyond 86 a sigmoid is limited, and tanh has been 1 for long.
      x[i] = std::clamp(x[i], -86.0F, 86.0F);
      sigmoid[i] = 1.0 / (1.0 + std::exp(-static_cast<double>(x[i])));
      tanh[i] = std::tanh(static_cast<double>(x[i]));
    }
    const auto errors = [&](const std::vector<double>& truth, double& most) {
      for (std::size_t i = 0; i < x.size(); ++i) {
        // An ulp is 2^-23 of the power of two below.
        const double below =
            std::bit_cast<double>(std::bit_cast<std::uint64_t>(truth[i]) & 0x7FF0'0000'0000'0000U);
        most = std::max(most, std::abs(y[i] - truth[i]) / (below * 0x1p-23));
      }
    };
    for_each_cpu_target([&](const std::string& target) {
      auto& [of_sigmoid, of_tanh] = worst[target];
      packrnn::kernels::apply_sigmoid(x.data(), y.data(), x.size());
      errors(sigmoid, of_sigmoid);
      packrnn::kernels::apply_tanh(x.data(), y.data(), x.size());
      errors(tanh, of_tanh);
    });
  }
  CHECK_FALSE(worst.empty());
  for (const auto& [target, errors] : worst) {
    CAPTURE(target, errors.first, errors.second);
    CHECK(errors.first <= 3.2);
    CHECK(errors.second <= 6.6);
  }
}

TEST_CASE("sigmoid and tanh of NaN, infinities, zeros and huge values") {
  check_specials<float>();
  check_specials<double>();
}

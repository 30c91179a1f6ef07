// What the tests of kernels for training share: numbers that a dtype holds exactly, and how far a
// result may be from one computed in double.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "tests/kernels/device_tensors.hpp"

namespace packrnn::tests {

using Doubles = std::vector<double>;

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
inline constexpr double kU64 = 0x1p-53;

/// Those that the context computes in.
inline std::vector<Dtype> computable_dtypes(const Context& context) {
  if (on_gpu(context)) return {Dtype::f32, Dtype::f64, Dtype::f16, Dtype::bf16};
  return {Dtype::f32, Dtype::f64};
}

/// Half the spacing of a dtype's numbers, relative to them and at the least.
inline double unit_of(Dtype dtype) {
  return dtype == Dtype::f64   ? kU64
         : dtype == Dtype::f32 ? 0x1p-24
         : dtype == Dtype::f16 ? 0x1p-11
                               : 0x1p-8;
}
inline double least_of(Dtype dtype) { return dtype == Dtype::f16 ? 0x1p-25 : 0x1p-150; }

inline Tensor tensor_of(const Doubles& values, const Shape& shape, Dtype dtype) {
  return convert(Tensor::from(values, shape), dtype);
}
/// The elements of a tensor on the host.
inline Doubles doubles_of(const TensorView& tensor) {
  const Tensor wide = convert(tensor, Dtype::f64);
  return {wide.values<double>().begin(), wide.values<double>().end()};
}
/// Of one on the context's device; waits, and throws what kernels found wrong.
inline Doubles doubles_on(Context& context, const TensorView& tensor) {
  return doubles_of(context.to_host(tensor));
}

inline std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

/// U(-bound, bound).
inline Tensor random_tensor(const Shape& shape, Dtype dtype, std::uint64_t seed,
                            double bound = 3.0) {
  Random random(seed);
  Doubles values(static_cast<std::size_t>(shape.elements()));
  for (double& value : values) value = bound * random.number();
  return tensor_of(values, shape, dtype);
}

/// "" if every element is as near as allowed(expected): equal infinities and pairs of NaN are.
template <class Allowed>
std::string far_off(const Doubles& got, const Doubles& expected, const Allowed& allowed) {
  if (got.size() != expected.size()) return "another size";
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (got[i] == expected[i] || (std::isnan(got[i]) && std::isnan(expected[i]))) continue;
    if (!(std::abs(got[i] - expected[i]) <= allowed(expected[i])))
      return "element " + std::to_string(i) + " is " + std::to_string(got[i]) + ", expected " +
             std::to_string(expected[i]) + ", off by " + std::to_string(got[i] - expected[i]);
  }
  return {};
}

/// The largest difference; infinite for a NaN or another size.
inline double worst(const Doubles& got, const Doubles& expected) {
  double most = got.size() == expected.size() ? 0 : kInfinity;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double error = std::abs(got[i] - expected[i]);
    most = std::isnan(error) ? kInfinity : std::max(most, error);
  }
  return most;
}

/// For a sum of `terms` terms up to `size` in double that is rounded to the dtype once.
inline auto within(Dtype dtype, double terms, double size) {
  return [=](double expected) {
    return 4 * (terms + 8) * kU64 * (size + std::abs(expected)) +
           unit_of(dtype) * std::abs(expected) + least_of(dtype);
  };
}

}  // namespace packrnn::tests

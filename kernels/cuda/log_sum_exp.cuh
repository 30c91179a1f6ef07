// The logarithm of a softmax's denominator, by a team.
#pragma once

#include <limits>

#include "packrnn/kernels/cuda/team.cuh"
#include "packrnn/runtime/element.hpp"

namespace packrnn::kernels::cuda {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// log(sum of exp(row[c])) in double, for each member. NaN for a row with a NaN or +infinity, and
/// for one of -infinities only; of no use for no elements.
template <class T>
__device__ double log_sum_exp(const Team& team, const T* row, std::int64_t elements) {
  double most = -kInfinity;
  for (std::int64_t c = team.member; c < elements; c += team.size)
    most = fmax(most, convert_element<double>(row[c]));
  most = fold(team.size, most, Larger{});
  double sum = 0;
  for (std::int64_t c = team.member; c < elements; c += team.size)
    sum += exp(convert_element<double>(row[c]) - most);
  return most + log(fold(team.size, sum, Plus{}));
}

}  // namespace packrnn::kernels::cuda

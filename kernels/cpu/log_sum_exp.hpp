// The logarithm of a softmax's denominator; private.
#pragma once

#include <cmath>
#include <cstdint>

namespace packrnn::kernels::cpu {

/// What one exponential costs, in bytes that a core copies meanwhile: for parallel_for().
inline constexpr std::int64_t kExpBytes = 64;

/// log(sum of exp(row[c])), in double and in order of c; one class or more. NaN for a row with a
/// NaN or an infinity, and for one of -infinities only.
template <class T>
double log_sum_exp(const T* row, std::int64_t classes) {
  T most = row[0];
  for (std::int64_t c = 1; c < classes; ++c)
    if (row[c] > most) most = row[c];
  double sum = 0;
  for (std::int64_t c = 0; c < classes; ++c)
    sum += std::exp(static_cast<double>(row[c]) - static_cast<double>(most));
  return static_cast<double>(most) + std::log(sum);
}

}  // namespace packrnn::kernels::cpu

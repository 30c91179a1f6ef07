// Weights and inputs made by formula, so that a test case can be written down in one line and made
// again in any language: the same numbers in this folder, in PyTorch and in a bug report.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tests/reference/rnn.hpp"

namespace packrnn::reference {

// Element j (row-major, from 0) of each tensor becomes 0.3 * sin(j + 1 + k), where k starts at 0
// and grows by 7 after each tensor, in the order of the list.
inline void fill(std::span<Parameter> parameters) {
  std::int64_t k = 0;
  for (Parameter& parameter : parameters) {
    for (std::size_t j = 0; j < parameter.value.size(); ++j) {
      parameter.value[j] = 0.3 * std::sin(static_cast<double>(j) + 1.0 + static_cast<double>(k));
    }
    k += 7;
  }
}

// The parameters of a configuration, filled as above.
[[nodiscard]] inline std::vector<Parameter> filled_parameters(const Config& config) {
  std::vector<Parameter> list = parameters(config);
  fill(list);
  return list;
}

// [T, N, I]: the element with flat row-major index j is sin(0.37 j + 0.2).
[[nodiscard]] inline std::vector<double> xin(std::int64_t T, std::int64_t N, std::int64_t I) {
  std::vector<double> x(static_cast<std::size_t>(T * N * I));
  for (std::size_t j = 0; j < x.size(); ++j) x[j] = std::sin(0.37 * static_cast<double>(j) + 0.2);
  return x;
}

// Rounds to the nearest float, in place. A comparison with an f32 engine must start from numbers
// that both sides hold exactly, or it measures the rounding of the weights instead of the engine.
inline void round_to_float(std::span<double> values) {
  for (double& value : values) value = static_cast<double>(static_cast<float>(value));
}

inline void round_to_float(std::span<Parameter> parameters) {
  for (Parameter& parameter : parameters) round_to_float(std::span<double>(parameter.value));
}

}  // namespace packrnn::reference

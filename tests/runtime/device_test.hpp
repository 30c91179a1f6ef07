// What tests of devices share. They run on whatever Device::best() is: the CPU, where copies are
// plain and nothing is late, the simt device or a GPU.
#pragma once

#include <cstdint>
#include <numeric>
#include <packrnn/runtime/context.hpp>
#include <vector>

namespace packrnn::tests {

/// first, first + 1 ...
inline Tensor counted(std::int64_t count, std::int64_t first = 0) {
  Tensor tensor = Tensor::empty({count}, Dtype::i64);
  std::iota(tensor.values<std::int64_t>().begin(), tensor.values<std::int64_t>().end(), first);
  return tensor;
}

inline std::vector<std::int64_t> values_of(const TensorView& host) {
  const auto values = host.values<std::int64_t>();
  return {values.begin(), values.end()};
}

inline std::vector<std::int64_t> fetch(Context& context, const TensorView& tensor) {
  return values_of(context.to_host(tensor));
}

}  // namespace packrnn::tests

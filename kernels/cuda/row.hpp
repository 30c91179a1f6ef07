// Rows of tensors as the kernels of cuda/pack.hpp take them; plain host code. Private.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "packrnn/kernels/cuda/pack.hpp"
#include "packrnn/kernels/fill_value.hpp"

namespace packrnn::kernels::cuda {

inline std::int64_t address(const void* data) {
  return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(data));
}

/// A row of `bytes`, where `multiples` are addresses and distances that its vectors must divide
/// (joined by |, if convenient).
inline Row row_of(std::int64_t bytes, std::int64_t multiples, const FillValue& fill = {}) {
  Row row;
  row.bytes = bytes;
  row.vector = 16;
  while (row.vector > 2 && (bytes | multiples) % row.vector != 0) row.vector /= 2;
  if (fill.size > 0)
    for (std::size_t at = 0; at < row.fill.size(); at += fill.size)
      std::memcpy(row.fill.data() + at, fill.bytes.data(), fill.size);
  return row;
}

}  // namespace packrnn::kernels::cuda

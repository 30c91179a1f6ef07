// GPU body of kernels/scatter.hpp: arguments are checked. Private.
#pragma once

#include <cstdint>

#include "packrnn/runtime/context.hpp"
#include "packrnn/runtime/dtype.hpp"

namespace packrnn::kernels::cuda {

/// All in device memory.
struct ScatterAdd {
  Dtype dtype = Dtype::f32;         // of rows, floating
  Dtype target_dtype = Dtype::f32;  // the same, or f32 for 16-bit rows
  std::int64_t total = 0;           // M, below 2^31
  std::int64_t count = 0;           // R, below 2^31
  std::int64_t width = 0;           // W
  const void* rows = nullptr;       // [M, W]
  const void* indices = nullptr;    // [M], i64 (wide) or i32
  bool wide = false;
  std::int64_t skip = -1;  // rows of this index are left out
  void* target = nullptr;  // [R, W]
};

/// An index that is neither skip nor in 0 .. R - 1 is left out and reported as a fault.
void scatter_add(Context& context, const ScatterAdd& scatter);

}  // namespace packrnn::kernels::cuda

// Dropout whose mask belongs to the sequence (contract C3): element u of step t of a sequence is
// kept or dropped by a pure function of (seed, draw, layer, sequence id, t, u). Sorting, packing,
// sharding and recomputation cannot change it. In a bidirectional layer u counts through both
// directions.
#pragma once

#include <cstdint>

#include "packrnn/runtime/context.hpp"
#include "packrnn/runtime/packed_layout.hpp"
#include "packrnn/runtime/tensor.hpp"

namespace packrnn::kernels {

struct DropoutKey {
  std::uint64_t seed = 0;   // of the generator
  std::uint64_t draw = 0;   // one per forward call
  std::uint32_t layer = 0;  // the layer whose output is dropped
};

/// In place on packed rows [total, F] (f32 or f64, on a GPU also f16 and bf16, which are multiplied
/// in float and rounded): an element becomes 0 with probability p in [0, 1], else it is multiplied
/// by 1 / (1 - p). A dropped NaN or Inf is 0 too. The same bits on every device.
void dropout(Context& context, const PackedLayout& layout, const DropoutKey& key, double p,
             const TensorSpan& rows);

}  // namespace packrnn::kernels

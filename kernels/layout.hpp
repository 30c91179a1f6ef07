// Packed layouts from lengths that may live on a device, where the host neither sees them nor waits
// for them.
#pragma once

#include <cstdint>

#include "packrnn/runtime/context.hpp"
#include "packrnn/runtime/packed_layout.hpp"
#include "packrnn/runtime/tensor.hpp"

namespace packrnn::kernels {

struct LayoutCapacity {
  /// T of the padded batch, the most that a length may be. Must be given.
  std::int64_t padded_length = -1;
  /// The most that lengths may sum to: packed data has room for so many rows. -1: N * T.
  std::int64_t rows = -1;
  /// Lengths must be in decreasing order.
  bool enforce_sorted = false;
  /// [N], i64, on the context's device: names for the sequences, to which dropout masks are tied.
  /// Undefined: 0 .. N - 1.
  TensorView sequence_ids = {};
};

/// A layout of `lengths` [N], i32 or i64, on the context's device. On a GPU the layout is not
/// known() to the host, its tables are made in stream order by kernels, and captured in a graph
/// they are made again by each launch, from the lengths of that moment. Lengths that are negative,
/// longer than padded_length, or (enforce_sorted) not in order are clamped, a sum beyond `rows`
/// empties the batch, and the next synchronize() or to_host() throws InvalidArgument with position
/// and value. On the CPU it is PackedLayout::make(), and they throw here.
PackedLayoutPtr make_layout(Context& context, const TensorView& lengths,
                            const LayoutCapacity& capacity);

}  // namespace packrnn::kernels

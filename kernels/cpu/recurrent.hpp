// The CPU body of kernels/recurrent.hpp; arguments are already checked.
#pragma once

#include "packrnn/kernels/recurrent.hpp"

namespace packrnn::kernels::cpu {

std::int64_t recurrent_panel_elements(const RecurrentShape& shape);
void pack_recurrent(const RecurrentShape& shape, const RecurrentWeights& weights,
                    const TensorSpan& panels);
void recurrent_forward(Context& context, const RecurrentShape& shape, const PackedLayout& layout,
                       const TensorView& x, std::span<const RecurrentDirection> directions,
                       const TensorSpan& y, const TensorSpan& cells);

/// Live rows per thread from which splitting rows beats splitting columns: below, the row tiles run
/// empty.
inline constexpr std::int64_t kRowsPerThread = 32;

/// Plan::algorithm is the number of threads per direction, 0 for the calling thread alone.
const Plan& recurrent_plan(Context& context, const RecurrentShape& shape,
                           const PackedLayout& layout, std::int64_t directions);

}  // namespace packrnn::kernels::cpu

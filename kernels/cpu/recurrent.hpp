// The CPU body of kernels/recurrent.hpp; arguments are already checked.
#pragma once

#include "packrnn/kernels/recurrent.hpp"

namespace packrnn::kernels::cpu {

std::int64_t recurrent_panel_elements(const RecurrentShape& shape);
void pack_recurrent(Context& context, const RecurrentShape& shape, const RecurrentWeights& weights,
                    const TensorSpan& panels);
void recurrent_forward(Context& context, const RecurrentShape& shape, const PackedLayout& layout,
                       const TensorView& x, std::span<const RecurrentDirection> directions,
                       const TensorSpan& y, const TensorSpan& cells);

/// Live rows per thread from which a team splits rows. Weights that stay in a core's own cache may
/// as well be read by every thread: enough rows to fill a tile, and nobody waits for anybody, which
/// is what counts on a busy machine. Larger weights are read through a shared cache: there each
/// thread should read only its share, until the rows are many enough to pay for reading all.
std::int64_t rows_per_thread(const RecurrentShape& shape);

/// Plan::algorithm is the number of threads per direction, 0 for the calling thread alone.
const Plan& recurrent_plan(Context& context, const RecurrentShape& shape,
                           const PackedLayout& layout, std::int64_t directions);

}  // namespace packrnn::kernels::cpu

// The CPU body of kernels/recurrent_backward.hpp; arguments are already checked.
#pragma once

#include "packrnn/kernels/recurrent_backward.hpp"

namespace packrnn::kernels::cpu {

std::int64_t recurrent_reserve_elements(const RecurrentShape& shape, std::int64_t total);
std::int64_t recurrent_backward_panel_elements(const RecurrentShape& shape);
void pack_recurrent_backward(Context& context, const RecurrentShape& shape,
                             const RecurrentWeights& weights, const TensorSpan& panels);
void recurrent_backward(Context& context, const RecurrentShape& shape, const PackedLayout& layout,
                        const TensorView& x, const TensorView& y, const TensorView& dy,
                        std::span<const RecurrentBackwardDirection> directions,
                        const TensorSpan& dx);

}  // namespace packrnn::kernels::cpu

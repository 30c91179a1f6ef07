// The CPU body of kernels/dropout.hpp; arguments are already checked, `key` is that of the layer
// and draw.
#pragma once

#include "packrnn/kernels/dropout.hpp"

namespace packrnn::kernels::cpu {

void dropout(Context& context, const PackedLayout& layout, PhiloxKey key, double p,
             const TensorSpan& rows);

}  // namespace packrnn::kernels::cpu

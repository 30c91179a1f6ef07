// The CPU body of kernels/dropout.hpp; arguments are already checked.
#pragma once

#include "packrnn/kernels/dropout.hpp"

namespace packrnn::kernels::cpu {

void dropout(Context& context, const PackedLayout& layout, const DropoutKey& key, double p,
             const TensorSpan& rows);

}  // namespace packrnn::kernels::cpu

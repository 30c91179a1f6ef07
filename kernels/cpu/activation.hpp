// The CPU body of activate() of kernels/activation.hpp; arguments are already checked.
#pragma once

#include "packrnn/kernels/activation.hpp"

namespace packrnn::kernels::cpu {

void activate(ThreadPool& pool, Activation activation, const TensorView& x, const TensorSpan& y);

}  // namespace packrnn::kernels::cpu

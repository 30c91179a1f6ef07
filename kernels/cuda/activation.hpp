// GPU bodies of kernels/activation.hpp: arguments are checked. Private.
#pragma once

#include <cstdint>

#include "packrnn/kernels/activation.hpp"
#include "packrnn/runtime/dtype.hpp"
#include "packrnn/runtime/gpu.hpp"

namespace packrnn::kernels::cuda {

/// `count` elements of a floating dtype in device memory.
void activate(gpu::Stream stream, Activation activation, Dtype dtype, const void* x,
              std::int64_t count, void* y);
void activate_backward(gpu::Stream stream, Activation activation, Dtype dtype, const void* y,
                       const void* dy, std::int64_t count, void* dx);

}  // namespace packrnn::kernels::cuda

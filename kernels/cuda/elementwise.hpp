// GPU bodies of kernels/elementwise.hpp that compute: arguments are checked. Private.
#pragma once

#include <cstdint>

#include "packrnn/runtime/dtype.hpp"
#include "packrnn/runtime/gpu.hpp"

namespace packrnn::kernels::cuda {

/// `count` elements of one floating dtype to another, rounded to nearest even, in device memory.
void convert(gpu::Stream stream, const void* source, Dtype from, std::int64_t count, void* target,
             Dtype to);

}  // namespace packrnn::kernels::cuda

// GPU bodies of kernels/elementwise.hpp that compute: arguments are checked. Private.
#pragma once

#include <cstdint>

#include "packrnn/runtime/dtype.hpp"
#include "packrnn/runtime/gpu.hpp"

namespace packrnn::kernels::cuda {

/// y = a + factor * b, a * b, factor * x of `count` elements of a floating dtype; 16-bit ones are
/// rounded once, at the end.
void add_scaled(gpu::Stream stream, Dtype dtype, const void* a, double factor, const void* b,
                std::int64_t count, void* y);
void multiply(gpu::Stream stream, Dtype dtype, const void* a, const void* b, std::int64_t count,
              void* y);
void scale(gpu::Stream stream, Dtype dtype, const void* x, double factor, std::int64_t count,
           void* y);

/// `count` elements of one floating dtype to another, rounded to nearest even, in device memory.
void convert(gpu::Stream stream, const void* source, Dtype from, std::int64_t count, void* target,
             Dtype to);

}  // namespace packrnn::kernels::cuda

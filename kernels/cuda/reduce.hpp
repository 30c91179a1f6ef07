// GPU body of kernels/reduce.hpp: arguments are checked. Private.
#pragma once

#include <cstdint>

#include "packrnn/kernels/reduce.hpp"
#include "packrnn/runtime/device_layout.hpp"
#include "packrnn/runtime/dtype.hpp"
#include "packrnn/runtime/gpu.hpp"

namespace packrnn::kernels::cuda {

/// packed [rows, features] and target [batch, features] of a floating dtype in device memory.
void reduce(gpu::Stream stream, Reduction reduction, const DeviceLayout& layout, Dtype dtype,
            const void* packed, std::int64_t features, double empty_value, void* target);

/// target [rows, features] from gradient [batch, features]; rows past the total of a layout made on
/// the device become zero. packed is read for the maximum only.
void reduce_backward(gpu::Stream stream, Reduction reduction, const DeviceLayout& layout,
                     Dtype dtype, const void* packed, std::int64_t features, const void* gradient,
                     void* target);

}  // namespace packrnn::kernels::cuda

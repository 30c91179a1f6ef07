// GPU body of kernels/dropout.hpp: arguments are checked. Private.
#pragma once

#include <cstdint>

#include "packrnn/runtime/device_layout.hpp"
#include "packrnn/runtime/dtype.hpp"
#include "packrnn/runtime/gpu.hpp"
#include "packrnn/runtime/philox.hpp"

namespace packrnn::kernels::cuda {

/// In place on rows [rows, width] of a floating dtype in device memory; `key` is that of the layer
/// and draw.
void dropout(gpu::Stream stream, const DeviceLayout& layout, PhiloxKey key, double p, Dtype dtype,
             std::int64_t width, void* rows);

}  // namespace packrnn::kernels::cuda

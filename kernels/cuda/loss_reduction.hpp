// GPU bodies of kernels/loss_reduction.hpp: arguments are checked, pointers are device memory.
// Nothing waits. `layout` is null where there is none. Private.
#pragma once

#include <cstdint>

#include "packrnn/kernels/loss_reduction.hpp"
#include "packrnn/runtime/context.hpp"
#include "packrnn/runtime/device_layout.hpp"
#include "packrnn/runtime/dtype.hpp"

namespace packrnn::kernels::cuda {

void loss_scales(Context& context, Average average, const double* weights, std::int64_t rows,
                 const DeviceLayout* layout, double* scales);

void leave_out_infinite(Context& context, const double* losses, std::int64_t rows, double* scales);

/// result f32 or f64, as its dtype says.
void collect_losses(Context& context, Collect collect, const DeviceLayout* layout,
                    const double* losses, const double* scales, std::int64_t rows, Dtype dtype,
                    void* result);

void collect_losses_backward(Context& context, Collect collect, const DeviceLayout* layout,
                             Dtype dtype, const void* gradient, const double* scales,
                             std::int64_t rows, double* row_gradients);

}  // namespace packrnn::kernels::cuda

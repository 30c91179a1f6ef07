// The recurrence on tensor cores step by step: for shapes, cells and devices that the persistent
// kernels do not take. Private.
#pragma once

#include "packrnn/kernels/cuda/recurrent_run.hpp"
#include "packrnn/runtime/context.hpp"

namespace packrnn::kernels::cuda {

/// f16, bf16, and f32 unless the context's f32_math() is exact. Any cell, any size, projection too.
/// A sequence gets the same bits in any company: every product has one algorithm per n and k.
/// Where the host knows no batch sizes, each step multiplies all rows and uses those alive.
void tensor_step_forward(Context& context, const RecurrentRun& run);

}  // namespace packrnn::kernels::cuda

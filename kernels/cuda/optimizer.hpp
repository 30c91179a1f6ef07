// GPU bodies of kernels/optimizer.hpp: arguments are checked, pointers are device memory. Nothing
// waits. Private.
#pragma once

#include <cstdint>

#include "packrnn/kernels/optimizer.hpp"
#include "packrnn/runtime/context.hpp"
#include "packrnn/runtime/dtype.hpp"

namespace packrnn::kernels::cuda {

/// Of f32 or f64 with all of them; `rounded` of f16, bf16 or null.
struct SteppedValues {
  std::int64_t count = 0;
  Dtype dtype = Dtype::f32;
  void* values = nullptr;
  const void* gradients = nullptr;
  void* rounded = nullptr;
  Dtype rounded_dtype = Dtype::f16;
};

/// velocity is null without momentum.
void sgd(gpu::Stream stream, const SgdStep& step, const SteppedValues& to, void* velocity);
void adam(gpu::Stream stream, const AdamStep& step, const SteppedValues& to, void* first,
          void* second);

void squared_norm(Context& context, Dtype dtype, const void* values, std::int64_t count,
                  double* result);
void scale(gpu::Stream stream, double factor, Dtype dtype, std::int64_t count, void* values);
void clamp(gpu::Stream stream, double bound, Dtype dtype, std::int64_t count, void* values);

}  // namespace packrnn::kernels::cuda

// GPU bodies of kernels/ctc.hpp: arguments are checked, pointers are device memory. Nothing waits;
// labels that are not legal are faults, and give NaN. Private.
#pragma once

#include <cstdint>

#include "packrnn/kernels/ctc.hpp"
#include "packrnn/runtime/context.hpp"
#include "packrnn/runtime/device_layout.hpp"
#include "packrnn/runtime/dtype.hpp"

namespace packrnn::kernels::cuda {

struct CtcBatch {
  DeviceLayout layout;
  Dtype dtype = Dtype::f32;
  const void* logits = nullptr;          // [rows_capacity, classes]
  const std::int64_t* labels = nullptr;  // of all sequences, caller's order
  const std::int64_t* begins = nullptr;  // [batch + 1]
  std::int64_t classes = 0, blank = 0;
  std::int64_t states = 1;  // of the sequence with most labels: 2 L + 1
  DeviceFault* fault = nullptr;
};

void ctc(Context& context, const CtcBatch& batch, double* log_sum_exp, double* losses);
void ctc_backward(Context& context, const CtcBatch& batch, const double* log_sum_exp,
                  const double* losses, const double* scales, void* gradient);

}  // namespace packrnn::kernels::cuda

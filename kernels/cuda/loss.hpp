// GPU bodies of kernels/loss.hpp: arguments are checked, pointers are device memory. Nothing waits
// or allocates; targets and weights that are not legal are faults, and give NaN. Private.
#pragma once

#include <cstdint>

#include "packrnn/kernels/loss.hpp"
#include "packrnn/runtime/device_fault.hpp"
#include "packrnn/runtime/dtype.hpp"
#include "packrnn/runtime/gpu.hpp"

namespace packrnn::kernels::cuda {

struct CrossEntropyRows {
  Dtype dtype = Dtype::f32;
  const void* logits = nullptr;  // [rows, classes]
  const std::int64_t* targets = nullptr;
  const double* class_weights = nullptr;  // null: ones
  std::int64_t rows = 0, classes = 0, ignore_index = 0;
  double target_part = 1.0, other_part = 0.0;  // of a row's target and of each class besides
  DeviceFault* fault = nullptr;
};

/// weights may be null.
void cross_entropy(gpu::Stream stream, const CrossEntropyRows& rows, double* log_sum_exp,
                   double* losses, double* weights);
void cross_entropy_backward(gpu::Stream stream, const CrossEntropyRows& rows,
                            const double* log_sum_exp, const double* scales, void* gradient);

/// Repeated until they cover the input; null: ones.
struct RepeatedWeights {
  const double* values = nullptr;
  std::int64_t count = 0;
};

struct ElementRows {
  ElementLoss loss = ElementLoss::squared_error;
  Dtype dtype = Dtype::f32;
  const void *input = nullptr, *target = nullptr;  // [rows, part]
  RepeatedWeights weight = {}, pos_weight = {};
  std::int64_t rows = 0, part = 0;
  DeviceFault* fault = nullptr;
};

void element_losses(gpu::Stream stream, const ElementRows& rows, double* losses);
void element_losses_backward(gpu::Stream stream, const ElementRows& rows, const double* scales,
                             void* gradient);

void argmax(gpu::Stream stream, Dtype dtype, const void* rows, std::int64_t count,
            std::int64_t classes, std::int64_t* result);

void widen_indices(gpu::Stream stream, const std::int32_t* indices, std::int64_t count,
                   std::int64_t* result);

}  // namespace packrnn::kernels::cuda

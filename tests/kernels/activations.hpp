// The vector activations as functions over arrays, dispatched like the kernels that use them.
#pragma once

#include <cstddef>

namespace packrnn::kernels {

void apply_sigmoid(const float* x, float* y, std::size_t count);
void apply_sigmoid(const double* x, double* y, std::size_t count);
void apply_tanh(const float* x, float* y, std::size_t count);
void apply_tanh(const double* x, double* y, std::size_t count);

}  // namespace packrnn::kernels

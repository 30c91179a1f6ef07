// Products as chains on a GPU: y = x W^T + b in f32 and f64, to the bit what the CPU engine gives;
// private. The 16-bit layers multiply through gpu::multiply().
#pragma once

#include <cstdint>

#include "packrnn/runtime/dtype.hpp"
#include "packrnn/runtime/gpu.hpp"
#include "packrnn/runtime/tensor.hpp"

namespace packrnn::kernels::cuda {

/// The packed form of a weight [O, K] and a bias [O]: offsets in elements of the weight's dtype.
struct LinearPanels {
  std::int64_t pitch;     // of a row of the weight, which begins at 0: K rounded up to 16 bytes
  std::int64_t bias;      // [O] f32 (f64 in f64), aligned to 64 bytes
  std::int64_t elements;  // of the whole

  static LinearPanels of(std::int64_t outputs, std::int64_t k, Dtype dtype);
};

/// Assigns the panels; all in the host's memory. `bias` may be undefined.
void fill_panels(const TensorView& weight, const TensorView& bias, void* panels);

/// The same of a weight and a bias in device memory; `transposed`: of the transpose [K, O] of the
/// weight, without bias.
void fill_panels(gpu::Stream stream, const TensorView& weight, const TensorView& bias,
                 bool transposed, void* panels);

/// All in device memory, f32 or f64.
struct ChainProduct {
  Dtype dtype = Dtype::f32;
  std::int64_t rows = 0, outputs = 0, k = 0;
  const void* x = nullptr;     // [rows, k], row pitch ldx (elements)
  const void* w = nullptr;     // [outputs, k], row pitch ldw
  const void* bias = nullptr;  // [outputs]; null: zeros
  void* y = nullptr;           // [rows, outputs], row pitch ldy
  std::int64_t ldx = 0, ldw = 0, ldy = 0;
  bool accumulate = false;  // chains go on from what y holds, not from the bias
};

/// Assigns y: each element is one chain of fused multiply-adds from the bias on, over ascending k.
/// w is padded with zeros to whole 16 bytes, and aligned to them.
void chain_product(gpu::Stream stream, const ChainProduct& product);

}  // namespace packrnn::kernels::cuda

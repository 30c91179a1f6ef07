// Sums over all rows of a batch, which gradients of weights and biases are; private. The terms of a
// sum are added in an order that follows from the shapes alone: two runs give the same bits, on any
// GPU. The host does not wait, and knows the number of rows: where it is only an upper bound, rows
// beyond those in use hold zeros.
#pragma once

#include <cstdint>

#include "packrnn/runtime/context.hpp"
#include "packrnn/runtime/dtype.hpp"

namespace packrnn::kernels::cuda {

/// All in device memory. `sums` are f64 for f64, else f32, and may overlap nothing else.
struct GradientProduct {
  Dtype dtype = Dtype::f32;  // of a and b
  std::int64_t rows = 0, m = 0, n = 0;
  const void* a = nullptr;                    // [rows, m]
  const void* b = nullptr;                    // [rows, n]
  void* sums = nullptr;                       // [m, n]
  std::int64_t lda = 0, ldb = 0, ldsums = 0;  // elements between rows
};

/// sums += a^T b. f64, and f32 unless the context's F32Math is tf32, in chains of fused
/// multiply-adds; 16-bit and tf32 on tensor cores.
void gradient_product(Context& context, const GradientProduct& product);

struct ColumnSums {
  Dtype dtype = Dtype::f32;  // of values
  std::int64_t rows = 0, columns = 0;
  const void* values = nullptr;  // [rows, columns]
  void* sums = nullptr;          // [columns]
  std::int64_t ld = 0;           // elements between rows
};

/// sums += the sum of each column.
void column_sums(Context& context, const ColumnSums& sums);

}  // namespace packrnn::kernels::cuda

// Products of a recurrent layer over many tokens at once, in whatever arithmetic the layer has;
// private.
#pragma once

#include <cstddef>

#include "packrnn/kernels/cuda/linear.hpp"
#include "packrnn/kernels/recurrent.hpp"

namespace packrnn::kernels::cuda {

/// Elements of any dtype from `offset` elements on.
inline const void* at(const void* data, std::int64_t offset, Dtype dtype) {
  return static_cast<const std::byte*>(data) + offset * static_cast<std::int64_t>(size_of(dtype));
}
inline void* at(void* data, std::int64_t offset, Dtype dtype) {
  return static_cast<std::byte*>(data) + offset * static_cast<std::int64_t>(size_of(dtype));
}

/// Whether such a layer's products over tokens are chains. tf32x3 comes close to f32; here it may
/// as well be f32.
bool in_chains(const Context& context, Dtype dtype);

/// As chain_product(), for any floating dtype: x and w are of it, bias and y of its cell_dtype().
/// What are no chains are products by tensor cores: then `bias` and `accumulate` exclude each
/// other. A row has the same bits whatever rows stand beside it.
void layer_product(Context& context, const ChainProduct& product);

/// Assigns gx [rows, units * G] of cell_dtype() = x W_ih^T + bias, by RecurrentPanels.
void input_product(Context& context, const RecurrentShape& shape, const void* panels, const void* x,
                   std::int64_t rows, void* gx);

}  // namespace packrnn::kernels::cuda

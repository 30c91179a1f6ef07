// The pointwise part of one step of each cell, for one unit of one row: what cpu/cells-inl.hpp does
// for a vector of them. Math is ExactMath (the CPU's bits) or FastMath; A is float or double.
#pragma once

#include "packrnn/kernels/cuda/activations.cuh"
#include "packrnn/kernels/recurrent.hpp"

namespace packrnn::kernels::cuda {

/// sum: i f g o. Assigns c' to c and returns o tanh(c').
template <class Math, class A>
__device__ __forceinline__ A lstm_cell(const A* sum, A& c) {
  const A i = Math::sigmoid(sum[0]), f = Math::sigmoid(sum[1]);
  const A g = Math::tanh(sum[2]), o = Math::sigmoid(sum[3]);
  c = fma(f, c, i * g);
  return o * Math::tanh(c);
}

/// sum: r, z, W_hn h + b_hn; input_n: W_in x + b_in. Returns (1 - z) n + z h.
template <class Math, class A>
__device__ __forceinline__ A gru_cell(const A* sum, A input_n, A h) {
  const A r = Math::sigmoid(sum[0]), z = Math::sigmoid(sum[1]);
  const A n = Math::tanh(fma(r, sum[2], input_n));
  return fma(z, h - n, n);
}

/// Reset before, first half. sum: r z. Assigns z and returns r h.
template <class Math, class A>
__device__ __forceinline__ A gru_reset(const A* sum, A h, A& z) {
  z = Math::sigmoid(sum[1]);
  return Math::sigmoid(sum[0]) * h;
}

/// Reset before, second half. sum: W_in x + W_hn (r h) + both biases.
template <class Math, class A>
__device__ __forceinline__ A gru_update(A sum, A z, A h) {
  const A n = Math::tanh(sum);
  return fma(z, h - n, n);
}

/// PyTorch's relu: NaN stays NaN.
template <bool kRelu, class Math, class A>
__device__ __forceinline__ A rnn_cell(A sum) {
  if constexpr (kRelu)
    return at_least(A(0), sum);
  else
    return Math::tanh(sum);
}

/// h' of a cell with one product per step. sum: G sums in the order of the gates, of a GRU's n the
/// recurrent part only; input_n and h: GRU only; c: LSTM only, updated.
template <Cell kCell, class Math, class A>
__device__ __forceinline__ A cell(const A* sum, A input_n, A h, A& c) {
  static_assert(kCell != Cell::gru_reset_before, "takes two products per step");
  if constexpr (kCell == Cell::lstm)
    return lstm_cell<Math>(sum, c);
  else if constexpr (kCell == Cell::gru)
    return gru_cell<Math>(sum, input_n, h);
  else
    return rnn_cell<kCell == Cell::rnn_relu, Math>(sum[0]);
}

}  // namespace packrnn::kernels::cuda

// The way back through the pointwise part of one step of each cell, for one unit of one row: what
// cpu/cells_backward-inl.hpp does for a vector of them, operation by operation. Gates are those
// after their activations; what is assigned are the gradients of the sums in front of them.
#pragma once

#include "packrnn/kernels/cuda/activations.cuh"

namespace packrnn::kernels::cuda {

/// grad x (1 - x): through a sigmoid whose result is x.
template <class A>
__device__ __forceinline__ A through_sigmoid(A grad, A x) {
  return grad * fma(-x, x, x);
}

/// grad (1 - x^2): through a tanh whose result is x.
template <class A>
__device__ __forceinline__ A through_tanh(A grad, A x) {
  return fma(-(grad * x), x, grad);
}

/// dh is of o tanh(c). dc comes back from the step after and becomes that of the step before.
/// gates: i f g o; sums: di df dg do.
template <class Math, class A>
__device__ __forceinline__ void lstm_back(A dh, const A* gates, A c, A c_before, A& dc, A* sums) {
  const A i = gates[0], f = gates[1], g = gates[2], o = gates[3];
  const A tanh_c = Math::tanh(c);
  const A cell = dc + through_tanh(dh * o, tanh_c);
  sums[0] = through_sigmoid(cell * g, i);
  sums[1] = through_sigmoid(cell * c_before, f);
  sums[2] = through_tanh(cell * i, g);
  sums[3] = through_sigmoid(dh * tanh_c, o);
  dc = cell * f;
}

/// gates: r z n and W_hn h + b_hn; sums: d(W_hn h + b_hn) dr dz dn. Returns what reaches h_before
/// past the products.
template <class A>
__device__ __forceinline__ A gru_back(A dh, const A* gates, A h_before, A* sums) {
  const A r = gates[0], z = gates[1], n = gates[2];
  const A dn = through_tanh(fma(-dh, z, dh), n);
  sums[0] = dn * r;
  sums[1] = through_sigmoid(dn * gates[3], r);
  sums[2] = through_sigmoid(dh * (h_before - n), z);
  sums[3] = dn;
  return dh * z;
}

/// Reset before, first half; gates: r z n. Assigns dz and dn. Returns what reaches h_before through
/// neither product.
template <class A>
__device__ __forceinline__ A gru_update_back(A dh, const A* gates, A h_before, A& dz, A& dn) {
  const A z = gates[1], n = gates[2];
  dz = through_sigmoid(dh * (h_before - n), z);
  dn = through_tanh(fma(-dh, z, dh), n);
  return dh * z;
}

/// Reset before, second half, from the gradient of r h. Assigns dr. Returns what reaches h_before
/// by r h.
template <class A>
__device__ __forceinline__ A gru_reset_back(A d_reset, A r, A h_before, A& dr) {
  dr = through_sigmoid(d_reset * h_before, r);
  return d_reset * r;
}

/// h is the step's. As PyTorch: what was NaN, relu lets through.
template <class A>
__device__ __forceinline__ A rnn_back(bool relu, A dh, A h) {
  if (relu) return h <= A(0) ? A(0) : dh;
  return through_tanh(dh, h);
}

}  // namespace packrnn::kernels::cuda

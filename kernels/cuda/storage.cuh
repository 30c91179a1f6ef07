// Elements as they are stored and as they are computed with, for kernels of every dtype.
#pragma once

#include <type_traits>

#include "packrnn/kernels/cuda/device.cuh"
#include "packrnn/runtime/dtype.hpp"

namespace packrnn::kernels::cuda {

/// What sums of T are kept in: double for double, else float.
template <class T>
struct SumOf {
  using type = float;
};
template <>
struct SumOf<double> {
  using type = double;
};
template <class T>
using Sum = typename SumOf<T>::type;

PACKRNN_DEVICE float value_of(float stored) { return stored; }
PACKRNN_DEVICE double value_of(double stored) { return stored; }
PACKRNN_DEVICE float value_of(Bf16 stored) { return to_float(stored); }
PACKRNN_DEVICE float value_of(F16 stored) { return to_float(stored); }

/// The value as a T: 16-bit types round to nearest.
template <class T>
PACKRNN_DEVICE T stored(Sum<T> value) {
  if constexpr (sizeof(T) == 2)
    return from_float<T>(value);
  else
    return value;
}

/// Calls body(std::type_identity<T>) for a floating dtype; others were refused before.
template <class Body>
void with_floating(Dtype dtype, Body&& body) {
  switch (dtype) {
    case Dtype::f64:
      return body(std::type_identity<double>{});
    case Dtype::f16:
      return body(std::type_identity<F16>{});
    case Dtype::bf16:
      return body(std::type_identity<Bf16>{});
    default:
      return body(std::type_identity<float>{});
  }
}

}  // namespace packrnn::kernels::cuda

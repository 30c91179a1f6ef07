// y = f(a, b), element by element, for every floating dtype; computed in float or double. Bound by
// memory: a thread takes as many elements as 16 bytes hold, as one vector where addresses allow it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "packrnn/kernels/cuda/launch.cuh"
#include "packrnn/kernels/cuda/rows.cuh"
#include "packrnn/kernels/cuda/storage.cuh"

namespace packrnn::kernels::cuda {

template <class T>
struct alignas(16) MapVector {
  static constexpr int kCount = 16 / static_cast<int>(sizeof(T));
  T value[kCount];
};

template <class T, class Function>
__global__ void __launch_bounds__(kRowThreads)
    map_kernel(const T* a, const T* b, std::int64_t count, bool aligned, Function function, T* y) {
  using Vector = MapVector<T>;
  constexpr int kEach = Vector::kCount;
  const auto value = [&](T first, T second) {
    return stored<T>(function(value_of(first), value_of(second)));
  };
  for (std::int64_t i = first_item() * kEach; i < count; i += item_stride() * kEach) {
    if (aligned && i + kEach <= count) {
      const Vector first = *reinterpret_cast<const Vector*>(a + i);
      const Vector second = *reinterpret_cast<const Vector*>(b + i);
      Vector result;
      PACKRNN_UNROLL
      for (int j = 0; j < kEach; ++j) result.value[j] = value(first.value[j], second.value[j]);
      *reinterpret_cast<Vector*>(y + i) = result;
    } else {
      for (std::int64_t j = i; j < min(count, i + kEach); ++j) y[j] = value(a[j], b[j]);
    }
  }
}

/// Function::operator()(A, A) with A = Sum<T>; of one argument where b is a. y may be a or b.
template <class T, class Function>
void map_elements(gpu::Stream stream, const void* a, const void* b, std::int64_t count,
                  Function function, void* y) {
  constexpr int kEach = MapVector<T>::kCount;
  const auto addresses = reinterpret_cast<std::uintptr_t>(a) | reinterpret_cast<std::uintptr_t>(b) |
                         reinterpret_cast<std::uintptr_t>(y);
  if (count == 0) return;
  const gpu::LaunchShape shape = strided_shape(stream, (count + kEach - 1) / kEach);
  const auto *const first = static_cast<const T*>(a), *const second = static_cast<const T*>(b);
  const bool aligned = addresses % 16 == 0;
  const auto kernel = PACKRNN_KERNEL(map_kernel<T, Function>);
  launch(stream, kernel, shape, first, second, count, aligned, function, static_cast<T*>(y));
}

}  // namespace packrnn::kernels::cuda

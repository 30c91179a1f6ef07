// Sums and products of elements (map.cuh), and conversions between floating dtypes. Bound by
// memory; a thread converts eight elements, whose bytes are one or more whole vectors on either
// side where addresses allow it.
#include <algorithm>
#include <type_traits>

#include "packrnn/kernels/cuda/elementwise.hpp"
#include "packrnn/kernels/cuda/launch.cuh"
#include "packrnn/kernels/cuda/map.cuh"
#include "packrnn/kernels/cuda/rows.cuh"
#include "packrnn/runtime/element.hpp"

namespace packrnn::kernels::cuda {
namespace {

constexpr int kEach = 8;

template <class T>
struct alignas(16) Each {
  T value[kEach];
};

template <class S, class T>
__global__ void __launch_bounds__(kRowThreads)
    convert_kernel(const S* source, std::int64_t count, bool aligned, T* target) {
  for (std::int64_t i = first_item() * kEach; i < count; i += item_stride() * kEach) {
    if (aligned && i + kEach <= count) {
      const Each<S> from = *reinterpret_cast<const Each<S>*>(source + i);
      Each<T> to;
      PACKRNN_UNROLL
      for (int j = 0; j < kEach; ++j) to.value[j] = convert_element<T>(from.value[j]);
      *reinterpret_cast<Each<T>*>(target + i) = to;
    } else {
      for (std::int64_t j = i; j < count && j < i + kEach; ++j)
        target[j] = convert_element<T>(source[j]);
    }
  }
}

template <class A>
struct AddScaled {
  A factor;
  __device__ A operator()(A a, A b) const { return a + factor * b; }
};

template <class A>
struct Multiply {
  __device__ A operator()(A a, A b) const { return a * b; }
};

template <class A>
struct Scale {
  A factor;
  __device__ A operator()(A a, A) const { return factor * a; }
};

bool is_aligned(const void* data) { return reinterpret_cast<std::uintptr_t>(data) % 16 == 0; }

}  // namespace

void add_scaled(gpu::Stream stream, Dtype dtype, const void* a, double factor, const void* b,
                std::int64_t count, void* y) {
  with_floating(dtype, [&]<class T>(std::type_identity<T>) {
    using A = Sum<T>;
    map_elements<T>(stream, a, b, count, AddScaled<A>{static_cast<A>(factor)}, y);
  });
}

void multiply(gpu::Stream stream, Dtype dtype, const void* a, const void* b, std::int64_t count,
              void* y) {
  with_floating(dtype, [&]<class T>(std::type_identity<T>) {
    map_elements<T>(stream, a, b, count, Multiply<Sum<T>>{}, y);
  });
}

void scale(gpu::Stream stream, Dtype dtype, const void* x, double factor, std::int64_t count,
           void* y) {
  with_floating(dtype, [&]<class T>(std::type_identity<T>) {
    using A = Sum<T>;
    map_elements<T>(stream, x, x, count, Scale<A>{static_cast<A>(factor)}, y);
  });
}

void convert(gpu::Stream stream, const void* source, Dtype from, std::int64_t count, void* target,
             Dtype to) {
  if (count == 0) return;
  const gpu::LaunchShape shape = strided_shape(stream, (count + kEach - 1) / kEach);
  const bool aligned = is_aligned(source) && is_aligned(target);
  with_dtype(from, [&]<class S>(std::type_identity<S>) {
    with_dtype(to, [&]<class T>(std::type_identity<T>) {
      // Equal and integer dtypes are not converted here.
      if constexpr (!std::is_integral_v<S> && !std::is_integral_v<T> && !std::is_same_v<S, T>)
        launch(stream, PACKRNN_KERNEL(convert_kernel<S, T>), shape, static_cast<const S*>(source),
               count, aligned, static_cast<T*>(target));
    });
  });
}

}  // namespace packrnn::kernels::cuda

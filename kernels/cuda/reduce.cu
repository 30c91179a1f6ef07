// Sums, means and maxima over the elements of each packed sequence. One thread folds one feature of
// one sequence in time order, so a result has the CPU's bits. In sorted order neighbouring threads
// read neighbouring elements of a step; kAhead loads are under way while the sums wait for theirs.
// Bound by memory where there are enough sequences and features, else by the latency of kAhead
// loads.
#include <type_traits>

#include "packrnn/kernels/cuda/launch.cuh"
#include "packrnn/kernels/cuda/reduce.hpp"
#include "packrnn/kernels/cuda/rows.cuh"
#include "packrnn/kernels/cuda/storage.cuh"
#include "packrnn/runtime/element.hpp"

namespace packrnn::kernels::cuda {
namespace {

constexpr int kAhead = 8;

struct Add {
  template <class A>
  __device__ static A combine(A sum, A value) {
    return sum + value;
  }
};

struct Max {
  // The second comparison is true for NaN alone; once taken, no value is greater.
  template <class A>
  __device__ static A combine(A most, A value) {
    return value > most || value != value ? value : most;
  }
};

template <class T, class Combine>
__global__ void __launch_bounds__(kRowThreads)
    reduce_kernel(DeviceLayout layout, const T* packed, std::int64_t features, bool mean, T empty,
                  T* target) {
  using A = std::conditional_t<std::is_same_v<T, double>, double, float>;
  const std::int64_t count = layout.batch * features;
  for (std::int64_t i = first_item(); i < count; i += item_stride()) {
    const std::int64_t k = i / features;
    const std::int32_t length = layout.lengths[k];
    T* const to = target + layout.sorted_indices[k] * features + (i - k * features);
    if (length == 0) {
      *to = empty;
      continue;
    }
    const auto value = [&](std::int32_t t) {
      return convert_element<A>(packed[layout.offsets[t] * features + i]);
    };
    A result = value(0);
    std::int32_t t = 1;
    for (; t + kAhead <= length; t += kAhead) {
      A ahead[kAhead];
      PACKRNN_UNROLL
      for (int j = 0; j < kAhead; ++j) ahead[j] = value(t + j);
      PACKRNN_UNROLL
      for (int j = 0; j < kAhead; ++j) result = Combine::combine(result, ahead[j]);
    }
    for (; t < length; ++t) result = Combine::combine(result, value(t));
    *to = convert_element<T>(mean ? result / static_cast<A>(length) : result);
  }
}

/// A sequence's gradient on each of its elements, divided by their number for the mean. One thread
/// assigns one element, in the order in which they lie.
template <class T>
__global__ void __launch_bounds__(kRowThreads)
    spread_gradient_kernel(DeviceLayout layout, const T* gradient, std::int64_t features, bool mean,
                           T* target) {
  using A = Sum<T>;
  const std::int64_t rows = rows_of(layout), count = layout.rows_capacity * features;
  for (std::int64_t i = first_item(); i < count; i += item_stride()) {
    const std::int64_t row = i / features, f = i - row * features;
    if (row >= rows) {
      target[i] = stored<T>(A(0));
      continue;
    }
    const std::int64_t k = row - layout.offsets[step_of(layout, row)];
    const A value = value_of(gradient[layout.sorted_indices[k] * features + f]);
    target[i] = stored<T>(mean ? value / static_cast<A>(layout.lengths[k]) : value);
  }
}

/// A sequence's gradient on the first element that is the maximum or NaN; the target is zero. One
/// thread searches one feature of one sequence.
template <class T>
__global__ void __launch_bounds__(kRowThreads)
    place_gradient_kernel(DeviceLayout layout, const T* packed, const T* gradient,
                          std::int64_t features, T* target) {
  using A = Sum<T>;
  const std::int64_t count = layout.batch * features;
  for (std::int64_t i = first_item(); i < count; i += item_stride()) {
    const std::int64_t k = i / features;
    const std::int32_t length = layout.lengths[k];
    if (length == 0) continue;
    std::int64_t best = i;  // at step 0
    A most = value_of(packed[best]);
    for (std::int32_t t = 1; t < length && most == most; ++t) {
      const std::int64_t next = layout.offsets[t] * features + i;
      const A value = value_of(packed[next]);
      if (value <= most) continue;
      best = next;
      most = value;
    }
    target[best] = gradient[layout.sorted_indices[k] * features + (i - k * features)];
  }
}

}  // namespace

void reduce_backward(gpu::Stream stream, Reduction reduction, const DeviceLayout& layout,
                     Dtype dtype, const void* packed, std::int64_t features, const void* gradient,
                     void* target) {
  if (reduction == Reduction::max)
    gpu::fill(target, 0, static_cast<std::size_t>(layout.rows_capacity * features) * size_of(dtype),
              stream);
  const std::int64_t rows = reduction == Reduction::max ? layout.batch : layout.rows_capacity;
  const gpu::LaunchShape shape = strided_shape(stream, rows * features);
  with_floating(dtype, [&]<class T>(std::type_identity<T>) {
    const auto* const from = static_cast<const T*>(gradient);
    if (reduction == Reduction::max)
      launch(stream, PACKRNN_KERNEL(place_gradient_kernel<T>), shape, layout,
             static_cast<const T*>(packed), from, features, static_cast<T*>(target));
    else
      launch(stream, PACKRNN_KERNEL(spread_gradient_kernel<T>), shape, layout, from, features,
             reduction == Reduction::mean, static_cast<T*>(target));
  });
}

void reduce(gpu::Stream stream, Reduction reduction, const DeviceLayout& layout, Dtype dtype,
            const void* packed, std::int64_t features, double empty_value, void* target) {
  const gpu::LaunchShape shape = strided_shape(stream, layout.batch * features);
  with_dtype(dtype, [&]<class T>(std::type_identity<T>) {
    if constexpr (!std::is_integral_v<T>) {  // refused by the caller
      const auto* from = static_cast<const T*>(packed);
      const T empty = convert_element<T>(empty_value);
      const bool mean = reduction == Reduction::mean;
      if (reduction == Reduction::max)
        launch(stream, PACKRNN_KERNEL(reduce_kernel<T, Max>), shape, layout, from, features, mean,
               empty, static_cast<T*>(target));
      else
        launch(stream, PACKRNN_KERNEL(reduce_kernel<T, Add>), shape, layout, from, features, mean,
               empty, static_cast<T*>(target));
    }
  });
}

}  // namespace packrnn::kernels::cuda

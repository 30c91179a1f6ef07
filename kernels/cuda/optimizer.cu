// Steps of optimizers, operation by operation as cpu/optimizer.cpp takes them, so that both give
// the same bits. Bound by memory: an element of each array for a thread.
#include <cmath>
#include <type_traits>

#include "packrnn/kernels/cuda/launch.cuh"
#include "packrnn/kernels/cuda/optimizer.hpp"
#include "packrnn/kernels/cuda/sum.cuh"
#include "packrnn/kernels/cuda/with_floating.hpp"

namespace packrnn::kernels::cuda {
namespace {

// 16-bit parameters whose masters take the steps, or nothing.
struct Rounded {
  Half* f16;
  BFloat16* bf16;

  /// The value before a step: what somebody else assigned takes its place.
  template <class T>
  __device__ T follow(std::int64_t i, T value) const {
    if (f16 != nullptr && convert_element<Half>(value).bits != f16[i].bits)
      return convert_element<T>(f16[i]);
    if (bf16 != nullptr && convert_element<BFloat16>(value).bits != bf16[i].bits)
      return convert_element<T>(bf16[i]);
    return value;
  }
  template <class T>
  __device__ void store(std::int64_t i, T value) const {
    if (f16 != nullptr) f16[i] = convert_element<Half>(value);
    if (bf16 != nullptr) bf16[i] = convert_element<BFloat16>(value);
  }
};

Rounded rounded_of(const SteppedValues& to) {
  const bool half = to.rounded_dtype == Dtype::f16;
  return {half ? static_cast<Half*>(to.rounded) : nullptr,
          half ? nullptr : static_cast<BFloat16*>(to.rounded)};
}

// The numbers of a step, as T; one of the two factors of WeightDecay does nothing.
template <class T>
struct Decay {
  T coupled, keep;
};
template <class T>
Decay<T> decay_of(const WeightDecay& decay, double learning_rate) {
  return {static_cast<T>(decay.decoupled ? 0.0 : decay.decay),
          static_cast<T>(decay.decoupled ? 1.0 - learning_rate * decay.decay : 1.0)};
}

template <class T>
struct Sgd {
  Decay<T> decay;
  T rate, momentum;
  bool nesterov;
};

template <class T>
__global__ void __launch_bounds__(kRowThreads)
    sgd_kernel(Sgd<T> a, std::int64_t count, T* values, const T* gradients, T* velocity,
               Rounded rounded) {
  for (std::int64_t i = first_item(); i < count; i += item_stride()) {
    const T x = rounded.follow(i, values[i]), g = gradients[i] + a.decay.coupled * x;
    T direction = g;
    if (velocity != nullptr) {
      const T b = a.momentum * velocity[i] + g;
      velocity[i] = b;
      direction = a.nesterov ? g + a.momentum * b : b;
    }
    const T next = x * a.decay.keep - a.rate * direction;
    values[i] = next;
    rounded.store(i, next);
  }
}

template <class T>
struct Adam {
  Decay<T> decay;
  T rate, root, beta1, rest1, beta2, rest2, eps;
};

template <class T>
__global__ void __launch_bounds__(kRowThreads)
    adam_kernel(Adam<T> a, std::int64_t count, T* values, const T* gradients, T* first, T* second,
                Rounded rounded) {
  for (std::int64_t i = first_item(); i < count; i += item_stride()) {
    const T x = rounded.follow(i, values[i]), g = gradients[i] + a.decay.coupled * x;
    const T m = a.beta1 * first[i] + a.rest1 * g;
    const T v = a.beta2 * second[i] + a.rest2 * (g * g);
    const T next = x * a.decay.keep - a.rate * (m / (sqrt(v) / a.root + a.eps));
    first[i] = m;
    second[i] = v;
    values[i] = next;
    rounded.store(i, next);
  }
}

template <class T>
struct Square {
  const T* values;
  __device__ double operator()(std::int64_t i) const {
    const double value = convert_element<double>(values[i]);
    return value * value;
  }
};

template <class T>
__global__ void __launch_bounds__(kRowThreads)
    scale_kernel(double factor, std::int64_t count, T* values) {
  for (std::int64_t i = first_item(); i < count; i += item_stride())
    values[i] = convert_element<T>(convert_element<double>(values[i]) * factor);
}

template <class T>
__global__ void __launch_bounds__(kRowThreads) clamp_kernel(T high, std::int64_t count, T* values) {
  const double most = convert_element<double>(high), least = -most;
  for (std::int64_t i = first_item(); i < count; i += item_stride()) {
    const double x = convert_element<double>(values[i]);
    if (x > most || x < least) values[i] = convert_element<T>(x > most ? most : least);
  }
}

// body(std::type_identity<T>) for f32 or f64.
template <class Body>
void with_real(Dtype dtype, const Body& body) {
  if (dtype == Dtype::f32)
    body(std::type_identity<float>());
  else
    body(std::type_identity<double>());
}

}  // namespace

void sgd(gpu::Stream stream, const SgdStep& step, const SteppedValues& to, void* velocity) {
  const gpu::LaunchShape shape = strided_shape(stream, to.count);
  with_real(to.dtype, [&]<class T>(std::type_identity<T>) {
    const Sgd<T> numbers{decay_of<T>(step.decay, step.learning_rate),
                         static_cast<T>(step.learning_rate), static_cast<T>(step.momentum),
                         step.nesterov};
    auto *const x = static_cast<T*>(to.values), *const v = static_cast<T*>(velocity);
    const auto* const g = static_cast<const T*>(to.gradients);
    const Rounded rounded = rounded_of(to);
    launch(stream, PACKRNN_KERNEL(sgd_kernel<T>), shape, numbers, to.count, x, g, v, rounded);
  });
}

void adam(gpu::Stream stream, const AdamStep& step, const SteppedValues& to, void* first,
          void* second) {
  const gpu::LaunchShape shape = strided_shape(stream, to.count);
  const auto number = static_cast<double>(step.number);
  with_real(to.dtype, [&]<class T>(std::type_identity<T>) {
    const Adam<T> numbers{
        .decay = decay_of<T>(step.decay, step.learning_rate),
        .rate = static_cast<T>(step.learning_rate / (1.0 - std::pow(step.beta1, number))),
        .root = static_cast<T>(std::sqrt(1.0 - std::pow(step.beta2, number))),
        .beta1 = static_cast<T>(step.beta1),
        .rest1 = static_cast<T>(1.0 - step.beta1),
        .beta2 = static_cast<T>(step.beta2),
        .rest2 = static_cast<T>(1.0 - step.beta2),
        .eps = static_cast<T>(step.eps)};
    auto *const x = static_cast<T*>(to.values), *const m = static_cast<T*>(first);
    auto* const v = static_cast<T*>(second);
    const auto* const g = static_cast<const T*>(to.gradients);
    const Rounded rounded = rounded_of(to);
    launch(stream, PACKRNN_KERNEL(adam_kernel<T>), shape, numbers, to.count, x, g, m, v, rounded);
  });
}

void squared_norm(Context& context, Dtype dtype, const void* values, std::int64_t count,
                  double* result) {
  with_floating(dtype, [&]<class T>(std::type_identity<T>) {
    sum_terms(context, Square<T>{static_cast<const T*>(values)}, count, AsIs{}, result);
  });
}

void scale(gpu::Stream stream, double factor, Dtype dtype, std::int64_t count, void* values) {
  with_floating(dtype, [&]<class T>(std::type_identity<T>) {
    launch(stream, PACKRNN_KERNEL(scale_kernel<T>), strided_shape(stream, count), factor, count,
           static_cast<T*>(values));
  });
}

void clamp(gpu::Stream stream, double bound, Dtype dtype, std::int64_t count, void* values) {
  with_floating(dtype, [&]<class T>(std::type_identity<T>) {
    launch(stream, PACKRNN_KERNEL(clamp_kernel<T>), strided_shape(stream, count),
           convert_element<T>(bound), count, static_cast<T*>(values));
  });
}

}  // namespace packrnn::kernels::cuda

// Everything here waits for memory, so the loops are plain and left to the compiler's vectors.
#include "packrnn/kernels/cpu/optimizer.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "packrnn/kernels/cpu/parallel_for.hpp"
#include "packrnn/runtime/element.hpp"

namespace packrnn::kernels::cpu {
namespace {

/// Calls body(i) for every element; an element moves `arrays` numbers.
template <class T, class Body>
void for_each(ThreadPool& pool, std::span<T> values, int arrays, Body&& body) {
  const auto bytes = static_cast<std::int64_t>(sizeof(T)) * arrays;
  parallel_for(pool, std::ssize(values), bytes, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) body(i);
  });
}

/// One of the two factors of WeightDecay does nothing.
template <class T>
struct DecayFactors {
  DecayFactors(const WeightDecay& decay, double learning_rate)
      : coupled(static_cast<T>(decay.decoupled ? 0.0 : decay.decay)),
        keep(static_cast<T>(decay.decoupled ? 1.0 - learning_rate * decay.decay : 1.0)) {}

  T coupled, keep;
};

constexpr std::int64_t kBlock = 4096;  // elements of one partial sum
constexpr std::size_t kLanes = 8;      // chains of additions within a block

template <class T>
double block_squares(std::span<const T> values) {
  std::array<double, kLanes> sums{};
  for (std::size_t i = 0; i < values.size(); i += kLanes)
    for (std::size_t lane = 0; lane < std::min(kLanes, values.size() - i); ++lane) {
      const auto value = static_cast<double>(values[i + lane]);
      sums[lane] += value * value;
    }
  double sum = 0.0;
  for (const double part : sums) sum += part;
  return sum;
}

}  // namespace

template <class T>
void sgd(ThreadPool& pool, const SgdStep& step, std::span<T> values, std::span<const T> gradients,
         std::span<T> velocity) {
  const DecayFactors<T> decay(step.decay, step.learning_rate);
  const auto rate = static_cast<T>(step.learning_rate), momentum = static_cast<T>(step.momentum);
  T* const x = values.data();
  T* const b = velocity.data();
  const T* const gradient = gradients.data();
  if (velocity.empty()) {
    for_each(pool, values, 3, [=](std::int64_t i) {
      x[i] = x[i] * decay.keep - rate * (gradient[i] + decay.coupled * x[i]);
    });
    return;
  }
  for_each(pool, values, 5, [=, nesterov = step.nesterov](std::int64_t i) {
    const T g = gradient[i] + decay.coupled * x[i];
    b[i] = momentum * b[i] + g;
    x[i] = x[i] * decay.keep - rate * (nesterov ? g + momentum * b[i] : b[i]);
  });
}

template <class T>
void adam(ThreadPool& pool, const AdamStep& step, std::span<T> values, std::span<const T> gradients,
          std::span<T> first, std::span<T> second) {
  const DecayFactors<T> decay(step.decay, step.learning_rate);
  const auto number = static_cast<double>(step.number);
  const auto rate = static_cast<T>(step.learning_rate / (1.0 - std::pow(step.beta1, number)));
  const auto root = static_cast<T>(std::sqrt(1.0 - std::pow(step.beta2, number)));
  const auto beta1 = static_cast<T>(step.beta1), rest1 = static_cast<T>(1.0 - step.beta1);
  const auto beta2 = static_cast<T>(step.beta2), rest2 = static_cast<T>(1.0 - step.beta2);
  const auto eps = static_cast<T>(step.eps);
  T* const x = values.data();
  T* const m = first.data();
  T* const v = second.data();
  const T* const gradient = gradients.data();
  for_each(pool, values, 7, [=](std::int64_t i) {
    const T g = gradient[i] + decay.coupled * x[i];
    m[i] = beta1 * m[i] + rest1 * g;
    v[i] = beta2 * v[i] + rest2 * (g * g);
    x[i] = x[i] * decay.keep - rate * (m[i] / (std::sqrt(v[i]) / root + eps));
  });
}

template <class T, class R>
void follow(ThreadPool& pool, std::span<const R> rounded, std::span<T> values) {
  T* const x = values.data();
  const R* const r = rounded.data();
  for_each(pool, values, 2, [=](std::int64_t i) {
    if (convert_element<R>(x[i]).bits != r[i].bits) x[i] = convert_element<T>(r[i]);
  });
}

template <class T, class R>
void round(ThreadPool& pool, std::span<const T> values, std::span<R> rounded) {
  const T* const x = values.data();
  R* const r = rounded.data();
  for_each(pool, rounded, 3, [=](std::int64_t i) { r[i] = convert_element<R>(x[i]); });
}

template <class T>
double squared_norm(Context& context, std::span<const T> values) {
  const std::int64_t count = std::ssize(values), blocks = (count + kBlock - 1) / kBlock;
  Workspace::Scope scope(context.workspace());
  const std::span<double> sums = scope.take<double>(blocks);
  const auto block_bytes = static_cast<std::int64_t>(sizeof(T)) * kBlock;
  parallel_for(context.pool(), blocks, block_bytes, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t block = begin; block < end; ++block) {
      const auto first = static_cast<std::size_t>(block * kBlock);
      const auto size = static_cast<std::size_t>(std::min(kBlock, count - block * kBlock));
      sums[static_cast<std::size_t>(block)] = block_squares(values.subspan(first, size));
    }
  });
  double sum = 0.0;
  for (const double part : sums) sum += part;
  return sum;
}

template <class T>
void scale(ThreadPool& pool, double factor, std::span<T> values) {
  T* const x = values.data();
  for_each(pool, values, 2,
           [=](std::int64_t i) { x[i] = static_cast<T>(static_cast<double>(x[i]) * factor); });
}

template <class T>
void clamp(ThreadPool& pool, double bound, std::span<T> values) {
  T* const x = values.data();
  const auto high = static_cast<T>(bound);
  for_each(pool, values, 2, [=](std::int64_t i) {
    x[i] = x[i] > high ? high : x[i] < -high ? -high : x[i];
  });
}

#define PACKRNN_INSTANTIATE(T)                                                                     \
  template void sgd(ThreadPool&, const SgdStep&, std::span<T>, std::span<const T>, std::span<T>);  \
  template void adam(ThreadPool&, const AdamStep&, std::span<T>, std::span<const T>, std::span<T>, \
                     std::span<T>);                                                                \
  template double squared_norm(Context&, std::span<const T>);                                      \
  template void scale(ThreadPool&, double, std::span<T>);                                          \
  template void clamp(ThreadPool&, double, std::span<T>);
PACKRNN_INSTANTIATE(float)
PACKRNN_INSTANTIATE(double)
#undef PACKRNN_INSTANTIATE

#define PACKRNN_ROUNDED(T, R)                                          \
  template void follow(ThreadPool&, std::span<const R>, std::span<T>); \
  template void round(ThreadPool&, std::span<const T>, std::span<R>);
PACKRNN_ROUNDED(float, Half)
PACKRNN_ROUNDED(float, BFloat16)
PACKRNN_ROUNDED(double, Half)
PACKRNN_ROUNDED(double, BFloat16)
#undef PACKRNN_ROUNDED

}  // namespace packrnn::kernels::cpu

// CPU bodies of kernels/optimizer.hpp: arguments are checked. T is float or double, R
// Half or BFloat16. Private.
#pragma once

#include <span>

#include "packrnn/kernels/optimizer.hpp"
#include "packrnn/runtime/thread_pool.hpp"

namespace packrnn::kernels::cpu {

template <class T>
void sgd(ThreadPool& pool, const SgdStep& step, std::span<T> values, std::span<const T> gradients,
         std::span<T> velocity);

template <class T>
void adam(ThreadPool& pool, const AdamStep& step, std::span<T> values, std::span<const T> gradients,
          std::span<T> first, std::span<T> second);

/// Values take up elements of `rounded`, of R, that are not what they round to.
template <class T, class R>
void follow(ThreadPool& pool, std::span<const R> rounded, std::span<T> values);
/// Assigns rounded from values.
template <class T, class R>
void round(ThreadPool& pool, std::span<const T> values, std::span<R> rounded);

template <class T>
double squared_norm(Context& context, std::span<const T> values);

template <class T>
void scale(ThreadPool& pool, double factor, std::span<T> values);

template <class T>
void clamp(ThreadPool& pool, double bound, std::span<T> values);

}  // namespace packrnn::kernels::cpu

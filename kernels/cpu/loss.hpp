// CPU bodies of kernels/loss.hpp: arguments are checked, T is float or double. Private.
#pragma once

#include <cstdint>
#include <span>

#include "packrnn/kernels/loss.hpp"
#include "packrnn/runtime/thread_pool.hpp"

namespace packrnn::kernels::cpu {

/// weights may be empty.
template <class T>
void cross_entropy(ThreadPool& pool, const CrossEntropy& terms, std::span<const T> logits,
                   std::span<const std::int64_t> targets, std::span<double> log_sum_exp,
                   std::span<double> losses, std::span<double> weights);

template <class T>
void cross_entropy_backward(ThreadPool& pool, const CrossEntropy& terms, std::span<const T> logits,
                            std::span<const std::int64_t> targets,
                            std::span<const double> log_sum_exp, std::span<const double> scales,
                            std::span<T> gradient);

template <class T>
void element_losses(ThreadPool& pool, const ElementTerms& terms, std::span<const T> input,
                    std::span<const T> target, std::span<double> losses);

template <class T>
void element_losses_backward(ThreadPool& pool, const ElementTerms& terms, std::span<const T> input,
                             std::span<const T> target, std::span<const double> scales,
                             std::span<T> gradient);

template <class T>
void argmax(ThreadPool& pool, std::span<const T> rows, std::span<std::int64_t> result);

}  // namespace packrnn::kernels::cpu

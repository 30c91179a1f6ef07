// CPU body of kernels/reduce.hpp: arguments are checked. Private.
#pragma once

#include <cstdint>
#include <span>

#include "packrnn/kernels/reduce.hpp"
#include "packrnn/runtime/thread_pool.hpp"

namespace packrnn::kernels::cpu {

/// T is float, double, Half or BFloat16; a row has `features` elements.
template <class T>
void reduce(ThreadPool& pool, Reduction reduction, std::span<const T> packed,
            const PackedLayout& layout, std::int64_t features, double empty_value,
            std::span<T> target);

/// T is float or double; `packed` is null unless for max.
template <class T>
void reduce_backward(ThreadPool& pool, Reduction reduction, const T* packed,
                     const PackedLayout& layout, std::int64_t features, const T* gradient,
                     T* target);

}  // namespace packrnn::kernels::cpu

// The CPU body of kernels/scatter.hpp; arguments are already checked.
#pragma once

#include <cstdint>
#include <span>

#include "packrnn/kernels/scatter.hpp"

namespace packrnn::kernels::cpu {

/// T is float or double, Index std::int32_t or std::int64_t; rows have `width` elements, target
/// `count` rows.
template <class T, class Index>
void scatter_add(Context& context, const T* rows, std::span<const Index> indices, std::int64_t skip,
                 std::int64_t width, std::int64_t count, T* target);

}  // namespace packrnn::kernels::cpu

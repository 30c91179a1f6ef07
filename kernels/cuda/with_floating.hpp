// Turns a dtype into a type, of those that a GPU computes in; private.
#pragma once

#include <type_traits>

#include "packrnn/runtime/element.hpp"

namespace packrnn::kernels::cuda {

/// body(std::type_identity<T>) for f32, f64, f16 or bf16; other dtypes were refused before.
template <class Body>
void with_floating(Dtype dtype, const Body& body) {
  with_dtype(dtype, [&]<class T>(std::type_identity<T> type) {
    if constexpr (!std::is_integral_v<T>) body(type);
  });
}

}  // namespace packrnn::kernels::cuda

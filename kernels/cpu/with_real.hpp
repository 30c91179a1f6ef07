// Turns a dtype into a type, of those that the CPU computes in; private.
#pragma once

#include <type_traits>

#include "packrnn/runtime/dtype.hpp"

namespace packrnn::kernels::cpu {

/// What body(std::type_identity<T>) gives for f32 or f64; other dtypes were refused before.
template <class Body>
decltype(auto) with_real(Dtype dtype, Body&& body) {
  return dtype == Dtype::f32 ? body(std::type_identity<float>())
                             : body(std::type_identity<double>());
}

}  // namespace packrnn::kernels::cpu

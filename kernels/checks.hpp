// Checks that several kernels make of their tensor arguments; private to the library.
#pragma once

#include "packrnn/runtime/context.hpp"
#include "packrnn/runtime/expects.hpp"
#include "packrnn/runtime/tensor.hpp"

namespace packrnn::kernels {

/// Defined, and on the context's device.
inline void expects_here(const Context& context, const char* name, const TensorView& tensor) {
  expects(tensor.defined(), "{} is not defined", name);
  expects(tensor.device() == context.device(), "{} is on {}, the context on {}", name,
          tensor.device(), context.device());
}

inline void expects_dtype(const char* name, const TensorView& tensor, Dtype dtype) {
  expects(tensor.dtype() == dtype, "{} has dtype {}, expected {}", name, tensor.dtype(),
          dtype);
}

inline void expects_shape(const char* name, const TensorView& tensor, const Shape& shape) {
  expects(tensor.shape() == shape, "{} has shape {}, expected {}", name, tensor.shape(),
          shape);
}

inline void expects_rank(const char* name, const TensorView& tensor, int at_least) {
  expects(tensor.shape().rank() >= at_least, "{} has shape {}, expected {} or more dimensions",
          name, tensor.shape(), at_least);
}

}  // namespace packrnn::kernels

// Checks that every kernel's entry makes of its tensors; private to the library.
#pragma once

#include <cstdint>
#include <string_view>

#include "packrnn/runtime/expects.hpp"
#include "packrnn/runtime/tensor.hpp"

namespace packrnn::kernels {

/// Throws InvalidArgument, naming the argument, unless `tensor` is defined, of this shape and
/// dtype, and in the host's memory.
inline void check(std::string_view name, const TensorView& tensor, const Shape& shape,
                  Dtype dtype) {
  expects(tensor.defined(), "{} is missing, expected {} {}", name, name_of(dtype), shape);
  expects(tensor.shape() == shape, "{} has shape {}, expected {}", name, tensor.shape(), shape);
  expects(tensor.dtype() == dtype, "{} has dtype {}, expected {}", name, name_of(tensor.dtype()),
          name_of(dtype));
  expects(tensor.device() == Device::cpu(), "{} is on {}, expected cpu", name, tensor.device());
}

/// The same for an argument that may be left out.
inline void check_optional(std::string_view name, const TensorView& tensor, const Shape& shape,
                           Dtype dtype) {
  if (tensor.defined()) check(name, tensor, shape, dtype);
}

/// The same for packed weights [elements], which the kernels read with aligned loads.
inline void check_panels(const TensorView& panels, std::int64_t elements, Dtype dtype) {
  check("panels", panels, {elements}, dtype);
  expects(reinterpret_cast<std::uintptr_t>(panels.raw()) % kAlignment == 0,
          "panels begin at {}, expected a multiple of {} bytes", panels.raw(), kAlignment);
}

/// Throws Unsupported unless the CPU engine computes in `dtype`.
inline void check_computable(std::string_view operation, Dtype dtype) {
  if (dtype != Dtype::f32 && dtype != Dtype::f64)
    throw Unsupported(fmt::format("{}: dtype {} does not compute on the CPU; convert to f32 or f64",
                                  operation, name_of(dtype)));
}

}  // namespace packrnn::kernels

// Checks that every kernel's entry makes of its tensors; private to the library.
#pragma once

#include <cstdint>
#include <string_view>

#include "packrnn/runtime/expects.hpp"
#include "packrnn/runtime/tensor.hpp"

namespace packrnn::kernels {

/// Throws InvalidArgument, naming the argument, unless `tensor` is in the memory of `device`, the
/// context's, and, on a GPU, aligned to its elements.
inline void check_place(std::string_view name, const TensorView& tensor, Device device) {
  expects(tensor.device() == device, "{} is on {}, expected {}", name, tensor.device(), device);
  expects(device.type == DeviceType::cpu ||
              reinterpret_cast<std::uintptr_t>(tensor.raw()) % size_of(tensor.dtype()) == 0,
          "{} begins at {}, which is not aligned to its elements of {}", name, tensor.raw(),
          tensor.dtype());
}

/// Throws InvalidArgument, naming the argument, unless `tensor` is defined, of this shape and
/// dtype, and in the memory of `device`, the context's.
inline void check(std::string_view name, const TensorView& tensor, const Shape& shape, Dtype dtype,
                  Device device = Device::cpu()) {
  expects(tensor.defined(), "{} is missing, expected {} {}", name, name_of(dtype), shape);
  expects(tensor.shape() == shape, "{} has shape {}, expected {}", name, tensor.shape(), shape);
  expects(tensor.dtype() == dtype, "{} has dtype {}, expected {}", name, name_of(tensor.dtype()),
          name_of(dtype));
  check_place(name, tensor, device);
}

/// The same for an argument that may be left out.
inline void check_optional(std::string_view name, const TensorView& tensor, const Shape& shape,
                           Dtype dtype, Device device = Device::cpu()) {
  if (tensor.defined()) check(name, tensor, shape, dtype, device);
}

/// The same for packed weights [elements], which the kernels read with aligned loads.
inline void check_panels(const TensorView& panels, std::int64_t elements, Dtype dtype,
                         Device device = Device::cpu()) {
  check("panels", panels, {elements}, dtype, device);
  expects(reinterpret_cast<std::uintptr_t>(panels.raw()) % kAlignment == 0,
          "panels begin at {}, expected a multiple of {} bytes", panels.raw(), kAlignment);
}

/// Throws Unsupported unless layers compute in `dtype` on such a device.
inline void check_computable(std::string_view operation, Dtype dtype,
                             Device device = Device::cpu()) {
  if (dtype == Dtype::f32 || dtype == Dtype::f64) return;
  if (device.type == DeviceType::cuda) {
    if (is_floating(dtype)) return;
    throw Unsupported(
        fmt::format("{}: dtype {} is for indices, not for computing", operation, name_of(dtype)));
  }
  throw Unsupported(fmt::format("{}: dtype {} does not compute on the CPU; convert to f32 or f64",
                                operation, name_of(dtype)));
}

}  // namespace packrnn::kernels

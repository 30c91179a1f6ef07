// Checks that all layers make of their arguments; private to the library.
#pragma once

#include <string_view>

#include "packrnn/runtime/context.hpp"
#include "packrnn/runtime/expects.hpp"

namespace packrnn {

/// Throws InvalidArgument unless the tensor is where the context computes.
inline void expects_on_device(std::string_view name, const TensorView& tensor,
                              const Context& context) {
  expects(tensor.device() == context.device(), "{} is on {}, the context on {}; use {}", name,
          tensor.device(), context.device(),
          context.device() != Device::cpu() ? "context.to_device()"
                                            : "to_host() of the context that made it");
}

/// Throws Unsupported unless the context's device computes in the layer's dtype.
inline void expects_computable(std::string_view layer, Dtype dtype, const Context& context) {
  if (context.device() == Device::cpu() && (dtype == Dtype::f16 || dtype == Dtype::bf16))
    throw Unsupported(fmt::format(
        "{}: a layer of {} runs on a GPU, and the context is on the CPU; use dtype f32, "
        "or a context on a GPU ({})",
        layer, dtype, Device::cuda_status()));
}

}  // namespace packrnn

// Checks that all layers make of their arguments; private to the library.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

#include "packrnn/layers/parameters.hpp"
#include "packrnn/runtime/context.hpp"
#include "packrnn/runtime/expects.hpp"
#include "packrnn/runtime/packed_layout.hpp"

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

/// Throws InvalidArgument unless a layer with these parameters runs where the context computes:
/// from the host's memory it runs anywhere, but learns (`trains`) only where they are. Else makes
/// the context wait for them.
inline void expects_usable(const Parameters& parameters, Context& context, bool trains) {
  const Device at = parameters.device(), here = context.device();
  expects(at == here || (at == Device::cpu() && !trains),
          "the parameters are on {}, the context on {}; move them by parameters().to(context)", at,
          here);
  parameters.hold_up(context);
}

/// Whether equal rows of packed data mean equal elements. Lengths alone do not say it: a layout
/// that came from another framework may order ties otherwise. Of lengths that only a device knows,
/// nothing can be said unless it is one layout.
inline bool same_rows(const PackedLayout& a, const PackedLayout& b) {
  return &a == &b || (std::ranges::equal(a.lengths(), b.lengths()) &&
                      std::ranges::equal(a.sorted_indices(), b.sorted_indices()));
}

/// For a backward: what a caller's view shows now.
inline std::shared_ptr<const Tensor> copy_on_device(Context& context, const TensorView& view) {
  Tensor copy = context.empty(view.shape(), view.dtype());
  context.copy(view, copy);
  return std::make_shared<const Tensor>(std::move(copy));
}

/// Throws InvalidArgument if the parameters are not those that the forward used.
inline void expects_unchanged(const Parameters& parameters, std::uint64_t version) {
  expects(parameters.version() == version,
          "the parameters were changed between forward and backward; change them after it, or "
          "compute forward again on a new Tape");
}

}  // namespace packrnn

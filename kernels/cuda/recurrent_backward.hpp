// The GPU body of kernels/recurrent_backward.hpp; arguments are already checked. Private.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "packrnn/kernels/cuda/select.hpp"
#include "packrnn/kernels/recurrent_backward.hpp"

namespace packrnn::kernels::cuda {

/// Of one direction: the cell states. All else is computed again.
std::int64_t recurrent_reserve_elements(const RecurrentShape& shape, std::int64_t total);

/// What tests set; results may not depend on the first.
struct BackwardOptions {
  /// Products over all tokens take about so many bytes of workspace at a time.
  std::int64_t scratch_bytes = std::int64_t{256} << 20;
  /// Instead of choose_backward().
  const Choice* choice = nullptr;
};

void recurrent_backward(Context& context, const RecurrentShape& shape, const PackedLayout& layout,
                        const TensorView& x, const TensorView& y, const TensorView& dy,
                        std::span<const RecurrentBackwardDirection> directions,
                        const TensorSpan& dx, const BackwardOptions& options = {});

std::string explain_recurrent_backward(Context& context, const RecurrentShape& shape,
                                       const PackedLayout& layout, std::int64_t directions);

}  // namespace packrnn::kernels::cuda

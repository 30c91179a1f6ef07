// The GPU body of kernels/recurrent.hpp; arguments are already checked. Private.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "packrnn/kernels/cuda/select.hpp"
#include "packrnn/kernels/recurrent.hpp"

namespace packrnn::kernels::cuda {

/// What tests set; results may not depend on it.
struct RunOptions {
  /// Input products take about so many bytes of workspace at a time.
  std::int64_t input_product_bytes = std::int64_t{512} << 20;
  /// Instead of choose().
  const Choice* choice = nullptr;
};

void recurrent_forward(Context& context, const RecurrentShape& shape, const PackedLayout& layout,
                       const TensorView& x, std::span<const RecurrentDirection> directions,
                       const TensorSpan& y, const TensorSpan& cells,
                       const RunOptions& options = {});

std::string explain_recurrent(Context& context, const RecurrentShape& shape,
                              const PackedLayout& layout, std::int64_t directions);

}  // namespace packrnn::kernels::cuda

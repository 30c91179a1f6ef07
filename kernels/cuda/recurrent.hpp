// The GPU body of kernels/recurrent.hpp; arguments are already checked. Private.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "packrnn/kernels/cuda/recurrent_run.hpp"
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

/// The three parts of it, for work that is cut otherwise (wavefront.cpp). The first assigns what
/// needs no step, and takes from `scratch` what lasts from one range of steps to the next; `tables`
/// are the layout's. The second puts the input products and steps [first, last) on the context's
/// stream. The third follows when all steps are there.
RecurrentRun begin_recurrent(Context& context, const RecurrentShape& shape,
                             const PackedLayout& layout, const DeviceLayout& tables,
                             std::span<const RecurrentDirection> directions, const TensorSpan& y,
                             const TensorSpan& cells, Workspace::Scope& scratch);
void run_steps(Context& context, RecurrentRun run, const PackedLayout& layout, const TensorView& x,
               const Choice& choice, std::int64_t first, std::int64_t last);
void finish_recurrent(Context& context, const RecurrentRun& run,
                      std::span<const RecurrentDirection> directions, const TensorSpan& cells);

/// Bytes of the input product of one packed row in one direction.
std::int64_t input_product_row_bytes(const RecurrentShape& shape);

std::string explain_recurrent(Context& context, const RecurrentShape& shape,
                              const PackedLayout& layout, std::int64_t directions);

}  // namespace packrnn::kernels::cuda

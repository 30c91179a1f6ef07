// The exact step path: one launch per step, two for a cell with two products. Runs every cell of
// every size in f32 and f64, and gives the bits of the CPU engine. Private.
#pragma once

#include "packrnn/kernels/cuda/recurrent_run.hpp"
#include "packrnn/runtime/context.hpp"

namespace packrnn::kernels::cuda {

/// All steps of the range, both directions in the same launches. Takes scratch memory from the
/// context's workspace.
void step_forward(Context& context, const RecurrentRun& run);

/// Gives sequences of length zero their initial states as final ones, which no other kernel does.
/// Any dtype.
void empty_states(gpu::Stream stream, const RecurrentRun& run);

/// Assigns zeros to the rows of y and cells (if defined) that a layout has room for and no sequence
/// has. Any dtype.
void zero_unused_rows(gpu::Stream stream, const DeviceLayout& layout, const TensorSpan& y,
                      const TensorSpan& cells);

}  // namespace packrnn::kernels::cuda

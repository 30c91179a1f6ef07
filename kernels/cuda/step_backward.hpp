// The way back step by step: one launch per step, two for a cell with two products. Runs every cell
// of every size and dtype. Private.
#pragma once

#include "packrnn/kernels/cuda/recurrent_backward_run.hpp"
#include "packrnn/runtime/context.hpp"

namespace packrnn::kernels::cuda {

/// All steps, both directions in the same launches. Products are chains of fused multiply-adds in
/// A. Takes scratch memory from the context's workspace.
void step_backward(Context& context, const RecurrentBackwardRun& run);

/// Gives sequences of length zero the gradients of their final states as those of the initial ones,
/// which no algorithm does.
void empty_gradients(gpu::Stream stream, const RecurrentBackwardRun& run);

}  // namespace packrnn::kernels::cuda

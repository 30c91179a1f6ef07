// The packed weights of recurrent layers from weights in the memory of a GPU. Private. From weights
// in the host's memory: recurrent_panels.hpp.
#pragma once

#include "packrnn/kernels/cuda/recurrent_backward_run.hpp"
#include "packrnn/kernels/cuda/recurrent_panels.hpp"
#include "packrnn/runtime/gpu.hpp"

namespace packrnn::kernels::cuda {

/// Assigns RecurrentPanels, with the bits of fill_panels().
void pack_panels(gpu::Stream stream, const RecurrentShape& shape, const RecurrentWeights& weights,
                 void* panels);
/// Assigns RecurrentBackwardPanels.
void pack_backward_panels(gpu::Stream stream, const RecurrentShape& shape,
                          const RecurrentWeights& weights, void* panels);

}  // namespace packrnn::kernels::cuda

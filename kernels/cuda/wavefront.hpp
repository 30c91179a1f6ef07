// The layers of a stack at the same time on one GPU. Steps are cut into ranges; while a layer works
// on one, the layer below is a range ahead of it, on a stream of its own. It pays where one layer
// leaves most of the device idle: few sequences, many steps. Private.
#pragma once

#include <span>

#include "packrnn/kernels/cuda/select.hpp"
#include "packrnn/kernels/recurrent.hpp"

namespace packrnn::kernels::cuda {

struct Wavefront {
  Choice choice;   // of every layer; all of them fit on the device together
  int ranges = 1;  // of steps; 1: one layer after the other, each by a choice of its own
};

/// One range where more cannot be (two directions, layers that differ, lengths that the host does
/// not know, a graph that is being captured) or would not be faster; the reason says so. The bits
/// are the same either way. Remembered in context.plans() if times were compared.
Wavefront choose_wavefront(Context& context, const PackedLayout& layout,
                           std::span<const RecurrentLayer> layers);

/// Assigns outputs[l], the y of layer l. The host does not wait; the context's stream goes on when
/// all layers are done.
void wavefront_forward(Context& context, const Wavefront& wavefront, const PackedLayout& layout,
                       const TensorView& x, std::span<const RecurrentLayer> layers,
                       std::span<const TensorSpan> outputs);

}  // namespace packrnn::kernels::cuda

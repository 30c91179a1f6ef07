// What packing makes of a recurrent layer's weights; private to the library.
#pragma once

#include "packrnn/kernels/recurrent.hpp"

namespace packrnn::kernels {

/// Throws InvalidArgument unless the weights are of the shape, and all in the host's memory or all
/// on the device.
void check_weights(Device device, const RecurrentShape& shape, const RecurrentWeights& weights);

}  // namespace packrnn::kernels

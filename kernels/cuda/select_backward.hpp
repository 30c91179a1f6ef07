// Which algorithm takes the way back through a recurrent layer on a GPU. Private.
#pragma once

#include "packrnn/kernels/cuda/select.hpp"

namespace packrnn::kernels::cuda {

/// Algorithm::persistent (persistent_backward.hpp) wherever shape, math and device allow it, else
/// Algorithm::step (step_backward.hpp): a sequence's gradients may not depend on the batch, and the
/// two differ in their last bits. The batch only chooses the mapping. Of the caller's wishes, which
/// are for the forward, "step" holds here too. Remembered in context.plans().
Choice choose_backward(Context& context, const RecurrentShape& shape, const PackedLayout& layout,
                       int directions);

}  // namespace packrnn::kernels::cuda

// Choosing by trial: times the most promising ways to run a layer on a batch of given lengths and
// remembers the fastest in the plan file, where choose() of this and other processes finds it.
// Private.
#pragma once

#include "packrnn/kernels/cuda/select.hpp"

namespace packrnn::kernels::cuda {

/// Only ways that give the same bits are tried, so tuning cannot be seen in results. `context`
/// keeps what it has chosen before; contexts made later follow. Takes memory for one call of the
/// layer, and the time of some twenty, in a context of its own, and waits for them.
Choice tune_recurrent(const Context& context, const RecurrentShape& shape,
                      const PackedLayout& layout, int directions);

}  // namespace packrnn::kernels::cuda

// The persistent recurrence in exact f32: one launch for all steps of a range, weights in shared
// memory, chains as in step.cu and on the CPU, hence the same bits. LSTM without projection, GRU
// (reset after), RNN. Private.
#pragma once

#include <string>
#include <vector>

#include "packrnn/kernels/cuda/cost_model.hpp"
#include "packrnn/kernels/cuda/recurrent_run.hpp"
#include "packrnn/runtime/context.hpp"

namespace packrnn::kernels::cuda {

/// The ways in which the kernel can be laid over the device for a batch of so many rows. None: see
/// `obstacle`, which is assigned then.
std::vector<Mapping> exact_persistent_mappings(int device, const RecurrentShape& shape,
                                               std::int64_t batch, int directions,
                                               std::string& obstacle);

/// All steps of the range, with one of these mappings. The
/// kernel gives up a wait that lasts longer than watchdog_ns() and reports a fault.
void exact_persistent_forward(Context& context, const RecurrentRun& run, const Mapping& mapping);

}  // namespace packrnn::kernels::cuda

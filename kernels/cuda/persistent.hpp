// The recurrence on tensor cores in one launch for all steps of a range: kernel G, with W_hh in
// registers and shared memory and h exchanged through L2. LSTM without projection, GRU (reset
// after), RNN; f16, bf16, and f32 by tf32 or tf32x3. Private.
#pragma once

#include <string>
#include <vector>

#include "packrnn/kernels/cuda/cost_model.hpp"
#include "packrnn/kernels/cuda/recurrent_run.hpp"
#include "packrnn/runtime/context.hpp"

namespace packrnn::kernels::cuda {

/// The ways in which the kernel can be laid over the device for a batch of so many rows. None: see
/// `obstacle`, which is assigned then; that depends on shape, math and device only. Whichever of
/// them runs, and however steps are cut into ranges, the bits are the same.
std::vector<Mapping> persistent_mappings(int device, const RecurrentShape& shape, F32Math math,
                                         std::int64_t batch, int directions, std::string& obstacle);

/// All steps of the range, with one of these mappings, in the context's f32_math(). The kernel
/// gives up a wait that lasts longer than watchdog_ns() and reports a fault.
void persistent_forward(Context& context, const RecurrentRun& run, const Mapping& mapping);

}  // namespace packrnn::kernels::cuda

// The way back through the recurrence on tensor cores in one launch for all steps: kernel G's
// sibling, with W_hh^T in registers and shared memory and dgates exchanged through L2. LSTM without
// projection, GRU (reset after), RNN; f16, bf16, and f32 by tf32 or tf32x3. Private.
#pragma once

#include <string>
#include <vector>

#include "packrnn/kernels/cuda/cost_model.hpp"
#include "packrnn/kernels/cuda/recurrent_backward_run.hpp"
#include "packrnn/runtime/context.hpp"

namespace packrnn::kernels::cuda {

/// The ways in which the kernel can be laid over the device for a batch of so many rows. None: see
/// `obstacle`, which is assigned then; that depends on shape, math and device only. Whichever of
/// them runs, the bits are the same.
std::vector<Mapping> persistent_backward_mappings(int device, const RecurrentShape& shape,
                                                  F32Math math, std::int64_t batch, int directions,
                                                  std::string& obstacle);

/// The one of them (there is one) of which the cost model expects most.
Mapping fastest_backward_mapping(const DeviceConstants& constants, const RecurrentShape& shape,
                                 F32Math math, const std::vector<Mapping>& mappings,
                                 const LengthProfile& profile, int directions);

/// Assigns dgates (of rows that sequences have), and dh_0 and dc_0 of sequences that have a step,
/// with one of these mappings, in the context's f32_math(). The kernel gives up a wait that lasts
/// longer than watchdog_ns() and reports a fault.
void persistent_backward(Context& context, const RecurrentBackwardRun& run, const Mapping& mapping);

}  // namespace packrnn::kernels::cuda

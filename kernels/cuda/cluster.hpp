// The recurrence on tensor cores in one launch for all steps of a range: kernel C, with W_hh in
// registers and shared memory and h exchanged inside clusters, on devices that have them. LSTM
// without projection, GRU (reset after), RNN; f16 and bf16. Private.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "packrnn/kernels/cuda/cost_model.hpp"
#include "packrnn/kernels/cuda/persistent_run.hpp"
#include "packrnn/kernels/cuda/recurrent_run.hpp"
#include "packrnn/runtime/context.hpp"

namespace packrnn::kernels::cuda {

/// The ways in which the kernel can be laid over the device for a batch of so many rows. None: see
/// `obstacle`, which is assigned then; that depends on shape, math and device only. Whichever of
/// them runs, and however steps are cut into ranges, the bits are those of persistent_forward().
std::vector<Mapping> cluster_mappings(int device, const RecurrentShape& shape, F32Math math,
                                      std::int64_t batch, int directions, std::string& obstacle);

/// All steps of the range, with one of these mappings. The kernel gives up a wait that lasts longer
/// than watchdog_ns() and reports a fault.
void cluster_forward(Context& context, const RecurrentRun& run, const Mapping& mapping);

/// Bytes between two rows of h in shared memory. Half of the banks more than a whole number of
/// them, so that the neighbouring rows which lanes load together are in different ones.
constexpr int cluster_state_pitch(int units, int element_bytes) {
  return (units * element_bytes + 127) / 128 * 128 + 64;
}

/// An instantiation of the kernel, as the host sees it.
struct ClusterVariant {
  Cell cell;  // rnn_tanh stands for rnn_relu too
  int units, chunks;
  // Shared memory of a block: static, and dynamic per warp that shares K, of which weights.
  std::int64_t fixed_bytes, warp_bytes, weight_bytes;
  /// Clusters of so many blocks that the device holds at once.
  int (*resident)(int device, std::size_t shared, int blocks);
  void (*launch)(gpu::Stream stream, const gpu::LaunchShape& shape, const PersistentRun& run);
};
std::vector<ClusterVariant> cluster_bf16_variants();
std::vector<ClusterVariant> cluster_f16_variants();

}  // namespace packrnn::kernels::cuda

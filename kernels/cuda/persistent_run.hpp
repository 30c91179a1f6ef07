// What the persistent kernels on tensor cores are given, and what host and device have to agree on.
// Private.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "packrnn/kernels/cuda/cost_model.hpp"
#include "packrnn/kernels/cuda/recurrent_run.hpp"
#include "packrnn/runtime/context.hpp"
#include "packrnn/runtime/device_fault.hpp"
#include "packrnn/runtime/gpu.hpp"

namespace packrnn::kernels::cuda {

inline constexpr int kPersistentWarps = 8, kPersistentThreads = 32 * kPersistentWarps;
inline constexpr int kMostChunkRows = 64;  // sequences of a chunk, at most

/// Chunks of 32 elements of K that one warp takes, a power of two, so that at most kPersistentWarps
/// warps share K; 0: more than `most`. With the number of warps it decides the order of summation,
/// so both are functions of K alone, and results do not depend on batch, mapping or device.
constexpr int chunks_per_warp(std::int64_t k, int most = 8) {
  for (int chunks = 1; chunks <= most; chunks *= 2)
    if (k <= std::int64_t{chunks} * kPersistentWarps * 32) return chunks;
  return 0;
}
/// Warps that share K.
constexpr int product_warps(std::int64_t k, int most = 8) {
  const std::int64_t slice = std::int64_t{chunks_per_warp(k, most)} * 32;
  return slice == 0 ? 0 : static_cast<int>((k + slice - 1) / slice);
}

/// See DirectionRun for what is not explained here.
struct PersistentDirection {
  const void* w_hh = nullptr;     // [U * G, pitch_hh]
  const float* bias_n = nullptr;  // [U]
  const float* gx = nullptr;
  const void *y = nullptr, *h_0 = nullptr;  // what was before the range of steps
  const float* c_0 = nullptr;
  void* start = nullptr;     // T [batch, U], sorted order: h before a row's first step of the range
  float* c_state = nullptr;  // [batch, U]
  void* mail = nullptr;      // T, row pitch mail_pitch: where h is published
  void* y_beside = nullptr;  // y where that is not the mailbox, else null
  void* h_n = nullptr;
  float *c_n = nullptr, *cells = nullptr;
  bool reverse = false;
};

/// What every persistent kernel on tensor cores is given.
struct PersistentLaunch {
  DeviceLayout layout;
  DeviceFault* fault = nullptr;
  std::uint64_t watchdog_ns = 0;
  std::int64_t pitch_hh = 0, ldy = 0;  // elements
  std::int32_t hidden = 0, units = 0;  // H, U
  std::int32_t first_step = 0, last_step = 0;
  std::int32_t blocks = 0, groups = 0, chunk_rows = 0;  // blocks of a group, groups of a direction
  std::int32_t directions = 0, warps = 0;
};

struct PersistentRun : PersistentLaunch {
  PersistentDirection direction[2];
  std::int64_t ldcells = 0, mail_pitch = 0;  // elements
  bool mail_is_y = false;  // else row 0 of the mailbox is the packed row offsets[first_step]
  bool relu = false;
};

/// What an instantiation of a kernel needs of a multiprocessor.
struct PersistentNeeds {
  int units, chunks;
  // Shared memory of a block: static, and dynamic, once and per warp that shares K (of which
  // weight_bytes are weights).
  std::int64_t fixed_bytes, block_bytes, warp_bytes, weight_bytes;
  int (*resident)(int device, std::size_t shared);

  int blocks(std::int64_t hidden) const { return static_cast<int>((hidden + units - 1) / units); }
  std::size_t shared(int warps) const {
    return static_cast<std::size_t>(block_bytes + warps * warp_bytes);
  }
};

/// An instantiation as the host sees it.
struct PersistentVariant : PersistentNeeds {
  Cell cell;  // rnn_tanh stands for rnn_relu too
  void (*launch)(gpu::Stream stream, const gpu::LaunchShape& shape, const PersistentRun& run);
};
using PersistentVariants = std::vector<PersistentVariant>;

/// The instantiations of kernel G per kind of product.
PersistentVariants persistent_bf16_variants();
PersistentVariants persistent_f16_variants();
PersistentVariants persistent_tf32_variants();
PersistentVariants persistent_tf32x3_variants();

/// Why no persistent kernel on tensor cores takes this shape on any device; empty: some may.
std::string persistent_obstacle(const RecurrentShape& shape, F32Math math);

/// Those of the variants that compute this shape; they differ in units.
PersistentVariants variants_for(const PersistentVariants& variants, const RecurrentShape& shape);

/// Of any persistent kernel on tensor cores, its size aside.
std::string tensor_core_obstacle(const RecurrentShape& shape, F32Math math);

/// The ways to lay such a kernel over the device, whose products take so many warps, appended to
/// `mappings`; what it needs, to `needs`.
void add_mappings(int device, const PersistentNeeds& kernel, std::int64_t hidden, int warps,
                  std::int64_t batch, int directions, std::vector<Mapping>& mappings,
                  std::string& needs);
/// Why they are none, from what add_mappings() said of each kernel.
std::string too_large(int device, const std::string& needs);

/// Starts a kernel that was laid over the device so, all directions at once or one by one;
/// `variant` and `run` are of forward or backward.
template <class KernelVariant, class Run>
void start_persistent(gpu::Stream stream, const KernelVariant& variant, const Mapping& mapping,
                      Run run) {
  run.blocks = variant.blocks(run.hidden);
  run.groups = mapping.groups;
  run.chunk_rows = mapping.rows;
  const int directions = run.directions;
  if (mapping.directions_in_turn) run.directions = 1;
  gpu::LaunchShape shape;
  shape.grid[0] = static_cast<unsigned>(run.directions * run.groups * run.blocks);
  shape.block[0] = kPersistentThreads;
  shape.shared = variant.shared(run.warps);
  shape.cooperative = true;
  for (int d = 0; d < directions; d += run.directions) {
    if (d > 0) run.direction[0] = run.direction[d];
    variant.launch(stream, shape, run);
  }
}

/// What is the same for all mappings and kernels. Takes what the run needs from `scratch`; with
/// `mailbox`, room for one where y cannot be it.
PersistentRun persistent_run(Context& context, const RecurrentRun& run, Workspace::Scope& scratch,
                             bool mailbox);

/// Assigns `start`, and c_state of rows that begin in the range, and fills the mailbox if there is
/// one. Before each launch of a persistent kernel, on the same stream.
void prepare_persistent(gpu::Stream stream, const PersistentRun& run, std::size_t element_size,
                        int multiprocessors);

}  // namespace packrnn::kernels::cuda

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

/// Chunks of 32 elements of K that one warp takes: 1, 2, 4 or 8, so that at most kPersistentWarps
/// warps share K; 0: S is too large. With the number of warps it decides the order of summation,
/// so both are functions of S alone, and results do not depend on batch, mapping or device.
constexpr int chunks_per_warp(std::int64_t state) {
  for (const int chunks : {1, 2, 4, 8})
    if (state <= std::int64_t{chunks} * kPersistentWarps * 32) return chunks;
  return 0;
}
/// Warps that share K.
constexpr int product_warps(std::int64_t state) {
  const std::int64_t slice = std::int64_t{chunks_per_warp(state)} * 32;
  return slice == 0 ? 0 : static_cast<int>((state + slice - 1) / slice);
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

struct PersistentRun {
  DeviceLayout layout;
  PersistentDirection direction[2];
  DeviceFault* fault = nullptr;
  std::uint64_t watchdog_ns = 0;
  std::int64_t pitch_hh = 0, ldy = 0, ldcells = 0, mail_pitch = 0;  // elements
  std::int32_t hidden = 0, units = 0;                               // H, U
  std::int32_t first_step = 0, last_step = 0;
  std::int32_t blocks = 0, groups = 0, chunk_rows = 0;  // blocks of a group, groups of a direction
  std::int32_t directions = 0, warps = 0;
  bool mail_is_y = false;  // else row 0 of the mailbox is the packed row offsets[first_step]
  bool relu = false;
};

/// An instantiation of a kernel, as the host sees it.
struct PersistentVariant {
  Cell cell;  // rnn_tanh stands for rnn_relu too
  int units, chunks;
  // Shared memory of a block: fixed, and per warp that shares K: weights, sums.
  std::int64_t fixed_bytes, weight_bytes, sum_bytes;
  int (*resident)(int device, std::size_t shared);
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

/// What is the same for all mappings and kernels. Takes what the run needs from `scratch`; with
/// `mailbox`, room for one where y cannot be it.
PersistentRun persistent_run(Context& context, const RecurrentRun& run, Workspace::Scope& scratch,
                             bool mailbox);

/// Assigns `start`, and c_state of rows that begin in the range, and fills the mailbox if there is
/// one. Before each launch of a persistent kernel, on the same stream.
void prepare_persistent(gpu::Stream stream, const PersistentRun& run, std::size_t element_size,
                        int multiprocessors);

}  // namespace packrnn::kernels::cuda

// How long a recurrent layer takes on a GPU, by a model of latencies and rates (docs/gpu-model.md
// derives it). Private; pure arithmetic. It is for ranking algorithms and for saying what to
// expect, so it knows what differs between them and leaves out what does not (the input product).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "packrnn/kernels/recurrent.hpp"
#include "packrnn/runtime/context.hpp"
#include "packrnn/runtime/gpu.hpp"
#include "packrnn/runtime/packed_layout.hpp"

namespace packrnn::kernels::cuda {

/// How products are made: what rates and kernels depend on.
enum class Arithmetic : std::uint8_t { f64, exact, tf32x3, tf32, bits16 };
/// The math matters to f32 only.
Arithmetic arithmetic_of(Dtype dtype, F32Math math);
/// "f64", "f32 exact", "f32 tf32x3", "f32 tf32", "16-bit".
const char* name_of(Arithmetic arithmetic) noexcept;
constexpr bool tensor_cores(Arithmetic a) noexcept {
  return a != Arithmetic::f64 && a != Arithmetic::exact;
}

/// What the model knows of a device. Seconds, bytes per second; rates per clock and multiprocessor.
struct DeviceConstants {
  int multiprocessors = 0;
  double clock = 0;              // Hz
  double copy_bandwidth = 0;     // device memory, read plus written
  double l2_bandwidth = 0;       // L2 to all multiprocessors
  double cluster_bandwidth = 0;  // into one multiprocessor from others of its cluster
  double matrix_rate = 0;        // 16-bit multiply-adds of mma.sync
  double product_flops = 0;      // of a large 16-bit library product: additions + multiplications
  double f32_rate = 0, f64_rate = 0;  // fused multiply-adds on the ordinary cores
  double fma_latency = 4;             // clocks from one link of a chain to the next
  double product_latency = 33;        // the same of mma.sync
  double mailbox = 0;                 // from publishing to being seen by another block, through L2
  double cluster_exchange = 0;        // the same inside a cluster
  double grid_barrier = 0;            // all blocks meet
  double pointwise = 0;               // per step: product latency, sum over warps, cell
  double launch = 0;                  // the host's part of a launch
  double kernel_gap = 0;              // end of a kernel to the start of the next on a stream
  double startup = 0;                 // of a persistent kernel: launch, weights, first fill
  bool calibrated = false;            // measured on this device, at least in part
};

/// From data sheets, publications and micro-benchmarks of the device's class, scaled by its size
/// and clock. Unknown classes are taken for the nearest older one.
DeviceConstants estimated_constants(const gpu::Properties& properties);

/// Lengths of the sequences that have any, decreasing.
struct LengthProfile {
  std::vector<std::int64_t> lengths;

  static LengthProfile of(const PackedLayout& layout);
  /// `batch` sequences of `steps` each: all there is to say when the host does not know.
  static LengthProfile equal(std::int64_t batch, std::int64_t steps);
  std::int64_t steps() const noexcept { return lengths.empty() ? 0 : lengths.front(); }
  std::int64_t total() const noexcept;
};

/// How a persistent kernel is laid over the device: `groups` independent copies of W_hh, each dealt
/// over `blocks` blocks of `units` hidden units. Chunks of `rows` sorted sequences are dealt to the
/// groups, longest first.
struct Mapping {
  bool cluster = false;  // exchange inside a cluster, else through L2
  int blocks = 1;
  int units = 8;
  int groups = 1;  // of each direction, working at the same time
  int rows = 8;
  bool directions_in_turn = false;  // the device holds one direction at a time
  std::int64_t shared_weights = 0;  // bytes of a block's weights not in registers
};

/// Whether the forward's recurrence is meant or the way back through it, in which a block reads all
/// gates' gradients for each of its units.
enum class Way : std::uint8_t { forward, back };

/// One step of one group with `rows` live rows, `active` groups (of all directions) exchanging.
double step_seconds(const DeviceConstants& device, const RecurrentShape& shape,
                    Arithmetic arithmetic, const Mapping& mapping, std::int64_t rows, int active,
                    Way way = Way::forward);
/// The whole range of steps by a persistent kernel.
double persistent_seconds(const DeviceConstants& device, const RecurrentShape& shape,
                          Arithmetic arithmetic, const Mapping& mapping,
                          const LengthProfile& profile, int directions, Way way = Way::forward);
/// Layers that take `layer` seconds each, cut into ranges of steps and each a range behind the
/// layer below, on streams of their own.
double wavefront_seconds(const DeviceConstants& device, double layer, int layers, int ranges);
/// The whole range of steps by kernels of one step each: fused (step.cu; f64 and exact) or product
/// and cell (tensor_step.cu; the others).
double stepwise_seconds(const DeviceConstants& device, const RecurrentShape& shape,
                        Arithmetic arithmetic, const LengthProfile& profile, int directions);

}  // namespace packrnn::kernels::cuda

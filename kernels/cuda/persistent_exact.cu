// All steps of a recurrent layer in one launch, in exact f32.
//
// A group of blocks holds one copy of W_hh in shared memory, each block that of its `units` hidden
// units. Sorted rows are cut into chunks that are dealt to groups; groups and directions never
// talk. At every step a block reads h of all units from the mailbox y (mailbox.cuh) into shared
// memory, adds the recurrent product to the input's as one chain of S terms per sum, does the cell
// and publishes its part of h.
//
// A thread has all gates of one unit for up to four rows; a warp 8 units x 4 neighbouring threads
// of rows, so that a load of 16 bytes per lane touches 128 bytes of weights and 64 of h: then
// shared memory keeps up with the arithmetic. Bound by 4 clocks for each of the S links of a chain
// when rows are few, by fused multiply-adds when they are many.
#include <algorithm>
#include <string>

#include "packrnn/kernels/cuda/cells.cuh"
#include "packrnn/kernels/cuda/launch.cuh"
#include "packrnn/kernels/cuda/mailbox.cuh"
#include "packrnn/kernels/cuda/persistent_exact.hpp"
#include "packrnn/kernels/cuda/watchdog.hpp"

namespace packrnn::kernels::cuda {
namespace {

constexpr int kUnits = 8, kRowThreads = 4;      // of a warp
constexpr int kRows = 4;                        // of a thread
constexpr int kWarpRows = kRowThreads * kRows;  // of a warp: thread t has rows t, t + 4, ...
constexpr int kMostThreads = 256;
constexpr int kPad = 4;  // floats after a row of h, against bank conflicts

struct Arguments {
  RecurrentRun run;
  DeviceFault* fault = nullptr;
  std::uint64_t limit_ns = 0;
  int blocks = 1, units = 8;  // of a group; of a block
  int groups = 1;             // of a direction
  int rows = 4;               // of a chunk
};

constexpr int round_up(int value, int multiple) {
  return (value + multiple - 1) / multiple * multiple;
}
/// Floats of dynamic shared memory: weights [k / 4][gates][units][4], then h [2][rows][k + kPad].
constexpr std::int64_t shared_floats(std::int64_t k, int gates, int units, int rows) {
  return k * gates * units + 2 * rows * (k + kPad);
}

/// sum[i][g] += h[row i] . w[gate g]; `w` points at the thread's unit, `h` at its first row.
template <int kGates, int kLive>
__device__ void add_product(float (&sum)[kRows][kGates], const F32x4* w, const float* h, int quads,
                            int units, int pitch) {
  for (int q = 0; q < quads; ++q) {
    F32x4 weight[kGates], x[kLive];
    PACKRNN_UNROLL
    for (int g = 0; g < kGates; ++g) weight[g] = w[(q * kGates + g) * units];
    PACKRNN_UNROLL
    for (int i = 0; i < kLive; ++i)
      x[i] = *reinterpret_cast<const F32x4*>(h + i * kRowThreads * pitch + 4 * q);
    const auto add = [&](float F32x4::*k) {
      PACKRNN_UNROLL
      for (int i = 0; i < kLive; ++i) PACKRNN_UNROLL
      for (int g = 0; g < kGates; ++g) sum[i][g] = fmaf(x[i].*k, weight[g].*k, sum[i][g]);
    };
    add(&F32x4::x);
    add(&F32x4::y);
    add(&F32x4::z);
    add(&F32x4::w);
  }
}

/// Where a block finds h before a step, and how it gets it: rows that have begun from the mailbox,
/// waiting for it, the others from h_0.
struct Source {
  const float* y;              // of the chunk's first row at the earlier step
  const float* h_0;            // null: zeros
  const std::int32_t* sorted;  // of the chunk's first row
  std::int64_t ldy;
  int width, before;
  bool vectors;  // rows of y are aligned to 16 bytes

  /// Four terms from 4 * quad on; those past the width are -0: with weights of +0 they leave any
  /// sum as it is, even -0.
  __device__ U32x4 look(int row, int quad) const {
    constexpr std::uint32_t kMinusZero = 0x80000000U;
    const int first = 4 * quad, count = width - first;
    if (row < before) {
      const auto* const from = reinterpret_cast<const std::uint32_t*>(y + row * ldy + first);
      if (vectors && count >= 4) return ld_relaxed_v4(from);
      return {ld_relaxed(from), count > 1 ? ld_relaxed(from + 1) : kMinusZero,
              count > 2 ? ld_relaxed(from + 2) : kMinusZero,
              count > 3 ? ld_relaxed(from + 3) : kMinusZero};
    }
    const std::int64_t at = static_cast<std::int64_t>(sorted[row]) * width + first;
    const auto value = [&](int i) {
      if (i >= count) return kMinusZero;
      return h_0 != nullptr ? __float_as_uint(h_0[at + i]) : 0U;
    };
    return {value(0), value(1), value(2), value(3)};
  }

  __device__ static bool missing(const U32x4& v) {
    return v.x == kNothing || v.y == kNothing || v.z == kNothing || v.w == kNothing;
  }
};

/// The quads of h that a thread brings: every `threads`-th of all, row by row. Without divisions.
struct Walk {
  int quads, rows_on, quads_on;  // of a row; from one to the next
  int row, quad;                 // the first

  __device__ Walk(int quads_of_row, int thread, int threads)
      : quads(quads_of_row),
        rows_on(threads / quads_of_row),
        quads_on(threads % quads_of_row),
        row(thread / quads_of_row),
        quad(thread % quads_of_row) {}
  __device__ void next() {
    row += rows_on;
    quad += quads_on;
    if (quad < quads) return;
    quad -= quads;
    ++row;
  }
};

/// Brings h of the step's rows into shared memory, with several loads under way.
__device__ inline void gather(const Source& source, Walk walk, int rows, int pitch, float* h,
                              Watchdog& watchdog, int step, int first_row) {
  constexpr int kUnderWay = 4;
  while (walk.row < rows) {
    U32x4 value[kUnderWay];
    Walk later = walk;
    PACKRNN_UNROLL
    for (int i = 0; i < kUnderWay; ++i, later.next())
      if (later.row < rows) value[i] = source.look(later.row, later.quad);
    PACKRNN_UNROLL
    for (int i = 0; i < kUnderWay; ++i, walk.next()) {
      if (walk.row >= rows) continue;
      if (walk.row < source.before)
        for (int misses = 0;
             Source::missing(value[i]) &&
             watchdog.look_again(misses, step, first_row + walk.row, walk.quad / (kUnits / 4));
             ++misses)
          value[i] = source.look(walk.row, walk.quad);
      *reinterpret_cast<U32x4*>(h + walk.row * pitch + 4 * walk.quad) = value[i];
    }
  }
}

template <int kGates>
__global__ void __launch_bounds__(kMostThreads, 1) exact_persistent_kernel(Arguments a) {
  PACKRNN_SHARED(ChunkDealer, dealer);
  PACKRNN_DYNAMIC_SHARED(float, memory);
  constexpr bool kLstm = kGates == 4, kGru = kGates == 3;
  const RecurrentPanels& panels = a.run.panels;
  const DeviceLayout& layout = a.run.layout;
  const int first = a.run.first_step, last = a.run.last_step;
  const int block = static_cast<int>(blockIdx.x);
  const DirectionRun d = block < a.groups * a.blocks ? a.run.direction[0] : a.run.direction[1];
  const int group = block / a.blocks % a.groups;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int octets = a.units / kUnits;
  const int own = warp % octets * kUnits + lane % kUnits;  // of the block's units
  const int first_unit = block % a.blocks * a.units, unit = first_unit + own;
  const int hidden = static_cast<int>(a.run.shape.hidden);
  const int first_own_row = warp / octets * kWarpRows + lane / kUnits;
  const int quads = (hidden + 3) / 4, pitch = 4 * quads + kPad;

  F32x4* const weights = reinterpret_cast<F32x4*>(memory);
  float* const h_rows = memory + static_cast<std::int64_t>(4) * quads * kGates * a.units;
  const float* const given = static_cast<const float*>(d.panels);
  for (int item = thread; item < quads * kGates * a.units; item += static_cast<int>(blockDim.x)) {
    const int quad = item % quads, row = item / quads, u = row / kGates, g = row % kGates;
    F32x4 four{0, 0, 0, 0};
    if (first_unit + u < hidden)
      four = *reinterpret_cast<const F32x4*>(
          given + panels.w_hh +
          (static_cast<std::int64_t>(first_unit + u) * kGates + g) * panels.pitch_hh + 4 * quad);
    weights[(quad * kGates + g) * a.units + u] = four;
  }
  const float bias_n = kGru && unit < hidden ? given[panels.bias_n + unit] : 0.0F;
  float* const y = static_cast<float*>(d.y);
  const bool vectors = (reinterpret_cast<std::uintptr_t>(y) | a.run.ldy * 4) % 16 == 0;
  const std::int64_t gx_pitch = panels.units * kGates;
  const float* const gx = static_cast<const float*>(d.gx) + unit * kGates;
  const std::int64_t first_gx_row = layout.offsets[first];
  const Walk walk(quads, thread, static_cast<int>(blockDim.x));
  Watchdog watchdog(a.fault, a.limit_ns);
  int turn = 0;  // of the two buffers of h

  dealer.start(a.groups);
  for (;;) {
    const int row0 = dealer.deal(layout, first, last, a.rows, a.groups, group);
    if (row0 < 0) break;
    const int end = min(layout.lengths[row0], last);
    float c[kRows] = {};
    for (int done = 0; done < end - first; ++done, turn ^= 1) {
      const int step = d.reverse ? end - 1 - done : first + done;
      const ChunkStep s(layout, d.reverse, step, row0, a.rows);
      const int live =
          min(max((s.rows - first_own_row + lane / kUnits + kRowThreads - 1) / kRowThreads, 0),
              kRows);  // fours of rows, the same for all of the warp

      // What does not depend on h comes first, to be there when h is.
      float sum[kRows][kGates], input_n[kRows];
      PACKRNN_UNROLL
      for (int i = 0; i < kRows; ++i) {
        const int row = first_own_row + i * kRowThreads;
        PACKRNN_UNROLL
        for (int g = 0; g < kGates; ++g) sum[i][g] = 0.0F;
        input_n[i] = 0.0F;
        if (row >= s.rows || unit >= hidden) continue;
        const float* const from = gx + (s.y_row - first_gx_row + row) * gx_pitch;
        PACKRNN_UNROLL
        for (int g = 0; g < kGates; ++g) sum[i][g] = from[g];
        if constexpr (kGru) {
          input_n[i] = sum[i][2];
          sum[i][2] = bias_n;
        }
        if constexpr (kLstm) {
          const float* const c_0 = static_cast<const float*>(d.c_0);
          const std::int64_t n = layout.sorted_indices[row0 + row];
          if (row >= s.before)
            c[i] = c_0 != nullptr ? c_0[n * hidden + unit] : 0.0F;
          else if (done == 0)
            c[i] = static_cast<const float*>(d.c_state)[(row0 + row) * panels.units + unit];
        }
      }

      float* const h = h_rows + turn * a.rows * pitch;
      const Source source{y + s.y_before * a.run.ldy,
                          static_cast<const float*>(d.h_0),
                          layout.sorted_indices + row0,
                          a.run.ldy,
                          hidden,
                          s.before,
                          vectors};
      gather(source, walk, s.rows, pitch, h, watchdog, step, row0);
      // h is complete. The other buffer may be overwritten from here on: it was read before.
      __syncthreads();

      const F32x4* const w = weights + own;
      const float* const x = h + first_own_row * pitch;
      if (live == 4) add_product<kGates, 4>(sum, w, x, quads, a.units, pitch);
      if (live == 3) add_product<kGates, 3>(sum, w, x, quads, a.units, pitch);
      if (live == 2) add_product<kGates, 2>(sum, w, x, quads, a.units, pitch);
      if (live == 1) add_product<kGates, 1>(sum, w, x, quads, a.units, pitch);

      PACKRNN_UNROLL
      for (int i = 0; i < kRows; ++i) {
        const int row = first_own_row + i * kRowThreads;
        if (row >= s.rows || unit >= hidden) continue;
        float result = 0.0F;
        if constexpr (kLstm)
          result = lstm_cell<ExactMath>(sum[i], c[i]);
        else if constexpr (kGru)
          result = gru_cell<ExactMath>(sum[i], input_n[i], h[row * pitch + unit]);
        else
          result = a.run.shape.cell == Cell::rnn_relu ? rnn_cell<true, ExactMath>(sum[i][0])
                                                      : rnn_cell<false, ExactMath>(sum[i][0]);
        const std::uint32_t bits = message(result);
        st_relaxed(reinterpret_cast<std::uint32_t*>(y + (s.y_row + row) * a.run.ldy + unit), bits);
        const std::int64_t n = layout.sorted_indices[row0 + row];
        if (row >= s.after) static_cast<float*>(d.h_n)[n * hidden + unit] = __uint_as_float(bits);
        if constexpr (kLstm) {
          if (d.cells != nullptr)
            static_cast<float*>(d.cells)[(s.y_row + row) * a.run.ldcells + unit] = c[i];
          if (row >= s.after)
            static_cast<float*>(d.c_n)[n * hidden + unit] = c[i];
          else if (done == end - first - 1)  // the range ends here
            static_cast<float*>(d.c_state)[(row0 + row) * panels.units + unit] = c[i];
        }
      }
    }
  }
}

/// Empties the mailbox: the directions' columns of all rows of the range.
__global__ void __launch_bounds__(kMostThreads) empty_mailbox_kernel(RecurrentRun run) {
  const DirectionRun d = blockIdx.y == 0 ? run.direction[0] : run.direction[1];
  const std::int64_t begin = run.layout.offsets[run.first_step];
  const std::int64_t end = run.layout.offsets[run.last_step];
  const std::int64_t width = run.shape.hidden, stride = gridDim.x * std::int64_t{kMostThreads};
  auto* const words = static_cast<std::uint32_t*>(d.y);
  for (std::int64_t i = blockIdx.x * std::int64_t{kMostThreads} + threadIdx.x;
       i < (end - begin) * width; i += stride)
    words[(begin + i / width) * run.ldy + i % width] = kNothing;
}

template <class Body>
auto with_gates(int gates, Body&& body) {
  switch (gates) {
    case 4:
      return body(PACKRNN_KERNEL(exact_persistent_kernel<4>));
    case 3:
      return body(PACKRNN_KERNEL(exact_persistent_kernel<3>));
    default:
      return body(PACKRNN_KERNEL(exact_persistent_kernel<1>));
  }
}

int threads_of(int units, int rows) {
  return units / kUnits * (round_up(rows, kWarpRows) / kWarpRows) * 32;
}

std::size_t shared_bytes(const RecurrentShape& shape, int units, int rows) {
  const std::int64_t k = (shape.hidden + 3) / 4 * 4;
  return static_cast<std::size_t>(shared_floats(k, gates(shape.cell), units, rows)) * sizeof(float);
}

}  // namespace

std::vector<Mapping> exact_persistent_mappings(int device, const RecurrentShape& shape,
                                               std::int64_t batch, int directions,
                                               std::string& obstacle) {
  std::vector<Mapping> mappings;
  const gpu::Properties& properties = gpu::properties(device);
  if (shape.dtype != Dtype::f32 || shape.projection > 0 || shape.cell == Cell::gru_reset_before) {
    obstacle = "the exact persistent kernel is for f32 without projection, with one product a step";
    return mappings;
  }
  if (!properties.cooperative) {
    obstacle = "the device cannot launch blocks that are all resident at once";
    return mappings;
  }
  const std::size_t most = properties.shared_per_block - sizeof(ChunkDealer);
  int least_blocks = 0;
  for (const int units : {8, 16, 32, 64}) {
    if (units >= 2 * kUnits && units / 2 >= shape.hidden) break;
    for (const int rows : {4, 8, 16, 32}) {
      if (rows > kRowThreads && rows / 2 >= batch) break;
      const std::size_t shared = shared_bytes(shape, units, rows);
      const int threads = threads_of(units, rows);
      if (threads > kMostThreads || shared > most) break;
      const auto blocks = static_cast<int>((shape.hidden + units - 1) / units);
      const int per_multiprocessor = with_gates(gates(shape.cell), [&](auto kernel) {
        return resident_blocks(device, kernel, threads, shared);
      });
      const int resident = per_multiprocessor * properties.multiprocessors;
      least_blocks = least_blocks == 0 ? blocks : std::min(least_blocks, blocks);
      if (blocks > resident) continue;
      Mapping m;
      m.blocks = blocks;
      m.units = units;
      m.rows = rows;
      m.directions_in_turn = blocks * directions > resident;
      const std::int64_t chunks = std::max<std::int64_t>(1, (batch + rows - 1) / rows);
      const std::int64_t room = resident / (blocks * (m.directions_in_turn ? 1 : directions));
      m.groups = static_cast<int>(std::min<std::int64_t>({chunks, room, kMostGroups}));
      m.shared_weights = 4 * static_cast<std::int64_t>(gates(shape.cell)) * units * shape.hidden;
      mappings.push_back(m);
    }
  }
  if (mappings.empty() && least_blocks > 0)
    obstacle = "the weights need " + std::to_string(least_blocks) +
               " blocks, more than the device holds at once";
  else if (mappings.empty())
    obstacle = "the weights of 8 units need " +
               std::to_string(shared_bytes(shape, kUnits, kRowThreads)) +
               " bytes of shared memory, a block has " + std::to_string(most);
  return mappings;
}

void exact_persistent_forward(Context& context, const RecurrentRun& run, const Mapping& mapping) {
  Arguments a{run,           context.fault(), watchdog_ns(), mapping.blocks,
              mapping.units, mapping.groups,  mapping.rows};
  gpu::LaunchShape emptying;
  emptying.grid = {
      static_cast<unsigned>(4 * gpu::properties(context.device().index).multiprocessors),
      static_cast<unsigned>(run.directions), 1};
  emptying.block[0] = kMostThreads;
  launch(context.stream(), PACKRNN_KERNEL(empty_mailbox_kernel), emptying, run);
  const auto start = [&] {
    gpu::LaunchShape shape;
    shape.grid[0] = static_cast<unsigned>(a.run.directions * a.groups * a.blocks);
    shape.block[0] = static_cast<unsigned>(threads_of(a.units, a.rows));
    shape.shared = shared_bytes(run.shape, a.units, a.rows);
    shape.cooperative = true;
    with_gates(gates(run.shape.cell),
               [&](auto kernel) { launch(context.stream(), kernel, shape, a); });
  };
  if (!mapping.directions_in_turn || run.directions == 1) return start();
  a.run.directions = 1;
  for (const DirectionRun& direction : run.direction) {
    a.run.direction[0] = direction;
    start();
  }
}

}  // namespace packrnn::kernels::cuda

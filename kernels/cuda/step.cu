// One step of a recurrent layer: gates = gx + h W_hh^T as chains (chain.cuh), then the cell on the
// sums where they are, in registers. A block takes 16 rows and 16 units or more of one direction; a
// thread 2 rows and all gates of its units. A second product, of a projection or of a GRU that
// resets before, is a second launch.
//
// The launch parameters depend on no length: a block beyond the rows that are alive returns at
// once. Bound by launches (some 3 us a step) and by the latency of a chain of S terms.
#include <algorithm>
#include <cstddef>

#include "packrnn/kernels/cuda/cells.cuh"
#include "packrnn/kernels/cuda/chain.cuh"
#include "packrnn/kernels/cuda/chunk_step.cuh"
#include "packrnn/kernels/cuda/launch.cuh"
#include "packrnn/kernels/cuda/step.hpp"

namespace packrnn::kernels::cuda {
namespace {

/// What a launch does of a step. `cell` is all of it, but for the product with W_hr of an LSTM with
/// projection (`project`); a GRU that resets before has `reset` and `update`.
enum class Phase { cell, project, reset, update };

/// Of the gates that a phase sums; a thread has 4 columns, or 3 where a unit has 3 gates.
template <class T, int kGates>
using StepTile = ChainTile<Sum<T>, 2, kGates == 3 ? 3 : 4, 8, 16, 32, 2, kGates == 3 ? 3 : 4>;

/// Between the phases of a step: h before the projection, or r h and z; [batch, units] per
/// direction, sorted order.
template <class T>
struct Between {
  T* h = nullptr;
  Sum<T>* z = nullptr;
};

struct StepArguments {
  RecurrentRun run;
  Phase phase = Phase::cell;
  int index = 0;  // of the step, in processing order
};

template <class T, int kGates>
__global__ void __launch_bounds__(StepTile<T, kGates>::kThreads)
    step_kernel(StepArguments a, Between<T> between) {
  using A = Sum<T>;
  using Tile = StepTile<T, kGates>;
  constexpr int kUnits = Tile::kColumns / kGates;  // of a thread
  PACKRNN_SHARED(typename Tile::Shared, shared);

  const RecurrentShape& shape = a.run.shape;
  const RecurrentPanels& panels = a.run.panels;
  const DirectionRun d = blockIdx.z == 0 ? a.run.direction[0] : a.run.direction[1];
  const int step = d.reverse ? a.run.last_step - 1 - a.index : a.run.first_step + a.index;
  const ChunkStep s(a.run.layout, d.reverse, step, 0, a.run.layout.batch);
  const int first_row = static_cast<int>(blockIdx.x) * Tile::kTileRows;
  if (first_row >= s.rows) return;

  const bool project = a.phase == Phase::project, update = a.phase == Phase::update;
  const std::int64_t width = shape.state(), units = panels.units, G = panels.gates;
  const std::int64_t outputs = project ? shape.projection : shape.hidden;
  const std::int64_t first_unit =
      static_cast<std::int64_t>(blockIdx.y) * (Tile::kTileColumns / kGates);
  const int first_gate = update ? 2 : 0;
  const T* const weights = static_cast<const T*>(d.panels);
  T* const y = static_cast<T*>(d.y);
  const T* const h_0 = static_cast<const T*>(d.h_0);
  const std::int32_t* const sorted = a.run.layout.sorted_indices;
  T* const between_h = between.h + blockIdx.z * a.run.layout.batch * units;
  A* const between_z = between.z + blockIdx.z * a.run.layout.batch * units;

  // h of a row before this step; null: zeros.
  const auto h_before = [&](int row) -> const T* {
    if (row < s.before) return y + (s.y_before + row) * a.run.ldy;
    return h_0 != nullptr ? h_0 + sorted[row] * width : nullptr;
  };
  // Gate 0 of unit 0 of a row's input products.
  const auto gx = [&](int row) {
    const std::int64_t packed = s.y_row + row - a.run.layout.offsets[a.run.first_step];
    return static_cast<const A*>(d.gx) + packed * (units * G);
  };

  A sum[Tile::kRows][Tile::kColumns];
  PACKRNN_UNROLL
  for (int r = 0; r < Tile::kRows; ++r) {
    const int row = first_row + Tile::row(r);
    PACKRNN_UNROLL
    for (int c = 0; c < Tile::kColumns; ++c) {
      const std::int64_t unit = first_unit + Tile::column(c) / kGates;
      const int gate = first_gate + Tile::column(c) % kGates;
      sum[r][c] = A(0);
      if (project || row >= s.rows || unit >= outputs) continue;
      if (kGates == 3 && gate == 2)  // n starts from b_hn, its input product comes in the cell
        sum[r][c] = reinterpret_cast<const A*>(weights + panels.bias_n)[unit];
      else
        sum[r][c] = gx(row)[unit * G + gate];
    }
  }

  const std::int64_t pitch = project ? panels.pitch_hr : panels.pitch_hh;
  add_chains<Tile, T>(
      shared, sum, project ? shape.hidden : width, pitch,
      [&](int r) -> const T* {
        const int row = first_row + r;
        if (row >= s.rows) return nullptr;
        return project || update ? between_h + row * units : h_before(row);
      },
      [&](int c) -> const T* {
        const std::int64_t unit = first_unit + c / kGates;
        if (unit >= outputs) return nullptr;
        if (project) return weights + panels.w_hr + unit * pitch;
        return weights + panels.w_hh + (unit * G + first_gate + c % kGates) * pitch;
      });

  PACKRNN_UNROLL
  for (int r = 0; r < Tile::kRows; ++r) {
    const int row = first_row + Tile::row(r);
    if (row >= s.rows) continue;
    const std::int64_t n = sorted[row];
    const bool last = row >= s.after;
    const T* const before = kGates == 2 || kGates == 3 || update ? h_before(row) : nullptr;
    PACKRNN_UNROLL
    for (int j = 0; j < kUnits; ++j) {
      const std::int64_t unit = first_unit + Tile::column(j * kGates) / kGates;
      if (unit >= outputs) continue;
      const A* const gates = &sum[r][j * kGates];
      const A h = before != nullptr ? value_of(before[unit]) : A(0);
      const std::int64_t cell_index = row * units + unit;
      A result = gates[0];  // of a projection
      if constexpr (kGates == 4) {
        A* const c_state = static_cast<A*>(d.c_state);
        const A* const c_0 = static_cast<const A*>(d.c_0);
        A c = A(0);
        if (row < s.before)
          c = c_state[cell_index];
        else if (c_0 != nullptr)
          c = c_0[n * shape.hidden + unit];
        result = cell<Cell::lstm, ExactMath>(gates, A(0), A(0), c);
        c_state[cell_index] = c;
        if (d.cells != nullptr)
          static_cast<A*>(d.cells)[(s.y_row + row) * a.run.ldcells + unit] = c;
        if (last) static_cast<A*>(d.c_n)[n * shape.hidden + unit] = c;
      } else if constexpr (kGates == 3) {
        A none = A(0);
        result = cell<Cell::gru, ExactMath>(gates, gx(row)[unit * G + 2], h, none);
      } else if constexpr (kGates == 2) {
        A z;
        between_h[cell_index] = stored<T>(gru_reset<ExactMath>(gates, h, z));
        between_z[cell_index] = z;
        continue;
      } else if (update) {
        result = gru_update<ExactMath>(gates[0], between_z[cell_index], h);
      } else if (!project) {
        result = shape.cell == Cell::rnn_relu ? rnn_cell<true, ExactMath>(gates[0])
                                              : rnn_cell<false, ExactMath>(gates[0]);
      }
      if (kGates == 4 && shape.projection > 0) {
        between_h[cell_index] = stored<T>(result);
        continue;
      }
      y[(s.y_row + row) * a.run.ldy + unit] = stored<T>(result);
      if (last) static_cast<T*>(d.h_n)[n * width + unit] = stored<T>(result);
    }
  }
}

template <class T>
__global__ void __launch_bounds__(128) empty_states_kernel(RecurrentRun run) {
  using A = Sum<T>;
  const DirectionRun d = blockIdx.z == 0 ? run.direction[0] : run.direction[1];
  const std::int64_t width = run.shape.state(), hidden = run.shape.hidden;
  const int live = ChunkStep::alive(run.layout, 0, 0, run.layout.batch);
  for (int row = live + static_cast<int>(blockIdx.x); row < run.layout.batch;
       row += static_cast<int>(gridDim.x)) {
    const std::int64_t n = run.layout.sorted_indices[row];
    for (std::int64_t u = threadIdx.x; u < width; u += blockDim.x)
      static_cast<T*>(d.h_n)[n * width + u] =
          d.h_0 != nullptr ? static_cast<const T*>(d.h_0)[n * width + u] : T{};
    if (d.c_n == nullptr) continue;
    for (std::int64_t u = threadIdx.x; u < hidden; u += blockDim.x)
      static_cast<A*>(d.c_n)[n * hidden + u] =
          d.c_0 != nullptr ? static_cast<const A*>(d.c_0)[n * hidden + u] : A(0);
  }
}

/// Words of the rows behind the last one in use.
__global__ void __launch_bounds__(128)
    zero_rows_kernel(DeviceLayout layout, std::uint16_t* data, std::int64_t pitch) {
  const std::int64_t begin = layout.offsets[layout.steps_capacity] * pitch;
  const std::int64_t end = layout.rows_capacity * pitch;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = begin + static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
       i < end; i += stride)
    data[i] = 0;
}

template <class T, int kGates>
void start(gpu::Stream stream, const StepArguments& a, const Between<T>& between,
           std::int64_t rows) {
  using Tile = StepTile<T, kGates>;
  const RecurrentShape& shape = a.run.shape;
  const std::int64_t outputs = a.phase == Phase::project ? shape.projection : shape.hidden;
  const std::int64_t per_block = Tile::kTileColumns / kGates;
  gpu::LaunchShape launch_shape;
  launch_shape.grid = {static_cast<unsigned>((rows + Tile::kTileRows - 1) / Tile::kTileRows),
                       static_cast<unsigned>((outputs + per_block - 1) / per_block),
                       static_cast<unsigned>(a.run.directions)};
  launch_shape.block[0] = Tile::kThreads;
  launch(stream, PACKRNN_KERNEL(step_kernel<T, kGates>), launch_shape, a, between);
}

/// Rows that may be alive at the index-th step of either direction.
std::int64_t rows_at(const RecurrentRun& run, int index) {
  if (run.batch_sizes.empty()) return run.layout.batch;
  std::int64_t rows = 0;
  for (int i = 0; i < run.directions; ++i) {
    const bool reverse = run.direction[i].reverse;
    const int step = reverse ? run.last_step - 1 - index : run.first_step + index;
    rows = std::max(rows, run.batch_sizes[static_cast<std::size_t>(step)]);
  }
  return rows;
}

template <class T>
void steps(Context& context, const RecurrentRun& run) {
  const gpu::Stream stream = context.stream();
  const bool before = run.shape.cell == Cell::gru_reset_before;
  const bool project = run.shape.projection > 0;
  Workspace::Scope scratch(context.workspace());
  const std::int64_t cells = run.directions * run.layout.batch * run.panels.units;
  Between<T> between;
  if (before || project)
    between.h = reinterpret_cast<T*>(
        scratch.take<std::byte>(cells * static_cast<std::int64_t>(sizeof(T))).data());
  if (before) between.z = scratch.take<Sum<T>>(cells).data();
  for (int index = 0; index < run.last_step - run.first_step; ++index) {
    const std::int64_t rows = rows_at(run, index);
    const auto phase = [&](Phase which) { return StepArguments{run, which, index}; };
    switch (run.shape.cell) {
      case Cell::lstm:
        start<T, 4>(stream, phase(Phase::cell), between, rows);
        if (project) start<T, 1>(stream, phase(Phase::project), between, rows);
        break;
      case Cell::gru:
        start<T, 3>(stream, phase(Phase::cell), between, rows);
        break;
      case Cell::gru_reset_before:
        start<T, 2>(stream, phase(Phase::reset), between, rows);
        start<T, 1>(stream, phase(Phase::update), between, rows);
        break;
      case Cell::rnn_tanh:
      case Cell::rnn_relu:
        start<T, 1>(stream, phase(Phase::cell), between, rows);
        break;
    }
  }
}

}  // namespace

void step_forward(Context& context, const RecurrentRun& run) {
  if (run.shape.dtype == Dtype::f64)
    steps<double>(context, run);
  else
    steps<float>(context, run);
}

void empty_states(gpu::Stream stream, const RecurrentRun& run) {
  gpu::LaunchShape shape;
  shape.grid = {static_cast<unsigned>(std::clamp(run.layout.batch, 0, 256)), 1,
                static_cast<unsigned>(run.directions)};
  shape.block[0] = 128;
  switch (run.shape.dtype) {
    case Dtype::f64:
      return launch(stream, PACKRNN_KERNEL(empty_states_kernel<double>), shape, run);
    case Dtype::f16:
      return launch(stream, PACKRNN_KERNEL(empty_states_kernel<F16>), shape, run);
    case Dtype::bf16:
      return launch(stream, PACKRNN_KERNEL(empty_states_kernel<Bf16>), shape, run);
    default:
      return launch(stream, PACKRNN_KERNEL(empty_states_kernel<float>), shape, run);
  }
}

void zero_unused_rows(gpu::Stream stream, const DeviceLayout& layout, const TensorSpan& y,
                      const TensorSpan& cells) {
  gpu::LaunchShape shape;
  shape.grid[0] = 256;
  shape.block[0] = 128;
  for (const TensorSpan& rows : {y, cells})
    if (rows.defined())
      launch(stream, PACKRNN_KERNEL(zero_rows_kernel), shape, layout,
             static_cast<std::uint16_t*>(rows.raw()),
             rows.size(1) * static_cast<std::int64_t>(size_of(rows.dtype())) / 2);
}

}  // namespace packrnn::kernels::cuda

// One step of the way back: dh = what the step after it, in processing order, sends back through
// W_hh, as chains (chain.cuh) over its dgates; then dy is added and the cell taken back on the sums
// where they are, in registers. A block takes 16 rows and 32 units of one direction, a thread 2 of
// each. A second product, of a projection or of a GRU that resets before, is a second launch; and
// one launch more gives dh_0.
//
// Between steps only dgates and `carry` go through memory: of an LSTM dc, of a GRU what reaches h
// past the products. As in step.cu, launch parameters depend on no length. Bound by launches and by
// the latency of a chain of G H terms.
#include <algorithm>

#include "packrnn/kernels/cuda/cells_backward.cuh"
#include "packrnn/kernels/cuda/chain.cuh"
#include "packrnn/kernels/cuda/chunk_step.cuh"
#include "packrnn/kernels/cuda/launch.cuh"
#include "packrnn/kernels/cuda/step_backward.hpp"

namespace packrnn::kernels::cuda {
namespace {

/// What a launch does. `cell` is all of a step, but for an LSTM with projection, where `state`
/// comes before it and its product is that with W_hr^T, and for a GRU that resets before, which
/// has `reset` after it. `initial` gives dh_0.
enum class Phase { state, cell, reset, initial };

template <class T>
using BackTile = ChainTile<Sum<T>, 2, 2, 8, 16, 32, 2, 2>;

struct BackArguments {
  RecurrentBackwardRun run;
  void* carry = nullptr;  // A [directions, batch, U], sorted order
  Phase phase = Phase::cell;
  int index = 0;  // of the step on the way back
};

/// One direction of a launch. Rows are those of the sorted batch.
template <class T>
struct Back {
  using A = Sum<T>;

  const BackArguments& a;
  const BackwardDirectionRun d;
  const ChunkStep s;
  const std::int64_t y_after;  // packed row of the first row at the later step
  A* const carry;

  __device__ Back(const BackArguments& arguments, int direction)
      : a(arguments),
        d(direction == 0 ? a.run.direction[0] : a.run.direction[1]),
        s(a.run.layout, d.reverse, step(), 0, a.run.layout.batch),
        y_after(s.after > 0 ? a.run.layout.offsets[d.reverse ? step() - 1 : step() + 1] : 0),
        carry(static_cast<A*>(a.carry) + direction * a.run.layout.batch * a.run.panels.units) {}

  __device__ int step() const {
    if (a.phase == Phase::initial) return 0;
    return d.reverse ? a.index : a.run.layout.steps_capacity - 1 - a.index;
  }
  __device__ std::int64_t width() const { return a.run.shape.state(); }
  __device__ std::int64_t pitch() const { return a.run.panels.parts * a.run.panels.units; }
  __device__ T* dgates(std::int64_t packed) const {
    return static_cast<T*>(d.dgates) + packed * pitch();
  }
  __device__ std::int64_t caller(int row) const { return a.run.layout.sorted_indices[row]; }
  __device__ A& carried(int row, std::int64_t unit) const {
    return carry[row * a.run.panels.units + unit];
  }
  __device__ A before(std::int64_t packed, std::int64_t unit) const {
    return value_of(static_cast<const T*>(d.before)[packed * width() + unit]);
  }

  /// A row of the left factor; null: zeros.
  __device__ const T* factor(int row) const {
    switch (a.phase) {
      case Phase::cell:
        if (d.dh != nullptr) return static_cast<const T*>(d.dh) + (s.y_row + row) * width();
        [[fallthrough]];
      case Phase::state:
        return row < s.after ? dgates(y_after + row) : nullptr;
      case Phase::reset:  // dn
        return dgates(s.y_row + row) + 2 * a.run.panels.units;
      default: {  // dgates of the row's first step
        const int first = d.reverse ? a.run.layout.lengths[row] - 1 : 0;
        return dgates(a.run.layout.offsets[first] + row);
      }
    }
  }

  /// Where a sum begins that goes back through W_hh.
  __device__ A begin(int row, std::int64_t unit) const {
    const bool gru = gates_of() == 3;
    if (row < s.after || a.phase == Phase::initial) return gru ? carried(row, unit) : A(0);
    return d.dh_n != nullptr ? static_cast<const A*>(d.dh_n)[caller(row) * width() + unit] : A(0);
  }
  __device__ std::int64_t gates_of() const { return a.run.panels.gates; }

  __device__ A with_dy(int row, std::int64_t unit, A dh) const {
    if (d.dy == nullptr) return dh;
    return dh + value_of(static_cast<const T*>(d.dy)[(s.y_row + row) * a.run.ldy + unit]);
  }

  /// The cell of one unit, all of it or, of a GRU that resets before, its first half.
  __device__ void cell(int row, std::int64_t unit, A dh) const {
    const std::int64_t packed = s.y_row + row, U = a.run.panels.units, H = a.run.shape.hidden;
    T* const to = dgates(packed) + unit;
    const A* const gates = static_cast<const A*>(d.gates) + (packed * U + unit) * 4;
    switch (a.run.shape.cell) {
      case Cell::lstm: {
        const std::int64_t n = caller(row);
        const A* const cells = static_cast<const A*>(d.cells);
        const A* const c_0 = static_cast<const A*>(d.c_0);
        A c_before = A(0), dc = A(0), sums[4];
        if (row < s.before)
          c_before = cells[(s.y_before + row) * H + unit];
        else if (c_0 != nullptr)
          c_before = c_0[n * H + unit];
        if (row < s.after)
          dc = carried(row, unit);
        else if (d.dc_n != nullptr)
          dc = static_cast<const A*>(d.dc_n)[n * H + unit];
        lstm_back<ExactMath>(dh, gates, cells[packed * H + unit], c_before, dc, sums);
        for (int part = 0; part < 4; ++part) to[part * U] = stored<T>(sums[part]);
        carried(row, unit) = dc;
        if (row >= s.before && d.dc_0 != nullptr) static_cast<A*>(d.dc_0)[n * H + unit] = dc;
        return;
      }
      case Cell::gru: {
        A sums[4];
        carried(row, unit) = gru_back(dh, gates, before(packed, unit), sums);
        for (int part = 0; part < 4; ++part) to[part * U] = stored<T>(sums[part]);
        return;
      }
      case Cell::gru_reset_before: {
        A dz, dn;
        carried(row, unit) = gru_update_back(dh, gates, before(packed, unit), dz, dn);
        to[U] = stored<T>(dz);
        to[2 * U] = stored<T>(dn);
        return;
      }
      default: {
        const A h = value_of(static_cast<const T*>(d.y)[packed * a.run.ldy + unit]);
        *to = stored<T>(rnn_back(a.run.shape.cell == Cell::rnn_relu, dh, h));
      }
    }
  }

  /// The second half of a GRU that resets before.
  __device__ void reset(int row, std::int64_t unit, A d_reset) const {
    const std::int64_t packed = s.y_row + row, U = a.run.panels.units;
    const A r = static_cast<const A*>(d.gates)[(packed * U + unit) * 4];
    A dr;
    carried(row, unit) += gru_reset_back(d_reset, r, before(packed, unit), dr);
    dgates(packed)[unit] = stored<T>(dr);
  }

  /// Zeros for a unit that only fills up.
  __device__ void fill(int row, std::int64_t unit) const {
    T* const to = dgates(s.y_row + row) + unit;
    for (int part = 0; part < a.run.panels.parts; ++part) to[part * a.run.panels.units] = T{};
  }
};

template <class T>
__global__ void __launch_bounds__(BackTile<T>::kThreads) back_step_kernel(BackArguments a) {
  using A = Sum<T>;
  using Tile = BackTile<T>;
  PACKRNN_SHARED(typename Tile::Shared, shared);
  const Back<T> back(a, static_cast<int>(blockIdx.z));
  const int first_row = static_cast<int>(blockIdx.x) * Tile::kTileRows;
  if (first_row >= back.s.rows) return;

  const RecurrentShape& shape = a.run.shape;
  const RecurrentBackwardPanels& panels = a.run.panels;
  const std::int64_t first_unit = static_cast<std::int64_t>(blockIdx.y) * Tile::kTileColumns;
  const bool reset = a.phase == Phase::reset;
  const bool inner = a.phase == Phase::cell && back.d.dh != nullptr;  // through W_hr
  const bool to_units = reset || a.phase == Phase::cell;
  const std::int64_t outputs = to_units ? shape.hidden : back.width();
  const bool two_products = shape.cell == Cell::gru_reset_before;

  A sum[Tile::kRows][Tile::kColumns];
  PACKRNN_UNROLL
  for (int r = 0; r < Tile::kRows; ++r) {
    const int row = first_row + Tile::row(r);
    PACKRNN_UNROLL
    for (int c = 0; c < Tile::kColumns; ++c) {
      const std::int64_t unit = first_unit + Tile::column(c);
      sum[r][c] = A(0);
      if (!reset && !inner && row < back.s.rows && unit < outputs)
        sum[r][c] = back.begin(row, unit);
    }
  }

  // The part of the panels: all gates, r and z, n; or W_hr.
  const std::int64_t pitch = inner ? panels.pitch_hr : panels.pitch_hh;
  const std::int64_t offset = inner   ? panels.w_hr
                              : reset ? panels.w_hh + 2 * panels.units
                                      : panels.w_hh;
  const std::int64_t terms = inner          ? shape.projection
                             : reset        ? panels.units
                             : two_products ? 2 * panels.units
                                            : panels.gates * panels.units;
  const T* const weights = static_cast<const T*>(back.d.panels) + offset;
  if (reset || inner || a.phase == Phase::initial || first_row < back.s.after)
    add_chains<Tile, T>(
        shared, sum, terms, inner ? pitch : terms,
        [&](int r) -> const T* {
          const int row = first_row + r;
          return row < back.s.rows ? back.factor(row) : nullptr;
        },
        [&](int c) -> const T* {
          const std::int64_t unit = first_unit + c;
          return unit < outputs ? weights + unit * pitch : nullptr;
        });

  PACKRNN_UNROLL
  for (int r = 0; r < Tile::kRows; ++r) {
    const int row = first_row + Tile::row(r);
    if (row >= back.s.rows) continue;
    PACKRNN_UNROLL
    for (int c = 0; c < Tile::kColumns; ++c) {
      const std::int64_t unit = first_unit + Tile::column(c);
      if (unit >= outputs) {
        if (a.phase == Phase::cell && unit < panels.units) back.fill(row, unit);
        continue;
      }
      if (a.phase == Phase::state)
        static_cast<T*>(back.d.dh)[(back.s.y_row + row) * back.width() + unit] =
            stored<T>(back.with_dy(row, unit, sum[r][c]));
      else if (a.phase == Phase::cell)
        back.cell(row, unit, inner ? sum[r][c] : back.with_dy(row, unit, sum[r][c]));
      else if (a.phase == Phase::reset)
        back.reset(row, unit, sum[r][c]);
      else if (back.d.dh_0 != nullptr)
        static_cast<A*>(back.d.dh_0)[back.caller(row) * back.width() + unit] = sum[r][c];
    }
  }
}

template <class A>
__global__ void __launch_bounds__(128) empty_gradients_kernel(RecurrentBackwardRun run) {
  const BackwardDirectionRun d = blockIdx.z == 0 ? run.direction[0] : run.direction[1];
  const std::int64_t width = run.shape.state(), hidden = run.shape.hidden;
  const auto pass = [&](const void* from, void* to, std::int64_t n, std::int64_t count) {
    if (to == nullptr) return;
    for (std::int64_t u = threadIdx.x; u < count; u += blockDim.x)
      static_cast<A*>(to)[n * count + u] =
          from != nullptr ? static_cast<const A*>(from)[n * count + u] : A(0);
  };
  const int live = ChunkStep::alive(run.layout, 0, 0, run.layout.batch);
  for (int row = live + static_cast<int>(blockIdx.x); row < run.layout.batch;
       row += static_cast<int>(gridDim.x)) {
    const std::int64_t n = run.layout.sorted_indices[row];
    pass(d.dh_n, d.dh_0, n, width);
    pass(d.dc_n, d.dc_0, n, hidden);
  }
}

/// Rows that may be alive at the index-th step back of either direction.
std::int64_t rows_at(const RecurrentBackwardRun& run, int index) {
  if (run.batch_sizes.empty()) return run.layout.batch;
  std::int64_t rows = 0;
  for (int i = 0; i < run.directions; ++i) {
    const int step = run.direction[i].reverse ? index : run.layout.steps_capacity - 1 - index;
    rows = std::max(rows, run.batch_sizes[static_cast<std::size_t>(step)]);
  }
  return rows;
}

template <class T>
void steps(Context& context, const RecurrentBackwardRun& run) {
  using Tile = BackTile<T>;
  Workspace::Scope scratch(context.workspace());
  BackArguments a;
  a.run = run;
  a.carry = scratch.take<Sum<T>>(run.directions * run.layout.batch * run.panels.units).data();
  const auto start = [&](Phase phase, std::int64_t rows) {
    const bool to_units = phase == Phase::cell || phase == Phase::reset;
    const std::int64_t outputs = to_units ? run.panels.units : run.shape.state();
    gpu::LaunchShape shape;
    shape.grid = {static_cast<unsigned>((rows + Tile::kTileRows - 1) / Tile::kTileRows),
                  static_cast<unsigned>((outputs + Tile::kTileColumns - 1) / Tile::kTileColumns),
                  static_cast<unsigned>(run.directions)};
    shape.block[0] = Tile::kThreads;
    a.phase = phase;
    launch(context.stream(), PACKRNN_KERNEL(back_step_kernel<T>), shape, a);
  };
  for (int index = 0; index < run.layout.steps_capacity; ++index) {
    const std::int64_t rows = rows_at(run, index);
    a.index = index;
    if (run.shape.projection > 0) start(Phase::state, rows);
    start(Phase::cell, rows);
    if (run.shape.cell == Cell::gru_reset_before) start(Phase::reset, rows);
  }
  if (run.direction[0].dh_0 != nullptr || run.direction[1].dh_0 != nullptr)
    start(Phase::initial, run.batch_sizes.empty() ? run.layout.batch : run.batch_sizes[0]);
}

}  // namespace

void step_backward(Context& context, const RecurrentBackwardRun& run) {
  with_floating(run.shape.dtype, [&]<class T>(std::type_identity<T>) { steps<T>(context, run); });
}

void empty_gradients(gpu::Stream stream, const RecurrentBackwardRun& run) {
  gpu::LaunchShape shape;
  shape.grid = {static_cast<unsigned>(std::clamp(run.layout.batch, 0, 256)), 1,
                static_cast<unsigned>(run.directions)};
  shape.block[0] = 128;
  if (run.shape.dtype == Dtype::f64)
    launch(stream, PACKRNN_KERNEL(empty_gradients_kernel<double>), shape, run);
  else
    launch(stream, PACKRNN_KERNEL(empty_gradients_kernel<float>), shape, run);
}

}  // namespace packrnn::kernels::cuda

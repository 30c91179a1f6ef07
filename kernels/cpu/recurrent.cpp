// One recurrent layer on the CPU: both directions, their threads and their memory. The work itself
// is recurrent_run-inl.hpp.
#include "packrnn/kernels/cpu/recurrent.hpp"

#include <fmt/format.h>

#include <bit>
#include <optional>

#include "packrnn/kernels/cpu/parallel_for.hpp"
#include "packrnn/kernels/cpu/targets.hpp"
#include "packrnn/kernels/cpu_target.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "packrnn/kernels/cpu/recurrent.cpp"
#include <hwy/foreach_target.h>
// After foreach_target:
#include "packrnn/kernels/cpu/recurrent_run-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace packrnn::kernels::HWY_NAMESPACE {
namespace {

/// Final states in the caller's order: h is the last row that the direction wrote.
template <class T>
void store_states(const Job<T>& job, const PackedLayout& layout, const RecurrentDirection& d) {
  const std::int64_t width = job.shape.state(), hidden = job.shape.hidden;
  T* h_n = d.h_n.data<T>();
  for (std::int64_t n = 0; n < layout.batch(); ++n) {
    const std::int64_t length = layout.lengths()[static_cast<std::size_t>(n)];
    const T* from = length > 0 ? job.y[layout.row(n, job.reverse ? 0 : length - 1)]
                               : (job.h_0 ? job.h_0 + n * width : nullptr);
    if (from)
      std::copy_n(from, width, h_n + n * width);
    else
      std::fill_n(h_n + n * width, width, T{0});
    if (job.shape.cell != Cell::lstm) continue;
    T* c_n = d.c_n.data<T>() + n * hidden;
    const T* cell = length > 0 ? job.c[layout.unsorted_indices()[static_cast<std::size_t>(n)]]
                               : (job.c_0 ? job.c_0 + n * hidden : nullptr);
    if (cell)
      std::copy_n(cell, hidden, c_n);
    else
      std::fill_n(c_n, hidden, T{0});
  }
}

template <class T>
void forward(Context& context, const RecurrentShape& shape, const PackedLayout& layout,
             const TensorView& x, std::span<const RecurrentDirection> directions,
             const TensorSpan& y, const TensorSpan& cells, int team) {
  const PanelMap map(shape, kLanes<T>);
  const auto count = static_cast<std::int64_t>(directions.size());
  const std::int64_t live = layout.steps() > 0 ? layout.batch_sizes()[0] : 0;
  const int threads = std::max(team, 1);
  // The gates of a chunk should stay in L2, and their memory should not grow with the batch.
  constexpr std::int64_t kChunkRows = 96, kGateRows = 256;

  Workspace::Scope scratch(context.workspace());
  const auto rows = [&](std::int64_t width) {
    const std::int64_t stride = state_stride<T>(width);
    return Rows<T>{scratch.take<T>(live * stride).data(), stride};
  };
  const bool crowded = context.pool().crowded();
  Barrier barriers[2] = {Barrier(threads, crowded), Barrier(threads, crowded)};
  std::optional<Job<T>> jobs[2];
  for (std::int64_t i = 0; i < count; ++i) {
    const RecurrentDirection& d = directions[static_cast<std::size_t>(i)];
    const bool before = shape.cell == Cell::gru_reset_before;
    const std::int64_t gate_rows = std::clamp(live, kChunkRows, kGateRows);
    Job<T> job{
        .shape = shape,
        .map = map,
        .panels = d.panels.data<T>(),
        .reverse = d.reverse,
        .batch_sizes = layout.batch_sizes(),
        .offsets = layout.offsets(),
        .sorted_indices = layout.sorted_indices(),
        .x = {x.data<T>(), shape.input},
        .y = {y.data<T>() + i * shape.state(), count * shape.state()},
        .cells = {},
        .reserve = {},
        .h_0 = d.h_0.defined() ? d.h_0.data<T>() : nullptr,
        .c_0 = d.c_0.defined() ? d.c_0.data<T>() : nullptr,
        .h = {rows(std::max(map.units, shape.state())), rows(std::max(map.units, shape.state()))},
        .c = shape.cell == Cell::lstm ? rows(map.units) : Rows<T>{},
        .hidden = before || shape.projection > 0 ? rows(map.units) : Rows<T>{},
        .z = before ? rows(map.units) : Rows<T>{},
        .gates = {scratch.take<T>(gate_rows * map.columns).data(),
                  scratch.take<T>(gate_rows * map.columns).data()},
        .chunk_rows = kChunkRows,
        .gate_rows = gate_rows,
        .by_rows_from = cpu::rows_per_thread(shape) * threads,
        .team = threads,
        .barrier = &barriers[i]};
    if (cells.defined()) job.cells = {cells.data<T>() + i * shape.hidden, count * shape.hidden};
    if (d.reserve.defined()) job.reserve = {d.reserve.data<T>(), ReserveMap<T>(shape).stride};
    jobs[i].emplace(job);
  }

  with_cell(shape.cell, [&]<Cell kCell>() {
    const auto one = [&](const Job<T>& job, int part) { run_cell<T, kCell>(job, part); };
    if (team == 0) {
      for (std::int64_t i = 0; i < count; ++i) one(*jobs[i], 0);
    } else if (count * team <= context.threads()) {  // directions side by side
      context.pool().run([&](int worker) {
        if (worker < count * team) one(*jobs[worker / team], worker % team);
      });
    } else {
      context.pool().run([&](int worker) {
        if (worker < team)
          for (std::int64_t i = 0; i < count; ++i) one(*jobs[i], worker);
      });
    }
  });
  for (std::int64_t i = 0; i < count; ++i)
    store_states(*jobs[i], layout, directions[static_cast<std::size_t>(i)]);
}

// What the dispatcher sees, without templates.
std::int64_t PanelElements(const RecurrentShape& shape) {
  return PanelMap(shape, shape.dtype == Dtype::f32 ? kLanes<float> : kLanes<double>).end;
}

void Pack(Context& context, const RecurrentShape& shape, const RecurrentWeights& weights,
          const TensorSpan& panels) {
  cpu::on_team(context.pool(), panels.bytes(), [&](int part, int team) {
    with_cell(shape.cell, [&]<Cell kCell>() {
      if (shape.dtype == Dtype::f32)
        pack<float, kCell>(shape, weights, panels.data<float>(), {part, team});
      else
        pack<double, kCell>(shape, weights, panels.data<double>(), {part, team});
    });
  });
}

void Forward(Context& context, const RecurrentShape& shape, const PackedLayout& layout,
             const TensorView& x, std::span<const RecurrentDirection> directions,
             const TensorSpan& y, const TensorSpan& cells, int team) {
  if (shape.dtype == Dtype::f32)
    forward<float>(context, shape, layout, x, directions, y, cells, team);
  else
    forward<double>(context, shape, layout, x, directions, y, cells, team);
}

}  // namespace
}  // namespace packrnn::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace packrnn::kernels {
namespace {

HWY_EXPORT(PanelElements);
HWY_EXPORT(Pack);
HWY_EXPORT(Forward);

}  // namespace

namespace cpu {

std::int64_t recurrent_panel_elements(const RecurrentShape& shape) {
  return HWY_DYNAMIC_DISPATCH(PanelElements)(shape);
}

void pack_recurrent(Context& context, const RecurrentShape& shape, const RecurrentWeights& weights,
                    const TensorSpan& panels) {
  HWY_DYNAMIC_DISPATCH(Pack)(context, shape, weights, panels);
}

void recurrent_forward(Context& context, const RecurrentShape& shape, const PackedLayout& layout,
                       const TensorView& x, std::span<const RecurrentDirection> directions,
                       const TensorSpan& y, const TensorSpan& cells) {
  const int team =
      recurrent_plan(context, shape, layout, static_cast<std::int64_t>(directions.size()))
          .algorithm;
  HWY_DYNAMIC_DISPATCH(Forward)(context, shape, layout, x, directions, y, cells, team);
}

std::int64_t rows_per_thread(const RecurrentShape& shape) {
  constexpr std::int64_t kOwnCache = 1 << 20;  // half of the smallest L2 of a recent server core
  const std::int64_t weight =
      shape.storage == WeightStorage::full ? static_cast<std::int64_t>(size_of(shape.dtype)) : 2;
  const std::int64_t bytes = gates(shape.cell) * shape.hidden * shape.state() * weight;
  return bytes <= kOwnCache ? 8 : 32;
}

const Plan& recurrent_plan(Context& context, const RecurrentShape& shape,
                           const PackedLayout& layout, std::int64_t directions) {
  // A step must give each thread a few microseconds, or meeting costs more than it saves.
  constexpr std::int64_t kWorthwhile = 16 * 1024;  // multiply-adds
  const int threads = context.threads();
  // Multiply-adds of a mean step, down to a power of two: similar batches share a plan.
  const std::int64_t per_row = gates(shape.cell) * shape.hidden * (shape.input + shape.state());
  const double mean_rows = static_cast<double>(layout.total()) /
                           static_cast<double>(std::max<std::int64_t>(1, layout.steps()));
  const auto work = static_cast<std::int64_t>(
      std::bit_floor(static_cast<std::uint64_t>(static_cast<double>(per_row) * mean_rows)));
  const std::int64_t cell =
      (static_cast<std::int64_t>(shape.cell) * 2 + (shape.dtype == Dtype::f64)) * 3 +
      static_cast<std::int64_t>(shape.storage);
  const PlanKey key{
      "recurrent forward",
      {shape.input, shape.hidden, shape.state(), cell * 2 + directions - 1, work, threads}};
  return context.plans().find(key, [&] {
    const bool side_by_side = directions == 2 && threads % 2 == 0;
    const auto team = static_cast<int>(
        std::min<std::int64_t>(side_by_side ? threads / 2 : threads, work / kWorthwhile));
    const std::string what = fmt::format(
        "{} {}{} I={} H={} D={}, {} or more multiply-adds per step, {}: ", name_of(shape.cell),
        name_of(shape.dtype),
        shape.storage == WeightStorage::full ? ""
                                             : fmt::format(" (weights {})", name_of(shape.storage)),
        shape.input, shape.hidden, directions, work, cpu_target());
    if (threads == 1) return Plan{0, what + "one thread, all that the context has"};
    if (team == 0) return Plan{0, what + "calling thread only, too little work per step to share"};
    std::string how = fmt::format("{} thread{} per direction", team, team > 1 ? "s" : "");
    if (side_by_side) how += ", directions side by side";
    if (team > 1)
      how +=
          fmt::format(", by rows from {} live rows, by units below", rows_per_thread(shape) * team);
    return Plan{team, what + how};
  });
}

}  // namespace cpu
}  // namespace packrnn::kernels
#endif  // HWY_ONCE

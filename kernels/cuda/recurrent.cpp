// One recurrent layer on a GPU: input products in ranges of steps, then the recurrence by whichever
// algorithm is chosen. Nothing here waits for the device.
#include "packrnn/kernels/cuda/recurrent.hpp"

#include <algorithm>

#include "packrnn/kernels/cuda/cluster.hpp"
#include "packrnn/kernels/cuda/layer_product.hpp"
#include "packrnn/kernels/cuda/pack.hpp"
#include "packrnn/kernels/cuda/persistent.hpp"
#include "packrnn/kernels/cuda/persistent_exact.hpp"
#include "packrnn/kernels/cuda/recurrent_run.hpp"
#include "packrnn/kernels/cuda/row.hpp"
#include "packrnn/kernels/cuda/select.hpp"
#include "packrnn/kernels/cuda/step.hpp"
#include "packrnn/kernels/cuda/tensor_step.hpp"

namespace packrnn::kernels::cuda {
namespace {

void run_algorithm(Context& context, const RecurrentRun& run, const Choice& choice) {
  switch (choice.algorithm) {
    case Algorithm::step:
      return step_forward(context, run);
    case Algorithm::exact_persistent:
      return exact_persistent_forward(context, run, choice.mapping);
    case Algorithm::persistent:
      return persistent_forward(context, run, choice.mapping);
    case Algorithm::cluster:
      return cluster_forward(context, run, choice.mapping);
    case Algorithm::tensor_step:
      return tensor_step_forward(context, run);
  }
}

/// Ranges of steps whose rows are at most `most`, or a single step.
void run_in_ranges(Context& context, const RecurrentRun& run, const PackedLayout& layout,
                   const TensorView& x, const Choice& choice, std::int64_t most) {
  const std::span<const std::int64_t> offsets = layout.offsets();
  const auto offset = [&](std::int64_t step) { return offsets[static_cast<std::size_t>(step)]; };
  const std::int64_t steps = layout.steps();
  const bool reverse = run.direction[0].reverse;
  for (std::int64_t done = 0; done < steps;) {
    std::int64_t first = reverse ? steps - done - 1 : done, last = first + 1;
    if (reverse)
      while (first > 0 && offset(last) - offset(first - 1) <= most) --first;
    else
      while (last < steps && offset(last + 1) - offset(first) <= most) ++last;
    run_steps(context, run, layout, x, choice, first, last);
    done += last - first;
  }
}

/// Whether the cell states are kept for a backward, each direction's by itself; what the caller
/// wants of them besides is made from that at the end.
bool keeps_cells(const RecurrentShape& shape, std::span<const RecurrentDirection> directions) {
  return shape.cell == Cell::lstm &&
         std::ranges::any_of(directions, [](const auto& d) { return d.reserve.defined(); });
}

}  // namespace

RecurrentRun begin_recurrent(Context& context, const RecurrentShape& shape,
                             const PackedLayout& layout, const DeviceLayout& tables,
                             std::span<const RecurrentDirection> directions, const TensorSpan& y,
                             const TensorSpan& cells, Workspace::Scope& scratch) {
  const auto count = static_cast<std::int64_t>(directions.size());
  const Dtype sums = cell_dtype(shape.dtype);
  RecurrentRun run;
  run.shape = shape;
  run.panels = RecurrentPanels::of(shape);
  run.layout = tables;
  if (layout.known()) run.batch_sizes = layout.batch_sizes();
  run.directions = static_cast<int>(count);
  run.ldy = count * shape.state();
  const bool keeps = keeps_cells(shape, directions);
  run.ldcells = keeps ? shape.hidden : count * shape.hidden;
  for (std::int64_t i = 0; i < count; ++i) {
    const RecurrentDirection& from = directions[static_cast<std::size_t>(i)];
    DirectionRun& to = run.direction[i];
    to.panels = from.panels.raw();
    to.reverse = from.reverse;
    to.h_0 = from.h_0.defined() ? from.h_0.raw() : nullptr;
    to.c_0 = from.c_0.defined() ? from.c_0.raw() : nullptr;
    to.h_n = from.h_n.raw();
    to.c_n = from.c_n.defined() ? from.c_n.raw() : nullptr;
    to.y = at(y.raw(), i * shape.state(), shape.dtype);
    to.cells = cells.defined() && !keeps ? at(cells.raw(), i * shape.hidden, sums) : nullptr;
    if (keeps && from.reserve.defined())
      to.cells = from.reserve.raw();
    else if (keeps && cells.defined())
      to.cells = scratch
                     .take<std::byte>(layout.total() * shape.hidden *
                                      static_cast<std::int64_t>(size_of(sums)))
                     .data();
    if (shape.cell == Cell::lstm)
      to.c_state = scratch
                       .take<std::byte>(layout.batch() * run.panels.units *
                                        static_cast<std::int64_t>(size_of(sums)))
                       .data();
  }
  if (!layout.known() || layout.steps() == 0 || layout.batch_sizes()[0] < layout.batch())
    empty_states(context.stream(), run);
  if (!layout.known()) zero_unused_rows(context.stream(), run.layout, y, cells);
  return run;
}

void finish_recurrent(Context& context, const RecurrentRun& run,
                      std::span<const RecurrentDirection> directions, const TensorSpan& cells) {
  if (!cells.defined() || !keeps_cells(run.shape, directions)) return;
  const auto size = static_cast<std::int64_t>(size_of(cells.dtype()));
  const std::int64_t bytes = run.shape.hidden * size, pitch = cells.size(1) * size;
  for (int i = 0; i < run.directions; ++i) {
    void* const to = at(cells.raw(), i * run.shape.hidden, cells.dtype());
    const void* const from = run.direction[i].cells;
    spread_rows(context.stream(), from, bytes, cells.size(0),
                row_of(bytes, address(from) | address(to) | pitch), to, pitch);
  }
  if (run.batch_sizes.empty()) zero_unused_rows(context.stream(), run.layout, {}, cells);
}

void run_steps(Context& context, RecurrentRun run, const PackedLayout& layout, const TensorView& x,
               const Choice& choice, std::int64_t first, std::int64_t last) {
  // Where the host does not know which rows belong to which steps, the range is the whole batch.
  const auto offset = [&](std::int64_t step) {
    return layout.known() ? layout.offsets()[static_cast<std::size_t>(step)]
                          : (step == 0 ? 0 : layout.total());
  };
  const std::int64_t begin = offset(first), rows = offset(last) - begin;
  Workspace::Scope scratch(context.workspace());
  const std::int64_t bytes = rows * input_product_row_bytes(run.shape);
  for (int i = 0; i < run.directions; ++i) {
    void* const gx = scratch.take<std::byte>(bytes).data();
    input_product(context, run.shape, run.direction[i].panels,
                  at(x.raw(), begin * run.shape.input, run.shape.dtype), rows, gx);
    run.direction[i].gx = gx;
  }
  run.first_step = static_cast<std::int32_t>(first);
  run.last_step = static_cast<std::int32_t>(last);
  run_algorithm(context, run, choice);
}

std::int64_t input_product_row_bytes(const RecurrentShape& shape) {
  const RecurrentPanels panels = RecurrentPanels::of(shape);
  return panels.units * panels.gates * static_cast<std::int64_t>(size_of(cell_dtype(shape.dtype)));
}

void recurrent_forward(Context& context, const RecurrentShape& shape, const PackedLayout& layout,
                       const TensorView& x, std::span<const RecurrentDirection> directions,
                       const TensorSpan& y, const TensorSpan& cells, const RunOptions& options) {
  if (layout.batch() == 0) return;
  const auto count = static_cast<std::int64_t>(directions.size());
  Workspace::Scope scratch(context.workspace());
  const RecurrentRun run =
      begin_recurrent(context, shape, layout, layout.on(context), directions, y, cells, scratch);
  if (layout.total() == 0) return;

  const Choice choice =
      options.choice ? *options.choice : choose(context, shape, layout, run.directions);
  const std::int64_t row_bytes = input_product_row_bytes(shape);
  // Where the host does not know which rows belong to which steps, all are taken at once.
  if (!layout.known() || layout.total() <= options.input_product_bytes / (row_bytes * count)) {
    run_steps(context, run, layout, x, choice, 0, layout.steps());
  } else {
    // In ranges, the directions come from opposite ends: one after the other.
    for (std::int64_t i = 0; i < count; ++i) {
      RecurrentRun one = run;
      one.directions = 1;
      one.direction[0] = run.direction[i];
      run_in_ranges(context, one, layout, x, choice, options.input_product_bytes / row_bytes);
    }
  }
  finish_recurrent(context, run, directions, cells);
}

std::string explain_recurrent(Context& context, const RecurrentShape& shape,
                              const PackedLayout& layout, std::int64_t directions) {
  return choose(context, shape, layout, static_cast<int>(directions)).reason;
}

}  // namespace packrnn::kernels::cuda

#include "packrnn/kernels/cuda/persistent.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <numeric>

#include "packrnn/kernels/cuda/persistent_run.hpp"
#include "packrnn/kernels/cuda/watchdog.hpp"
#include "packrnn/runtime/expects.hpp"

namespace packrnn::kernels::cuda {
namespace {

PersistentVariants variants_of(Dtype dtype, F32Math math) {
  switch (dtype) {
    case Dtype::bf16:
      return persistent_bf16_variants();
    case Dtype::f16:
      return persistent_f16_variants();
    default:
      return math == F32Math::tf32 ? persistent_tf32_variants() : persistent_tf32x3_variants();
  }
}

/// Packed rows of the range, or as many as there may be.
std::int64_t rows_of_range(const RecurrentRun& run) {
  const std::int64_t steps = run.last_step - run.first_step;
  if (run.batch_sizes.empty()) return std::min(run.layout.rows_capacity, steps * run.layout.batch);
  const auto from = run.batch_sizes.begin() + run.first_step;
  return std::accumulate(from,
                         run.batch_sizes.begin() +
                             std::min<std::ptrdiff_t>(run.last_step, std::ssize(run.batch_sizes)),
                         std::int64_t{0});
}

bool aligned(const void* data) { return reinterpret_cast<std::uintptr_t>(data) % 16 == 0; }

}  // namespace

std::string tensor_core_obstacle(const RecurrentShape& shape, F32Math math) {
  if (shape.projection > 0) return "not with projection";
  if (shape.cell == Cell::gru_reset_before) return "not with reset before the product";
  if (shape.dtype == Dtype::f64 || (shape.dtype == Dtype::f32 && math == F32Math::exact))
    return "not without tensor cores";
  return {};
}

std::string persistent_obstacle(const RecurrentShape& shape, F32Math math) {
  std::string obstacle = tensor_core_obstacle(shape, math);
  if (obstacle.empty() && chunks_per_warp(shape.hidden) == 0)
    obstacle = fmt::format("H is {}, at most {} fits", shape.hidden, 8 * kPersistentWarps * 32);
  return obstacle;
}

void add_mappings(int device, const PersistentNeeds& kernel, std::int64_t hidden, int warps,
                  std::int64_t batch, int directions, std::vector<Mapping>& mappings,
                  std::string& needs) {
  const gpu::Properties& properties = gpu::properties(device);
  const std::size_t shared = kernel.shared(warps);
  const int multiprocessors = properties.multiprocessors;
  const int each =
      shared + static_cast<std::size_t>(kernel.fixed_bytes) <= properties.shared_per_block
          ? kernel.resident(device, shared)
          : 0;
  Mapping m;
  m.blocks = kernel.blocks(hidden);
  m.units = kernel.units;
  m.shared_weights = warps * kernel.weight_bytes;
  needs += fmt::format("{}{} blocks of {} KB shared memory", needs.empty() ? "" : " or ", m.blocks,
                       shared / 1024);
  if (each * multiprocessors < m.blocks) return;
  m.directions_in_turn = m.blocks * directions > each * multiprocessors;
  const int together = m.blocks * (m.directions_in_turn ? 1 : directions);
  for (m.rows = 8; m.rows <= kMostChunkRows; m.rows *= 2) {
    const std::int64_t chunks = std::max<std::int64_t>(1, (batch + m.rows - 1) / m.rows);
    // A multiprocessor for each block, or several blocks on one where that gives more groups.
    int before = 0;
    for (const int places : {multiprocessors, each * multiprocessors}) {
      m.groups = static_cast<int>(std::min<std::int64_t>({chunks, places / together, kMostGroups}));
      if (m.groups > before) mappings.push_back(m);
      before = m.groups;
    }
    if (m.rows >= batch) break;
  }
}

std::string too_large(int device, const std::string& needs) {
  const gpu::Properties& properties = gpu::properties(device);
  return fmt::format("needs {}, the device has {} multiprocessors of {} KB",
                     needs.empty() ? "a kernel that was not built" : needs,
                     properties.multiprocessors, properties.shared_per_block / 1024);
}

PersistentVariants variants_for(const PersistentVariants& variants, const RecurrentShape& shape) {
  const Cell cell = shape.cell == Cell::rnn_relu ? Cell::rnn_tanh : shape.cell;
  PersistentVariants found;
  for (const PersistentVariant& v : variants)
    if (v.cell == cell && v.chunks == chunks_per_warp(shape.hidden)) found.push_back(v);
  return found;
}

PersistentRun persistent_run(Context& context, const RecurrentRun& run, Workspace::Scope& scratch,
                             bool mailbox) {
  const auto size = static_cast<std::int64_t>(size_of(run.shape.dtype));
  const RecurrentPanels& panels = run.panels;
  PersistentRun to{};
  to.layout = run.layout;
  to.fault = context.fault();
  to.watchdog_ns = watchdog_ns();
  to.pitch_hh = panels.pitch_hh;
  to.ldy = run.ldy;
  to.ldcells = run.ldcells;
  to.hidden = static_cast<std::int32_t>(run.shape.hidden);
  to.units = static_cast<std::int32_t>(panels.units);
  to.first_step = run.first_step;
  to.last_step = run.last_step;
  to.directions = run.directions;
  to.warps = product_warps(run.shape.hidden);
  to.relu = run.shape.cell == Cell::rnn_relu;
  const std::int64_t rows = rows_of_range(run);
  expects(rows <= std::numeric_limits<std::int32_t>::max(),
          "a range of steps has {} rows, expected less than 2^31", rows);
  // Readers take 8 elements of y at a time, aligned.
  to.mail_is_y = mailbox && to.hidden == to.units && run.ldy * size % 16 == 0;
  for (int d = 0; d < run.directions; ++d) to.mail_is_y &= aligned(run.direction[d].y);
  to.mail_pitch = to.mail_is_y ? run.ldy : panels.units;
  for (int d = 0; d < run.directions; ++d) {
    const DirectionRun& from = run.direction[d];
    PersistentDirection& direction = to.direction[d];
    const auto* const panel = static_cast<const std::byte*>(from.panels);
    direction.w_hh = panel + panels.w_hh * size;
    direction.bias_n = reinterpret_cast<const float*>(panel + panels.bias_n * size);
    direction.gx = static_cast<const float*>(from.gx);
    direction.y = from.y;
    direction.h_0 = from.h_0;
    direction.c_0 = static_cast<const float*>(from.c_0);
    direction.start = scratch.take<std::byte>(run.layout.batch * panels.units * size).data();
    direction.c_state = static_cast<float*>(from.c_state);
    if (mailbox)
      direction.mail =
          to.mail_is_y ? from.y : scratch.take<std::byte>(rows * panels.units * size).data();
    direction.y_beside = to.mail_is_y ? nullptr : from.y;
    direction.h_n = from.h_n;
    direction.c_n = static_cast<float*>(from.c_n);
    direction.cells = static_cast<float*>(from.cells);
    direction.reverse = from.reverse;
  }
  return to;
}

std::vector<Mapping> persistent_mappings(int device, const RecurrentShape& shape, F32Math math,
                                         std::int64_t batch, int directions,
                                         std::string& obstacle) {
  std::vector<Mapping> mappings;
  obstacle = persistent_obstacle(shape, math);
  if (!obstacle.empty()) return mappings;
  const gpu::Properties& properties = gpu::properties(device);
  if (!properties.cooperative) {
    obstacle = "no cooperative launches on " + properties.name;
    return mappings;
  }
  std::string needs;
  for (const PersistentVariant& v : variants_for(variants_of(shape.dtype, math), shape))
    add_mappings(device, v, shape.hidden, product_warps(shape.hidden), batch, directions, mappings,
                 needs);
  if (mappings.empty()) obstacle = too_large(device, needs);
  return mappings;
}

void persistent_forward(Context& context, const RecurrentRun& run, const Mapping& mapping) {
  if (run.last_step <= run.first_step || run.layout.batch == 0) return;
  const PersistentVariants variants =
      variants_for(variants_of(run.shape.dtype, context.f32_math()), run.shape);
  const auto variant = std::find_if(variants.begin(), variants.end(),
                                    [&](const auto& v) { return v.units == mapping.units; });
  expects(variant != variants.end(), "no persistent kernel has {} units per block for this shape",
          mapping.units);
  Workspace::Scope scratch(context.workspace());
  PersistentRun to = persistent_run(context, run, scratch, true);
  prepare_persistent(context.stream(), to, size_of(run.shape.dtype),
                     gpu::properties(context.device().index).multiprocessors);
  start_persistent(context.stream(), *variant, mapping, to);
}

}  // namespace packrnn::kernels::cuda

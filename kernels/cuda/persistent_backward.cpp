#include "packrnn/kernels/cuda/persistent_backward.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "packrnn/kernels/cuda/persistent_backward_run.hpp"
#include "packrnn/kernels/cuda/watchdog.hpp"
#include "packrnn/runtime/expects.hpp"

namespace packrnn::kernels::cuda {
namespace {

std::int64_t terms_of(const RecurrentShape& shape) {
  const RecurrentBackwardPanels panels = RecurrentBackwardPanels::of(shape);
  return panels.gates * panels.units;
}

int warps_of(const RecurrentShape& shape) {
  return product_warps(terms_of(shape), kMostBackwardChunks);
}

/// Those that compute this shape; they differ in units.
PersistentBackwardVariants variants_for(const RecurrentShape& shape, F32Math math) {
  PersistentBackwardVariants variants =
      shape.dtype == Dtype::bf16  ? persistent_backward_bf16_variants()
      : shape.dtype == Dtype::f16 ? persistent_backward_f16_variants()
      : math == F32Math::tf32     ? persistent_backward_tf32_variants()
                                  : persistent_backward_tf32x3_variants();
  const int chunks = chunks_per_warp(terms_of(shape), kMostBackwardChunks);
  std::erase_if(variants, [&](const auto& v) { return v.chunks != chunks; });
  return variants;
}

}  // namespace

std::vector<Mapping> persistent_backward_mappings(int device, const RecurrentShape& shape,
                                                  F32Math math, std::int64_t batch, int directions,
                                                  std::string& obstacle) {
  std::vector<Mapping> mappings;
  obstacle = tensor_core_obstacle(shape, math);
  constexpr std::int64_t kMostTerms = std::int64_t{kMostBackwardChunks} * kPersistentWarps * 32;
  if (obstacle.empty() && terms_of(shape) > kMostTerms)
    obstacle = fmt::format("W_hh has {} rows, at most {} fit", terms_of(shape), kMostTerms);
  const gpu::Properties& properties = gpu::properties(device);
  if (obstacle.empty() && !properties.cooperative)
    obstacle = "no cooperative launches on " + properties.name;
  if (!obstacle.empty()) return mappings;
  std::string needs;
  for (const PersistentBackwardVariant& v : variants_for(shape, math))
    add_mappings(device, v, shape.hidden, warps_of(shape), batch, directions, mappings, needs);
  if (mappings.empty()) obstacle = too_large(device, needs);
  return mappings;
}

Mapping fastest_backward_mapping(const DeviceConstants& constants, const RecurrentShape& shape,
                                 F32Math math, const std::vector<Mapping>& mappings,
                                 const LengthProfile& profile, int directions) {
  return std::ranges::min(mappings, {}, [&](const Mapping& m) {
    return persistent_seconds(constants, shape, arithmetic_of(shape.dtype, math), m, profile,
                              directions, Way::back);
  });
}

void persistent_backward(Context& context, const RecurrentBackwardRun& run,
                         const Mapping& mapping) {
  if (run.layout.batch == 0 || run.layout.steps_capacity == 0) return;
  const PersistentBackwardVariants variants = variants_for(run.shape, context.f32_math());
  const auto variant = std::find_if(variants.begin(), variants.end(),
                                    [&](const auto& v) { return v.units == mapping.units; });
  expects(variant != variants.end(), "no persistent kernel has {} units per block for this shape",
          mapping.units);
  expects(run.layout.rows_capacity <= std::numeric_limits<std::int32_t>::max(),
          "a packed batch has {} rows, expected less than 2^31", run.layout.rows_capacity);
  PersistentBackwardRun to{};
  to.layout = run.layout;
  to.fault = context.fault();
  to.watchdog_ns = watchdog_ns();
  to.pitch_hh = run.panels.pitch_hh;
  to.ldy = run.ldy;
  to.hidden = static_cast<std::int32_t>(run.shape.hidden);
  to.units = static_cast<std::int32_t>(run.panels.units);
  to.last_step = run.layout.steps_capacity;
  to.directions = run.directions;
  to.warps = warps_of(run.shape);
  to.w_hh = run.panels.w_hh;
  to.terms = static_cast<std::int32_t>(run.panels.gates * run.panels.units);
  to.parts = static_cast<std::int32_t>(run.panels.parts);
  to.cell = run.shape.cell;
  std::copy_n(run.direction, run.directions, to.direction);
  empty_dgates(context.stream(), to, size_of(run.shape.dtype),
               gpu::properties(context.device().index).multiprocessors);
  start_persistent(context.stream(), *variant, mapping, to);
}

}  // namespace packrnn::kernels::cuda

#include "packrnn/kernels/cuda/cluster.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "packrnn/runtime/expects.hpp"

namespace packrnn::kernels::cuda {
namespace {

constexpr int kMostBlocks = 16;  // of a cluster

/// Those that compute this shape with a cluster; they differ in units.
std::vector<ClusterVariant> variants_of(const RecurrentShape& shape) {
  const Cell cell = shape.cell == Cell::rnn_relu ? Cell::rnn_tanh : shape.cell;
  std::vector<ClusterVariant> variants =
      shape.dtype == Dtype::bf16 ? cluster_bf16_variants() : cluster_f16_variants();
  std::erase_if(variants, [&](const ClusterVariant& v) {
    return v.cell != cell || v.chunks != chunks_per_warp(shape.hidden) ||
           shape.hidden > std::int64_t{kMostBlocks} * v.units;
  });
  return variants;
}

std::size_t shared_bytes(const ClusterVariant& variant, const RecurrentShape& shape, int rows) {
  const auto units = static_cast<int>(RecurrentPanels::of(shape).units);
  const int pitch = cluster_state_pitch(units, static_cast<int>(size_of(shape.dtype)));
  return static_cast<std::size_t>(product_warps(shape.hidden) * variant.warp_bytes +
                                  std::int64_t{2} * rows * pitch);
}

}  // namespace

std::vector<Mapping> cluster_mappings(int device, const RecurrentShape& shape, F32Math math,
                                      std::int64_t batch, int directions, std::string& obstacle) {
  std::vector<Mapping> mappings;
  obstacle = persistent_obstacle(shape, math);
  if (obstacle.empty() && size_of(shape.dtype) != 2) obstacle = "only in f16 and bf16";
  const gpu::Properties& properties = gpu::properties(device);
  if (obstacle.empty() && !properties.clusters)
    obstacle = fmt::format("no clusters on sm_{}{}", properties.major, properties.minor);
  if (!obstacle.empty()) return mappings;
  std::string tried;
  for (const ClusterVariant& v : variants_of(shape)) {
    Mapping m;
    m.cluster = true;
    m.blocks = static_cast<int>((shape.hidden + v.units - 1) / v.units);
    m.units = v.units;
    m.shared_weights = product_warps(shape.hidden) * v.weight_bytes;
    for (m.rows = 8; m.rows <= 64; m.rows *= 2) {
      const std::size_t shared = shared_bytes(v, shape, m.rows);
      const bool small =
          shared + static_cast<std::size_t>(v.fixed_bytes) <= properties.shared_per_block;
      const int resident = small ? v.resident(device, shared, m.blocks) : 0;
      if (m.rows == 8)
        tried += fmt::format("{}{} blocks of {} KB", tried.empty() ? "" : " or ", m.blocks,
                             (shared + 1023) / 1024);
      if (resident == 0) break;
      // More clusters would queue, or share multiprocessors, of which the cost model knows nothing.
      const int together = std::max(1, std::min(resident, properties.multiprocessors / m.blocks));
      m.directions_in_turn = together < directions;
      const std::int64_t room = std::max(1, together / directions);
      const std::int64_t chunks = std::max<std::int64_t>(1, (batch + m.rows - 1) / m.rows);
      m.groups = static_cast<int>(std::min<std::int64_t>({chunks, room, kMostGroups}));
      mappings.push_back(m);
      if (m.rows >= batch) break;
    }
  }
  if (mappings.empty())
    obstacle = tried.empty() ? fmt::format("W_hh of H {} needs more than {} blocks", shape.hidden,
                                           kMostBlocks)
                             : fmt::format("no cluster of {} fits this device", tried);
  return mappings;
}

void cluster_forward(Context& context, const RecurrentRun& run, const Mapping& mapping) {
  if (run.last_step <= run.first_step || run.layout.batch == 0) return;
  const std::vector<ClusterVariant> variants = variants_of(run.shape);
  const auto variant = std::find_if(variants.begin(), variants.end(),
                                    [&](const auto& v) { return v.units == mapping.units; });
  expects(variant != variants.end(), "no cluster kernel has {} units per block for this shape",
          mapping.units);
  Workspace::Scope scratch(context.workspace());
  PersistentRun to = persistent_run(context, run, scratch, false);
  to.blocks = mapping.blocks;
  to.groups = mapping.groups;
  to.chunk_rows = mapping.rows;
  prepare_persistent(context.stream(), to, size_of(run.shape.dtype),
                     gpu::properties(context.device().index).multiprocessors);
  gpu::LaunchShape shape;
  shape.grid[0] = static_cast<unsigned>(to.directions * to.groups * to.blocks);
  shape.block[0] = kPersistentThreads;
  shape.shared = shared_bytes(*variant, run.shape, mapping.rows);
  shape.cluster = static_cast<unsigned>(to.blocks);
  variant->launch(context.stream(), shape, to);
}

}  // namespace packrnn::kernels::cuda

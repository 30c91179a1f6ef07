#include "packrnn/kernels/cuda/wavefront.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <utility>

#include "packrnn/kernels/cuda/recurrent.hpp"

namespace packrnn::kernels::cuda {
namespace {

constexpr int kLeastSteps = 16;      // of a range
constexpr int kMostRanges = 64;      // beyond, the host's launches are what takes time
constexpr double kWorthwhile = 0.9;  // of the time of one layer after the other, by the model

/// Whether the layers differ in nothing but the width of their input.
bool alike(std::span<const RecurrentLayer> layers) {
  return std::ranges::all_of(layers, [&](const RecurrentLayer& layer) {
    const RecurrentShape &a = layer.shape, &b = layers[0].shape;
    return layer.directions.size() == 1 && !layer.directions[0].reverse && a.cell == b.cell &&
           a.hidden == b.hidden && a.projection == b.projection && a.dtype == b.dtype;
  });
}

/// Seconds and ranges of the best cut for a mapping that takes `layer` seconds for a whole layer.
struct Cut {
  double seconds;
  int ranges;
};
Cut best_cut(const DeviceConstants& constants, double layer, int layers, std::int64_t steps) {
  Cut best{wavefront_seconds(constants, layer, layers, 1), 1};
  for (int ranges = 2; ranges <= kMostRanges && steps / ranges >= kLeastSteps; ranges *= 2) {
    const double seconds = wavefront_seconds(constants, layer, layers, ranges);
    if (seconds < best.seconds) best = {seconds, ranges};
  }
  return best;
}

/// The plan of a stack: with one range, one layer after the other.
Plan make_plan(const Context& context, const Problem& problem, int layers) {
  const int device = context.device().index;
  const DeviceConstants constants = constants_for(device);
  const std::vector<Candidate> list = candidates(device, constants, problem);
  const Choice alone = pick(list, problem, context.algorithm());
  double in_turn = 0;
  const Candidate* best = nullptr;
  Cut cut{0, 1};
  for (const Candidate& c : list) {
    if (!c.obstacle.empty() || !same_bits(c.algorithm, alone.algorithm)) continue;
    if (c.algorithm == alone.algorithm && (in_turn == 0 || layers * c.seconds < in_turn))
      in_turn = layers * c.seconds;
    const bool wished = context.algorithm().empty() || name_of(c.algorithm) == context.algorithm();
    if (!wished || name_of(c.algorithm) == "step" ||
        c.mapping.blocks * c.mapping.groups * layers > constants.multiprocessors)
      continue;
    const Cut found = best_cut(constants, c.seconds, layers, problem.profile.steps());
    if (!best || found.seconds < cut.seconds) best = &c, cut = found;
  }
  std::string reason = fmt::format("{}, {} layers: ", described(problem), layers);
  if (best && cut.seconds < kWorthwhile * in_turn) {
    reason += fmt::format(
        "at the same time in {} ranges of steps, each {}, {:.0f} us predicted; in turn: {:.0f} us",
        cut.ranges, described(*best), 1e6 * cut.seconds, 1e6 * in_turn);
    Plan plan = plan_of({best->algorithm, best->mapping, std::move(reason)});
    plan.parameters.back() = cut.ranges;
    return plan;
  }
  reason += fmt::format("in turn, {:.0f} us predicted; at the same time: ", 1e6 * in_turn);
  reason += best ? fmt::format("{:.0f} us", 1e6 * cut.seconds)
                 : "no persistent kernel leaves room for the others";
  Plan plan = plan_of({alone.algorithm, alone.mapping, std::move(reason)});
  plan.parameters.back() = 1;
  return plan;
}

/// A layer and the lane that it runs on.
struct Line {
  Context& lane;
  Workspace::Scope scratch;
  RecurrentRun run;

  Line(Context& on, const RecurrentLayer& layer, const PackedLayout& layout,
       const DeviceLayout& tables, const TensorSpan& y)
      : lane(on),
        scratch(on.workspace()),
        run(begin_recurrent(on, layer.shape, layout, tables, layer.directions, y, layer.cells,
                            scratch)) {}
};

/// The context waits for its lanes, also when something was thrown half way: what lanes use may
/// then be used by others again.
class Join {
 public:
  Join(Context& context, std::size_t lanes) : context_(context), lanes_(lanes) {}
  Join(const Join&) = delete;
  Join& operator=(const Join&) = delete;
  ~Join() {
    try {
      if (lanes_ > 0) now();
    } catch (...) {
      // A device that takes no events does no work either; whoever waits next hears of it.
    }
  }
  void now() {
    const std::size_t lanes = std::exchange(lanes_, 0);
    for (std::size_t l = 0; l < lanes; ++l) context_.wait_for(context_.lane(l));
  }

 private:
  Context& context_;
  std::size_t lanes_;
};

}  // namespace

Wavefront choose_wavefront(Context& context, const PackedLayout& layout,
                           std::span<const RecurrentLayer> layers) {
  const auto in_turn = [](const char* why) {
    return Wavefront{{.algorithm = {}, .mapping = {}, .reason = fmt::format("in turn: {}", why)},
                     1};
  };
  if (layers.size() < 2) return in_turn("one layer");
  if (!alike(layers)) return in_turn("not all alike and in one direction");
  if (!layout.known()) return in_turn("the host does not know the lengths");
  if (layout.total() == 0) return in_turn("no steps");
  if (gpu::capturing(context.stream())) return in_turn("a graph is captured");
  const Problem problem = problem_of(context, layers.back().shape, layout, 1);
  if (layout.total() * input_product_row_bytes(problem.shape) > RunOptions{}.input_product_bytes)
    return in_turn("input products are too large");
  PlanKey key = plan_key(problem);
  key.op = "recurrent stack on a GPU";
  key.dims[3] = key.dims[3] << 16 | std::ssize(layers);
  const Plan& plan = context.plans().find(
      key, [&] { return make_plan(context, problem, static_cast<int>(layers.size())); });
  return {choice_of(plan), plan.parameters.back()};
}

void wavefront_forward(Context& context, const Wavefront& wavefront, const PackedLayout& layout,
                       const TensorView& x, std::span<const RecurrentLayer> layers,
                       std::span<const TensorSpan> outputs) {
  if (layout.batch() == 0) return;
  const DeviceLayout& tables = layout.on(context);
  Join join(context, layers.size());
  std::deque<Line> lines;
  for (std::size_t l = 0; l < layers.size(); ++l) {
    Context& lane = context.lane(l);
    lane.wait_for(context);
    lines.emplace_back(lane, layers[l], layout, tables, outputs[l]);
  }
  for (int r = 0; r < wavefront.ranges; ++r) {
    const std::int64_t first = layout.steps() * r / wavefront.ranges;
    const std::int64_t last = layout.steps() * (r + 1) / wavefront.ranges;
    if (first == last) continue;
    for (std::size_t l = 0; l < layers.size(); ++l) {
      Line& line = lines[l];
      if (l > 0) line.lane.wait_for(lines[l - 1].lane);
      run_steps(line.lane, line.run, layout, l == 0 ? x : TensorView(outputs[l - 1]),
                wavefront.choice, first, last);
    }
  }
  for (std::size_t l = 0; l < layers.size(); ++l)
    finish_recurrent(lines[l].lane, lines[l].run, layers[l].directions, layers[l].cells);
  lines.clear();
  join.now();
}

}  // namespace packrnn::kernels::cuda

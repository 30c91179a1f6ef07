#include "packrnn/kernels/cuda/select.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "packrnn/kernels/cuda/calibrate.hpp"
#include "packrnn/kernels/cuda/cluster.hpp"
#include "packrnn/kernels/cuda/persistent.hpp"
#include "packrnn/kernels/cuda/persistent_exact.hpp"
#include "packrnn/runtime/expects.hpp"

namespace packrnn::kernels::cuda {
namespace {

constexpr double kMicro = 1e-6;

/// Those whose results differ are of different families.
enum class Family : std::uint8_t { exact, tensor_step, tensor_persistent };
Family family_of(Algorithm algorithm) noexcept {
  switch (algorithm) {
    case Algorithm::persistent:
    case Algorithm::cluster:
      return Family::tensor_persistent;
    case Algorithm::tensor_step:
      return Family::tensor_step;
    default:
      return Family::exact;
  }
}

/// Microseconds per step of the longest sequence.
double per_step(const Candidate& c, const Problem& p) {
  const std::int64_t steps = std::max<std::int64_t>(1, p.profile.steps());
  return c.seconds / kMicro / static_cast<double>(steps);
}

/// The fastest of one algorithm; if none can run, the one that says why; null if there is none.
const Candidate* best_of(const std::vector<Candidate>& list, Algorithm algorithm) {
  const Candidate* best = nullptr;
  for (const Candidate& c : list) {
    if (c.algorithm != algorithm) continue;
    if (!best || (c.obstacle.empty() && (!best->obstacle.empty() || c.seconds < best->seconds)))
      best = &c;
  }
  return best;
}

bool wished(Algorithm algorithm, std::string_view wish) {
  return wish.empty() || name_of(algorithm) == wish;
}

constexpr Algorithm kAll[] = {Algorithm::cluster, Algorithm::persistent,
                              Algorithm::exact_persistent, Algorithm::tensor_step, Algorithm::step};

bool simulated(const gpu::Properties& properties) {
  return properties.name.starts_with("simulated");
}

/// What measurements belong to.
std::string device_key(const gpu::Properties& p) {
  return fmt::format("{} {} driver {} packrnn {}", p.name, p.uuid, p.driver, PACKRNN_VERSION);
}

PlanFile::Record record_of(const DeviceConstants& d) {
  return {{"copy_bandwidth", d.copy_bandwidth},
          {"grid_barrier", d.grid_barrier},
          {"kernel_gap", d.kernel_gap},
          {"launch", d.launch},
          {"mailbox", d.mailbox},
          {"matrix_rate", d.matrix_rate}};
}

/// A record that lacks something, or has what cannot be, is no calibration.
bool apply(const PlanFile::Record& record, DeviceConstants& constants) {
  DeviceConstants d = constants;
  const auto take = [&record](const char* name, double& value) {
    const auto found = record.find(name);
    // Within three orders of magnitude of the estimate, or somebody else wrote it.
    if (found == record.end() || !(found->second > value * 1e-3 && found->second < value * 1e3))
      return false;
    value = found->second;
    return true;
  };
  if (!take("copy_bandwidth", d.copy_bandwidth) || !take("grid_barrier", d.grid_barrier) ||
      !take("kernel_gap", d.kernel_gap) || !take("launch", d.launch) ||
      !take("mailbox", d.mailbox) || !take("matrix_rate", d.matrix_rate))
    return false;
  d.calibrated = true;
  constants = d;
  return true;
}

std::int64_t bucket(std::int64_t value) {
  return static_cast<std::int64_t>(
      std::bit_ceil(static_cast<std::uint64_t>(std::max<std::int64_t>(1, value))));
}

/// The mappings of one algorithm, or why there are none.
struct Fit {
  std::vector<Mapping> mappings;
  std::string obstacle;
};

F32Math math_of(Arithmetic arithmetic) {
  switch (arithmetic) {
    case Arithmetic::tf32:
      return F32Math::tf32;
    case Arithmetic::tf32x3:
      return F32Math::tf32x3;
    default:
      return F32Math::exact;
  }
}

/// What persistent_mappings() or cluster_mappings() say.
Fit tensor_fit(decltype(persistent_mappings)& mappings, int device, const Problem& problem) {
  Fit fit;
  fit.mappings = mappings(device, problem.shape, math_of(problem.arithmetic),
                          std::ssize(problem.profile.lengths), problem.directions, fit.obstacle);
  return fit;
}

Fit exact_fit(int device, const Problem& problem) {
  if (problem.arithmetic == Arithmetic::f64) return {{}, "not in f64"};
  Fit fit;
  fit.mappings = exact_persistent_mappings(
      device, problem.shape, std::ssize(problem.profile.lengths), problem.directions, fit.obstacle);
  return fit;
}

/// Replaces the choice by what tuning found for such a batch, if that can run and gives the same
/// bits.
void use_tuned(int device, const std::vector<Candidate>& list, const Problem& problem,
               Choice& choice) {
  const gpu::Properties& properties = gpu::properties(device);
  const auto record = plan_file(properties).find(tuned_key(properties, problem));
  if (!record) return;
  const auto number = [&record](const char* name) {
    const auto found = record->find(name);
    return found == record->end() ? -1.0 : found->second;
  };
  for (const Candidate& c : list) {
    if (!c.obstacle.empty() || !same_bits(c.algorithm, choice.algorithm)) continue;
    if (number("algorithm") != static_cast<double>(c.algorithm) ||
        number("blocks") != c.mapping.blocks || number("units") != c.mapping.units ||
        number("groups") != c.mapping.groups || number("rows") != c.mapping.rows)
      continue;
    choice.reason = fmt::format("{}: {}, tuned", described(problem), described(c));
    choice.algorithm = c.algorithm;
    choice.mapping = c.mapping;
    return;
  }
}

}  // namespace

std::string_view name_of(Algorithm algorithm) noexcept {
  switch (algorithm) {
    case Algorithm::persistent:
    case Algorithm::exact_persistent:
      return "persistent";
    case Algorithm::cluster:
      return "cluster";
    default:
      return "step";
  }
}

std::string described(const Problem& p) {
  const RecurrentShape& s = p.shape;
  std::string text = fmt::format("{} {} I={} H={}", name_of(s.cell), s.dtype, s.input, s.hidden);
  if (s.projection > 0) text += fmt::format(" P={}", s.projection);
  if (s.dtype == Dtype::f32 && p.arithmetic != Arithmetic::exact)
    text += fmt::format(" by {}", p.arithmetic == Arithmetic::tf32 ? "tf32" : "tf32x3");
  return text + fmt::format(" D={}, about {} row{} of {} steps", p.directions,
                            p.profile.lengths.size(), p.profile.lengths.size() == 1 ? "" : "s",
                            p.profile.steps());
}

std::string described(const Candidate& c) {
  const Mapping& m = c.mapping;
  switch (c.algorithm) {
    case Algorithm::step:
      return "step: one fused kernel per step";
    case Algorithm::tensor_step:
      return "step: a product and a cell kernel per step";
    case Algorithm::cluster:
      return fmt::format("cluster: {} cluster{} of {} blocks of {} units, {} rows at a time",
                         m.groups, m.groups > 1 ? "s" : "", m.blocks, m.units, m.rows);
    default:
      return fmt::format("persistent: {} group{} of {} blocks of {} units, {} rows at a time",
                         m.groups, m.groups > 1 ? "s" : "", m.blocks, m.units, m.rows);
  }
}

Plan plan_of(const Choice& choice) {
  const Mapping& m = choice.mapping;
  return {static_cast<int>(choice.algorithm) * 2 + m.directions_in_turn,
          choice.reason,
          {m.blocks, m.units, m.groups, m.rows, 0}};
}

Choice choice_of(const Plan& plan) {
  Choice choice;
  choice.algorithm = static_cast<Algorithm>(plan.algorithm / 2);
  choice.mapping = {.cluster = choice.algorithm == Algorithm::cluster,
                    .blocks = plan.parameters[0],
                    .units = plan.parameters[1],
                    .groups = plan.parameters[2],
                    .rows = plan.parameters[3],
                    .directions_in_turn = plan.algorithm % 2 == 1,
                    .shared_weights = 0};
  choice.reason = plan.reason;
  return choice;
}

bool same_bits(Algorithm a, Algorithm b) noexcept { return family_of(a) == family_of(b); }

Choice pick(const std::vector<Candidate>& list, const Problem& problem, std::string_view wish) {
  expects(wish.empty() || wish == "step" || wish == "persistent" || wish == "cluster",
          "algorithm is \"{}\", expected persistent, cluster or step", wish);
  const auto runs = [&](Algorithm a) {
    const Candidate* const c = best_of(list, a);
    return c && c->obstacle.empty();
  };
  // Decided without looking at times, which depend on the batch and on measurements.
  const bool persistent = runs(Algorithm::persistent) || runs(Algorithm::cluster);
  const Family family = !tensor_cores(problem.arithmetic) ? Family::exact
                        : persistent                      ? Family::tensor_persistent
                                                          : Family::tensor_step;
  const Candidate* best = nullptr;
  for (const Algorithm a : kAll) {
    const Candidate* const c = best_of(list, a);
    if (!c || !c->obstacle.empty() || !wished(a, wish)) continue;
    if (wish.empty() && family_of(a) != family) continue;
    if (!best || c->seconds < best->seconds) best = c;
  }
  const auto each_other = [&](const auto& say) {
    for (const Algorithm a : kAll)
      if (const Candidate* const c = best_of(list, a); c && (!best || a != best->algorithm))
        say(*c);
  };
  if (!best) {
    std::string why;
    each_other([&](const Candidate& c) {
      if (wished(c.algorithm, wish)) why += (why.empty() ? "" : "; ") + c.obstacle;
    });
    if (why.empty()) why = fmt::format("there is none for {}", name_of(problem.arithmetic));
    throw Unsupported(
        fmt::format("{}: algorithm \"{}\" cannot run: {}", described(problem), wish, why));
  }

  std::string reason = fmt::format("{}: {}, {:.2f} us per step predicted", described(problem),
                                   described(*best), per_step(*best, problem));
  if (!wish.empty()) reason += ", as asked for";
  each_other([&](const Candidate& c) {
    reason += fmt::format("; {}: ", name_of(c.algorithm));
    if (!c.obstacle.empty())
      reason += c.obstacle;
    else
      reason += fmt::format("{:.2f} us", per_step(c, problem));
    if (c.obstacle.empty() && !same_bits(c.algorithm, best->algorithm))
      reason += ", but in other bits";
  });
  return {best->algorithm, best->mapping, std::move(reason)};
}

PlanFile plan_file(const gpu::Properties& properties) {
  return PlanFile(PlanFile::from_environment(simulated(properties)));
}

PlanKey plan_key(const Problem& p) {
  // Similar batches share a plan, to the next power of two.
  const std::int64_t batch = std::max<std::int64_t>(1, std::ssize(p.profile.lengths));
  const std::int64_t kind =
      (static_cast<std::int64_t>(p.shape.cell) * 8 + static_cast<std::int64_t>(p.shape.dtype)) * 8 +
      static_cast<std::int64_t>(p.arithmetic);
  return {"recurrent forward on a GPU",
          {p.shape.input, p.shape.hidden, p.shape.projection, kind * 2 + p.directions - 1,
           bucket(batch), bucket(p.profile.total() / batch)}};
}

std::string tuned_key(const gpu::Properties& properties, const Problem& p) {
  return fmt::format("{} recurrent {}", device_key(properties), fmt::join(plan_key(p).dims, " "));
}

Problem problem_of(const Context& context, const RecurrentShape& shape, const PackedLayout& layout,
                   int directions) {
  return {shape, arithmetic_of(shape.dtype, context.f32_math()),
          layout.known() ? LengthProfile::of(layout)
                         : LengthProfile::equal(layout.batch(), layout.steps()),
          directions};
}

std::string calibration_key(const gpu::Properties& properties) {
  return device_key(properties) + " calibration";
}

std::vector<Candidate> candidates(int device, const DeviceConstants& constants,
                                  const Problem& problem) {
  const RecurrentShape& shape = problem.shape;
  const Arithmetic arithmetic = problem.arithmetic;
  std::vector<Candidate> list;
  const auto add = [&](Algorithm algorithm, const Fit& fit) {
    if (fit.mappings.empty()) list.push_back({algorithm, {}, 0, fit.obstacle});
    for (const Mapping& m : fit.mappings)
      list.push_back(
          {algorithm,
           m,
           persistent_seconds(constants, shape, arithmetic, m, problem.profile, problem.directions),
           {}});
  };
  const double stepwise =
      stepwise_seconds(constants, shape, arithmetic, problem.profile, problem.directions);
  if (tensor_cores(arithmetic)) {
    add(Algorithm::cluster, tensor_fit(cluster_mappings, device, problem));
    add(Algorithm::persistent, tensor_fit(persistent_mappings, device, problem));
    list.push_back({Algorithm::tensor_step, {}, stepwise, {}});
  } else {
    add(Algorithm::exact_persistent, exact_fit(device, problem));
    list.push_back({Algorithm::step, {}, stepwise, {}});
  }
  return list;
}

DeviceConstants constants_for(int device, std::string* note) {
  const gpu::Properties& properties = gpu::properties(device);
  DeviceConstants constants = estimated_constants(properties);
  const PlanFile file = plan_file(properties);
  if (const auto record = file.find(calibration_key(properties))) apply(*record, constants);
  if (note) *note = file.note();
  return constants;
}

DeviceConstants calibrate(Context& context) {
  const int device = context.device().index;
  const gpu::Properties& properties = gpu::properties(device);
  const DeviceConstants constants =
      measure(device, estimated_constants(properties),
              simulated(properties) ? CalibrationEffort::tiny() : CalibrationEffort{});
  PlanFile file = plan_file(properties);
  file.store(calibration_key(properties), record_of(constants));
  return constants;
}

Choice choose(Context& context, const RecurrentShape& shape, const PackedLayout& layout,
              int directions) {
  const Problem problem = problem_of(context, shape, layout, directions);
  const PlanKey key = plan_key(problem);
  const Plan& plan = context.plans().find(key, [&] {
    const int device = context.device().index;
    std::string note;
    const DeviceConstants constants = constants_for(device, &note);
    const std::string& wish = context.algorithm();
    std::vector<Candidate> list = candidates(device, constants, problem);
    Choice choice = pick(list, problem, wish);
    if (wish.empty()) use_tuned(device, list, problem, choice);
    choice.reason += constants.calibrated ? " (calibrated)" : " (not calibrated)";
    if (!note.empty()) choice.reason += "; note: " + note;
    return plan_of(choice);
  });
  return choice_of(plan);
}

}  // namespace packrnn::kernels::cuda

#include "packrnn/kernels/cuda/select_backward.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "packrnn/kernels/cuda/persistent_backward.hpp"

namespace packrnn::kernels::cuda {
namespace {

Choice make_choice(Context& context, const Problem& problem) {
  const int device = context.device().index;
  const RecurrentShape& shape = problem.shape;
  const bool two = shape.projection > 0 || shape.cell == Cell::gru_reset_before;
  Choice choice;
  choice.reason = described(problem) + ": backward ";
  std::string obstacle;
  std::vector<Mapping> mappings;
  if (!tensor_cores(problem.arithmetic))
    obstacle = fmt::format("there is none for {}", name_of(problem.arithmetic));
  else if (context.algorithm() == "step")
    obstacle = "not asked for";
  else
    mappings = persistent_backward_mappings(device, shape, context.f32_math(),
                                            std::ssize(problem.profile.lengths), problem.directions,
                                            obstacle);
  if (mappings.empty()) {
    choice.reason += fmt::format("step: {} per step; persistent: {}",
                                 two ? "two fused kernels" : "one fused kernel", obstacle);
    return choice;
  }
  const DeviceConstants constants = constants_for(device);
  choice.algorithm = Algorithm::persistent;
  choice.mapping = fastest_backward_mapping(constants, shape, context.f32_math(), mappings,
                                            problem.profile, problem.directions);
  choice.reason +=
      fmt::format("{}, {:.2f} us per step predicted",
                  described(Candidate{choice.algorithm, choice.mapping, 0, {}}),
                  1e6 *
                      persistent_seconds(constants, shape, problem.arithmetic, choice.mapping,
                                         problem.profile, problem.directions, Way::back) /
                      static_cast<double>(std::max<std::int64_t>(1, problem.profile.steps())));
  return choice;
}

}  // namespace

Choice choose_backward(Context& context, const RecurrentShape& shape, const PackedLayout& layout,
                       int directions) {
  const Problem problem = problem_of(context, shape, layout, directions);
  PlanKey key = plan_key(problem);
  key.op = "recurrent backward on a GPU";
  return choice_of(
      context.plans().find(key, [&] { return plan_of(make_choice(context, problem)); }));
}

}  // namespace packrnn::kernels::cuda

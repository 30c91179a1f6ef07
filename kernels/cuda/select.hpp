// Which algorithm runs a recurrent layer on a GPU, and how it is laid over the device. Private.
//
// A choice may never be seen in the results. What is chosen by the batch is chosen among algorithms
// that give the same bits (f32 exact: step and persistent; tensor cores: persistent and cluster, in
// any mapping); whether tensor cores work step by step or persistently is decided by shape, math
// and device alone. Only the caller's own wish (ContextOptions::algorithm) may overrule that.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "packrnn/kernels/cuda/cost_model.hpp"
#include "packrnn/kernels/cuda/plan_file.hpp"
#include "packrnn/kernels/recurrent.hpp"
#include "packrnn/runtime/context.hpp"
#include "packrnn/runtime/gpu.hpp"
#include "packrnn/runtime/packed_layout.hpp"

namespace packrnn::kernels::cuda {

enum class Algorithm : std::uint8_t {
  step,              // step.cu: f64, f32 exact
  exact_persistent,  // persistent_exact.cu: f32 exact
  tensor_step,       // tensor_step.cu: tensor cores, a product and a cell per step
  persistent,        // persistent.cu: tensor cores, exchange through L2
  cluster,           // cluster.cu: tensor cores, exchange inside clusters
};
/// As in ContextOptions::algorithm: "step", "persistent" or "cluster".
std::string_view name_of(Algorithm algorithm) noexcept;

/// Whether it makes no difference to the results which of the two runs.
bool same_bits(Algorithm a, Algorithm b) noexcept;

/// A way to run a layer, or why it is none.
struct Candidate {
  Algorithm algorithm = Algorithm::step;
  Mapping mapping;       // of the persistent ones
  double seconds = 0;    // of all steps, predicted
  std::string obstacle;  // empty: it can run
};

/// Everything a choice depends on.
struct Problem {
  RecurrentShape shape;
  Arithmetic arithmetic = Arithmetic::exact;
  LengthProfile profile;
  int directions = 1;
};

/// All algorithms for the arithmetic, with every mapping that fits; those that do not fit once
/// each.
std::vector<Candidate> candidates(int device, const DeviceConstants& constants,
                                  const Problem& problem);

/// What runs, and one line of text that says so and why nothing faster does.
struct Choice {
  Algorithm algorithm = Algorithm::step;
  Mapping mapping;
  std::string reason;
};

/// The rules above. `wish` is empty or a name; throws Unsupported, with the reason, for a wish that
/// cannot be had, InvalidArgument for one that is no algorithm.
Choice pick(const std::vector<Candidate>& candidates, const Problem& problem,
            std::string_view wish = {});

/// What a reason is made of: "LSTM bf16 I=..." and "persistent: 2 groups of ...".
std::string described(const Problem& problem);
std::string described(const Candidate& candidate);

/// A choice as the plan cache keeps it, its last parameter unused, and back.
Plan plan_of(const Choice& choice);
Choice choice_of(const Plan& plan);

/// The choice for such a batch in such a context; remembered in context.plans() for all batches of
/// about this size.
Choice choose(Context& context, const RecurrentShape& shape, const PackedLayout& layout,
              int directions);

/// What a choice for such a batch is remembered by, in the context and in the plan file.
PlanKey plan_key(const Problem& problem);
std::string tuned_key(const gpu::Properties& properties, const Problem& problem);
Problem problem_of(const Context& context, const RecurrentShape& shape, const PackedLayout& layout,
                   int directions);

/// Measures the device (calibrate.hpp) and keeps the result in the plan file, where later choices
/// of this and other processes find it. Waits for the device, some 50 ms.
DeviceConstants calibrate(Context& context);
/// The file of the device's measurements: none, unless asked for, where time is simulated.
PlanFile plan_file(const gpu::Properties& properties);
/// A calibration's name in it: of this device, driver and version of the library.
std::string calibration_key(const gpu::Properties& properties);
/// The constants that choices on this device go by: calibrated ones from the plan file, else
/// estimates. `note`: why the plan file was ignored, or empty.
DeviceConstants constants_for(int device, std::string* note = nullptr);

}  // namespace packrnn::kernels::cuda

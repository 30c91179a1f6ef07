// Our own ways of solving a problem.
#pragma once

#include <map>
#include <memory>
#include <packrnn/kernels/cuda/select.hpp>
#include <packrnn/runtime/context.hpp>
#include <string>
#include <utility>
#include <vector>

#include "bench/device/inputs.hpp"
#include "bench/device/results.hpp"

namespace packrnn::bench {

/// One context for each algorithm and math, kept over all problems.
class Contexts {
 public:
  explicit Contexts(Device device) : device_(device) {}
  /// `algorithm` as on the command line: "auto" or a name.
  Context& get(F32Math math, const std::string& algorithm);

 private:
  Device device_;
  std::map<std::pair<F32Math, std::string>, std::unique_ptr<Context>> contexts_;
};

/// A run, with what is timed; no `run` where it failed.
struct Entry {
  Run run;
  Candidate candidate = {};
};

struct Ours {
  std::vector<Entry>
      entries;  // packed by each algorithm, padded, packing; the first is the yardstick
  std::vector<float> expected;  // output of the first, packed [total, H]; empty where it failed
};

/// Runs everything once and compares: the padded run to the bit with the packed one, and so all
/// algorithms in f32 exact and f64; with tensor cores, where the step path adds in another order,
/// to rounding. `layer` and `input` have to outlive the result.
Ours run_ours(Contexts& contexts, const Problem& problem,
              const std::vector<std::string>& algorithms, const Recurrent& layer,
              const ProblemInput& input);

/// Where rounding can lead a long sequence of this mode.
double allowed_difference(const Mode& mode);

// ---- what the model and the roofline know of a problem
Ceilings ceilings_of(const kernels::cuda::DeviceConstants& constants, const Mode& mode);
std::map<std::string, double> named(const kernels::cuda::DeviceConstants& constants);
/// Seconds by the model, with the input product as in `bound`, if a persistent kernel is chosen;
/// else 0.
double predict(Context& context, const kernels::cuda::DeviceConstants& constants,
               const Problem& problem, const PackedLayout& layout, const Bound& bound);

}  // namespace packrnn::bench

#include "bench/device/ours.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <packrnn/kernels/cuda/cost_model.hpp>

namespace packrnn::bench {
namespace {

namespace model = kernels::cuda;

kernels::RecurrentShape shape_of(const Problem& problem) {
  using kernels::Cell;
  return {.cell = problem.cell == "lstm"  ? Cell::lstm
                  : problem.cell == "gru" ? Cell::gru
                                          : Cell::rnn_tanh,
          .input = problem.input,
          .hidden = problem.hidden,
          .projection = 0,
          .dtype = problem.mode.dtype};
}

/// Outputs are at most 1 in size, whatever the cell (relu is not among ours).
std::string check_range(const std::vector<float>& values) {
  const auto wrong = std::find_if(values.begin(), values.end(),
                                  [](float value) { return !(std::abs(value) <= 1.0F); });
  if (wrong == values.end()) return "reference";
  return fmt::format("WRONG: value {} is {}", wrong - values.begin(), *wrong);
}

/// Does something that may throw; what it throws becomes the run's failure.
template <class Body>
void attempt(Entry& entry, Context& context, std::function<void()> run, Body&& body) {
  try {
    body();
    entry.candidate = {&context, std::move(run)};
  } catch (const std::exception& error) {
    entry.run.series.failure = error.what();
  }
}

}  // namespace

Context& Contexts::get(F32Math math, const std::string& algorithm) {
  std::unique_ptr<Context>& context = contexts_[{math, algorithm}];
  if (!context)
    context = std::make_unique<Context>(
        device_,
        ContextOptions{.f32_math = math, .algorithm = algorithm == "auto" ? "" : algorithm});
  return *context;
}

double allowed_difference(const Mode& mode) {
  switch (mode.dtype) {
    case Dtype::f64:
      return 0.0;
    case Dtype::bf16:
      return 1e-1;
    case Dtype::f16:
      return 2e-2;
    default:
      return mode.math == F32Math::exact ? 0.0 : mode.math == F32Math::tf32x3 ? 1e-3 : 2e-2;
  }
}

Ours run_ours(Contexts& contexts, const Problem& problem,
              const std::vector<std::string>& algorithms, const Recurrent& layer,
              const ProblemInput& input) {
  Ours ours;
  const PackedLayout& layout = input.packed().layout();
  const std::int64_t width = problem.hidden;
  for (const std::string& algorithm : algorithms) {
    Context& context = contexts.get(problem.mode.math, algorithm);
    Entry& entry = ours.entries.emplace_back(Entry{{"packrnn", "packed " + algorithm}});
    const auto forward = [&context, &layer, &input] { layer.forward(context, input.packed()); };
    attempt(entry, context, forward, [&] {
      const PackedOutput output = layer.forward(context, input.packed());
      std::vector<float> values = host_values(context, output.output.data());
      entry.run.explanation = layer.explain(context, layout);
      if (ours.entries.size() == 1) {
        entry.run.agreement = check_range(values);
        ours.expected = std::move(values);
      } else if (!ours.expected.empty()) {
        entry.run.agreement = compare(layout, width, ours.expected, values, RowOrder::packed)
                                  .text(allowed_difference(problem.mode));
      }
    });
  }

  Context& context = contexts.get(problem.mode.math, algorithms.front());
  Entry& padded = ours.entries.emplace_back(Entry{{"packrnn", "padded " + algorithms.front()}});
  attempt(
      padded, context, [&] { layer.forward(context, input.padded().view()); },
      [&] {
        const DenseOutput output = layer.forward(context, input.padded().view());
        if (ours.expected.empty()) return;
        padded.run.agreement = compare(layout, width, ours.expected,
                                       host_values(context, output.output), RowOrder::seq_major)
                                   .text(0.0);
      });
  // The rest of what a caller with padded batches pays.
  Entry& packing = ours.entries.emplace_back(Entry{{"packrnn", "pack input, pad output"}});
  const auto pack_and_pad = [&context, &input] {
    const PackedSequence packed =
        pack_padded_sequence(context, input.padded(), Lengths(input.packed().lengths()));
    pad_packed_sequence(context, packed);
  };
  attempt(packing, context, pack_and_pad, [&] {
    const std::string wrong = input.check_packing(context);
    packing.run.agreement = wrong.empty() ? "bits" : wrong;
  });
  return ours;
}

Ceilings ceilings_of(const model::DeviceConstants& constants, const Mode& mode) {
  const double cores = 2.0 * constants.multiprocessors * constants.clock;
  double flops = 0.0;
  switch (model::arithmetic_of(mode.dtype, mode.math)) {
    case model::Arithmetic::f64:
      flops = constants.f64_rate * cores;
      break;
    case model::Arithmetic::exact:
      flops = constants.f32_rate * cores;
      break;
    case model::Arithmetic::tf32x3:
      flops = constants.product_flops / 6.0;  // half the rate of 16 bits, three times
      break;
    case model::Arithmetic::tf32:
      flops = constants.product_flops / 2.0;
      break;
    case model::Arithmetic::bits16:
      flops = constants.product_flops;
      break;
  }
  return {constants.copy_bandwidth, flops, constants.mailbox, constants.grid_barrier};
}

std::map<std::string, double> named(const model::DeviceConstants& constants) {
  return {{"clock_hz", constants.clock},
          {"copy_bytes_per_s", constants.copy_bandwidth},
          {"l2_bytes_per_s", constants.l2_bandwidth},
          {"cluster_bytes_per_s", constants.cluster_bandwidth},
          {"product_flops", constants.product_flops},
          {"matrix_rate", constants.matrix_rate},
          {"f32_rate", constants.f32_rate},
          {"f64_rate", constants.f64_rate},
          {"mailbox_s", constants.mailbox},
          {"cluster_exchange_s", constants.cluster_exchange},
          {"grid_barrier_s", constants.grid_barrier},
          {"pointwise_s", constants.pointwise},
          {"launch_s", constants.launch},
          {"kernel_gap_s", constants.kernel_gap},
          {"startup_s", constants.startup}};
}

double predict(Context& context, const model::DeviceConstants& constants, const Problem& problem,
               const PackedLayout& layout, const Bound& bound) {
  const kernels::RecurrentShape shape = shape_of(problem);
  const model::Choice choice = model::choose(context, shape, layout, 1);
  const model::Arithmetic arithmetic = model::arithmetic_of(problem.mode.dtype, problem.mode.math);
  if (choice.algorithm == model::Algorithm::step ||
      choice.algorithm == model::Algorithm::tensor_step)
    return 0.0;
  return bound.input_s + model::persistent_seconds(constants, shape, arithmetic, choice.mapping,
                                                   model::LengthProfile::of(layout), 1);
}

}  // namespace packrnn::bench

#include "bench/device/device_bench.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <exception>
#include <memory>
#include <packrnn/kernels/cuda/calibrate.hpp>
#include <packrnn/runtime/error.hpp>
#include <packrnn/runtime/gpu.hpp>
#include <utility>

#include "bench/commit.hpp"
#include "bench/device/ours.hpp"
#include "bench/device/results.hpp"
#include "bench/interrupt.hpp"
#include "bench/peers/torch.hpp"
#include "bench/report.hpp"

namespace packrnn::bench {
namespace {

using Clock = std::chrono::steady_clock;

void print(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

class DeviceBench {
 public:
  DeviceBench(const Options& options, Device device)
      : options_(options),
        device_(device),
        json_file_(options.json_file.empty() ? PACKRNN_RESULTS_DIR "/device.json"
                                             : options.json_file),
        problems_(device_problems(options, kSimulated)),
        contexts_(device),
        flush_(context()) {}

  int run() {
    catch_interrupt();
    report_.complete = false;
    describe();
    save();  // a wrong name shows before minutes of measuring
    print(device_header(report_));
    run_problems();
    if (!interrupted() && options_.wants_peer("torch")) ask_torch();
    fit();
    report_.complete = !interrupted() && report_.problems.size() == problems_.size();
    save();
    print(fits_table(report_.fits));
    for (const std::string& note : report_.notes) print(note + "\n");
    print(fmt::format("Results: {}\n", json_file_));
    constexpr int kWrong = 1, kInterrupted = 130;
    if (report_.any_wrong()) {
      print("WRONG RESULTS: see the column \"agreement\".\n");
      return kWrong;
    }
    return interrupted() ? kInterrupted : 0;
  }

 private:
  /// Of the first problem: any will do for what is not a layer.
  Context& context() { return contexts_.get(F32Math::exact, "auto"); }

  void describe() {
    const gpu::Properties& gpu = gpu::properties(device_.index);
    report_.device = gpu.name;
    report_.simulated = kSimulated;
    report_.multiprocessors = gpu.multiprocessors;
    report_.compute_capability = 10 * gpu.major + gpu.minor;
    report_.driver = gpu.driver;
    report_.memory_bytes = static_cast<double>(gpu.memory);
    report_.l2_bytes = static_cast<double>(gpu.l2);
    report_.toolkit = PACKRNN_TOOLKIT;
    report_.commit = kCommit;
    report_.date = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
    report_.command = options_.command;
    try {
      namespace model = kernels::cuda;
      constants_ = kSimulated ? model::measure(device_.index, model::constants_for(device_.index),
                                               model::CalibrationEffort::tiny())
                              : model::calibrate(context());
    } catch (const std::exception& error) {
      constants_ = kernels::cuda::constants_for(device_.index);
      report_.notes.push_back(
          fmt::format("Calibration failed, these are estimates: {}", error.what()));
    }
    report_.constants = named(constants_);
    std::string reason = "not asked for";
    if (options_.wants_peer("cudnn")) cudnn_ = open_cudnn(reason);
    report_.peers["cuDNN"] = cudnn_ ? cudnn_->version() : reason;
    report_.peers["PyTorch"] = options_.wants_peer("torch") ? "asked at the end" : "not asked for";
  }

  static std::unique_ptr<Cudnn> open_cudnn(std::string& reason) {
    // A library for tests that computes in host memory knows what it does.
    if (kSimulated && !std::getenv("PACKRNN_CUDNN_LIBRARY")) {
      reason = "not on a simulated device";
      return nullptr;
    }
    return Cudnn::open(reason);
  }

  /// Seconds for ours and cuDNN, and what is left of the budget for PyTorch.
  double budget() const {
    constexpr double kFull = 200.0, kQuick = 40.0;
    const double all = options_.budget_seconds > 0.0 ? options_.budget_seconds
                       : options_.quick              ? kQuick
                                                     : kFull;
    return all;
  }
  double own_share() const { return options_.wants_peer("torch") ? 0.75 : 1.0; }

  void run_problems() {
    const Clock::time_point start = Clock::now();
    for (std::size_t i = 0; i < problems_.size() && !interrupted(); ++i) {
      const double used = std::chrono::duration<double>(Clock::now() - start).count();
      const double left = own_share() * budget() - used;
      if (left <= 0.0) {
        report_.notes.push_back(
            fmt::format("Out of time: {} of {} problems were not run (--budget).",
                        problems_.size() - i, problems_.size()));
        return;
      }
      fmt::print(stderr, "[{}/{}] {}\n", i + 1, problems_.size(), problems_[i].name());
      try {
        report_.problems.push_back(
            run_problem(problems_[i], left / static_cast<double>(problems_.size() - i)));
        print(problem_table(report_.problems.back()));
      } catch (const std::exception& error) {
        ProblemResult failed{problems_[i], {}, {}, 0.0, {}};
        failed.runs.push_back({"packrnn", "all", {{}, {}, error.what()}});
        report_.problems.push_back(std::move(failed));
        report_.notes.push_back(fmt::format("{}: {}", problems_[i].name(), error.what()));
      }
      save();
    }
  }

  ProblemResult run_problem(const Problem& problem, double seconds) {
    const Clock::time_point start = Clock::now();
    ProblemResult result{problem, {}, {}, 0.0, {}};
    result.work = work_of(problem.gates(), problem.input, problem.hidden, problem.lengths,
                          size_of(problem.mode.dtype));
    result.bound = bound_of(result.work, ceilings_of(constants_, problem.mode));

    Context& first = contexts_.get(problem.mode.math, options_.algorithms.front());
    const Recurrent layer = make_layer(problem, options_.seed);
    const ProblemInput input(first, problem, options_.seed);
    Ours ours = run_ours(contexts_, problem, options_.algorithms, layer, input);
    if (ours.entries.front().run.series.failure.empty())
      result.predicted_s =
          predict(first, constants_, problem, input.packed().layout(), result.bound);
    if (cudnn_) run_cudnn(first, problem, layer, input, ours);

    std::vector<Candidate> candidates;
    std::vector<Run*> timed;
    for (Entry& entry : ours.entries)
      if (entry.candidate.context) {
        candidates.push_back(entry.candidate);
        timed.push_back(&entry.run);
      }
    const double used = std::chrono::duration<double>(Clock::now() - start).count();
    Limits limits{.seconds = std::max(0.1, seconds - used), .min_repetitions = 3};
    if (kSimulated) limits = {.seconds = 1e-3, .min_repetitions = 1, .max_repetitions = 1};
    std::vector<Series> series =
        measure_in_turn(candidates, flush_, limits, [](double) { return !interrupted(); });
    for (std::size_t i = 0; i < timed.size(); ++i) timed[i]->series = std::move(series[i]);
    for (Entry& entry : ours.entries) result.runs.push_back(std::move(entry.run));
    return result;
  }

  void run_cudnn(Context& context, const Problem& problem, const Recurrent& layer,
                 const ProblemInput& input, Ours& ours) {
    std::vector<CudnnRun> runs;
    try {
      runs = cudnn_->prepare(context, problem, layer, input.view());
    } catch (const std::exception& error) {
      ours.entries.push_back(Entry{{"cuDNN", "all", {{}, {}, error.what()}}});
      return;
    }
    for (CudnnRun& run : runs) {
      Entry& entry = ours.entries.emplace_back(Entry{{"cuDNN", run.name()}});
      entry.run.series.failure = run.refusal;
      if (!run.run) continue;
      try {
        if (!ours.expected.empty())
          entry.run.agreement = compare(input.packed().layout(), problem.hidden, ours.expected,
                                        host_values(context, run.output()), run.order)
                                    .text(std::max(run.allowed, allowed_difference(problem.mode)));
        entry.candidate = {&context, std::move(run.run)};
      } catch (const std::exception& error) {
        entry.run.series.failure = error.what();
      }
    }
  }

  void ask_torch() {
    std::vector<Problem> problems;
    for (const ProblemResult& result : report_.problems) problems.push_back(result.problem);
    fmt::print(stderr, "PyTorch, on {} problems\n", problems.size());
    const double seconds = kSimulated ? 1.0 : (1.0 - own_share()) * budget();
    const TorchAnswer answer =
        run_torch(problems, {kSimulated ? "cpu" : device_.name(), seconds,
                             4 * static_cast<std::size_t>(report_.l2_bytes)});
    report_.peers["PyTorch"] = answer.absent.empty() ? answer.version : answer.absent;
    std::string agreement;
    for (const TorchCheck& check : answer.checks) {
      constexpr double kAllowed = 1e-4;  // a small f32 layer
      agreement += fmt::format("{}{} {:.0e}", agreement.empty() ? "small f32 layers: " : ", ",
                               check.cell, check.largest);
      if (!(check.largest <= kAllowed)) agreement = "WRONG: " + agreement;
    }
    for (const TorchRow& row : answer.rows)
      report_.problems[row.problem].runs.push_back(
          {"PyTorch", row.what, row.series, row.series.failure.empty() ? agreement : ""});
    for (const ProblemResult& result : report_.problems) {
      const auto torch = std::find_if(result.runs.begin(), result.runs.end(),
                                      [](const Run& run) { return run.who == "PyTorch"; });
      if (torch == result.runs.end()) continue;
      ProblemResult with = result;
      with.runs.erase(with.runs.begin() + 1, with.runs.begin() + (torch - result.runs.begin()));
      print(problem_table(with));
    }
  }

  void fit() {
    std::map<std::string, std::vector<ModelPoint>> points;
    for (const ProblemResult& result : report_.problems)
      if (result.predicted_s > 0.0 && result.runs.front().measured())
        points[result.problem.mode.name()].push_back(
            {result.predicted_s, result.runs.front().series.warm.median(), result.work.steps});
    for (const auto& [mode, some] : points) report_.fits[mode] = refit_model(some);
  }

  void save() { ResultFile(json_file_).finish(device_json(report_)); }

  Options options_;
  Device device_;
  std::string json_file_;
  std::vector<Problem> problems_;
  Contexts contexts_;
  CacheFlush flush_;
  kernels::cuda::DeviceConstants constants_;
  std::unique_ptr<Cudnn> cudnn_;
  DeviceReport report_;
};

}  // namespace

int run_device_bench(const Options& options, Device device) {
  return DeviceBench(options, device).run();
}

}  // namespace packrnn::bench

#include "bench/device/results.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

namespace packrnn::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kMicro = 1e6;

/// Three significant digits or more: 1.23, 12.3, 123, 1234.
std::string digits(double value) {
  return fmt::format("{:.{}f}", value, value >= 100.0 ? 0 : value >= 10.0 ? 1 : 2);
}

/// "123 (120-140, 12)": median, least, most and count, in microseconds.
std::string micros(const Samples& samples) {
  if (samples.seconds.empty()) return "-";
  return fmt::format("{} ({}-{}, {})", digits(samples.median() * kMicro),
                     digits(samples.min() * kMicro), digits(samples.max() * kMicro),
                     samples.seconds.size());
}

constexpr const char* kLine = "  {:<8} {:<46} {:>26} {:>26} {:>8} {:>9} {:>8} {:>7}  {}\n";

Json json_of(const Samples& samples) {
  if (samples.seconds.empty()) return nullptr;
  return {{"median_s", samples.median()},
          {"min_s", samples.min()},
          {"max_s", samples.max()},
          {"count", samples.seconds.size()},
          {"seconds", samples.seconds}};
}

Json json_of(const Run& run, const ProblemResult& result) {
  Json json = {{"who", run.who},
               {"what", run.what},
               {"failure", run.series.failure},
               {"agreement", run.agreement},
               {"explanation", run.explanation},
               {"cold", json_of(run.series.cold)},
               {"warm", json_of(run.series.warm)}};
  if (!run.measured()) return json;
  const double seconds = run.series.warm.median();
  json["tokens_per_s"] = rate(result.work.tokens, seconds);
  json["us_per_step"] = seconds * kMicro / result.work.steps;
  json["roofline_fraction"] = rate(result.bound.seconds(), seconds);
  const Run& ours = result.runs.front();
  if (ours.measured()) json["times_ours"] = rate(seconds, ours.series.warm.median());
  return json;
}

Json json_of(const ProblemResult& result) {
  const Problem& problem = result.problem;
  Json json = {{"name", problem.name()},
               {"cell", problem.cell},
               {"mix", problem.mix},
               {"input", problem.input},
               {"hidden", problem.hidden},
               {"batch", problem.batch()},
               {"steps", problem.steps()},
               {"tokens", problem.tokens()},
               {"equal_lengths", problem.equal_lengths()},
               {"dtype", name_of(problem.mode.dtype)},
               {"math", name_of(problem.mode.math)},
               {"mode", problem.mode.name()},
               {"bound_s", result.bound.seconds()},
               {"bound_input_s", result.bound.input_s},
               {"bound_recurrent_s", result.bound.recurrent_s},
               {"limited_by", result.bound.limited_by},
               {"predicted_s", result.predicted_s},
               {"runs", Json::array()}};
  for (const Run& run : result.runs) json["runs"].push_back(json_of(run, result));
  return json;
}

Json json_of(const ModelFit& fit) {
  return {{"points", fit.points},
          {"per_call_s", fit.per_call_s},
          {"per_step_s", fit.per_step_s},
          {"median_error_before", fit.median_before},
          {"max_error_before", fit.max_before},
          {"median_error_after", fit.median_after},
          {"max_error_after", fit.max_after}};
}

}  // namespace

bool DeviceReport::any_wrong() const {
  return std::any_of(problems.begin(), problems.end(), [](const ProblemResult& result) {
    return std::any_of(result.runs.begin(), result.runs.end(),
                       [](const Run& run) { return run.wrong(); });
  });
}

double rate(double amount, double seconds) { return seconds > 0.0 ? amount / seconds : 0.0; }

std::string device_header(const DeviceReport& report) {
  std::string text = fmt::format(
      "packrnn on a GPU\n"
      "  device   {}{}, {} multiprocessors, compute capability {}.{}\n"
      "  driver   {}.{}, toolkit {}\n"
      "  commit   {}\n"
      "  date     {}\n"
      "  command  {}\n",
      report.device, report.simulated ? " (SIMULATED: every time here is meaningless)" : "",
      report.multiprocessors, report.compute_capability / 10, report.compute_capability % 10,
      report.driver / 1000, report.driver % 1000 / 10, report.toolkit, report.commit, report.date,
      report.command);
  for (const auto& [peer, state] : report.peers) text += fmt::format("  {:<8} {}\n", peer, state);
  for (const auto& [name, value] : report.constants)
    text += fmt::format("  {:<18} {:.4g}\n", name, value);
  return text + "\n";
}

std::string problem_table(const ProblemResult& result) {
  const Problem& problem = result.problem;
  std::string text = fmt::format("{}: I {}, T {}, {} tokens; roofline {} us ({})\n", problem.name(),
                                 problem.input, problem.steps(), problem.tokens(),
                                 digits(result.bound.seconds() * kMicro), result.bound.limited_by);
  text += fmt::format(kLine, "", "", "warm us (min-max, count)", "cold us (min-max, count)",
                      "us/step", "k tok/s", "roofline", "x ours", "agreement");
  for (const Run& run : result.runs) {
    if (!run.measured()) {
      text += fmt::format("  {:<8} {:<46} {}\n", run.who, run.what,
                          run.series.failure.empty() ? "not measured" : run.series.failure);
      continue;
    }
    const double seconds = run.series.warm.median();
    const Run& ours = result.runs.front();
    text += fmt::format(kLine, run.who, run.what, micros(run.series.warm), micros(run.series.cold),
                        digits(seconds * kMicro / result.work.steps),
                        digits(rate(result.work.tokens, seconds) / 1e3),
                        fmt::format("{:.0f}%", 100.0 * rate(result.bound.seconds(), seconds)),
                        ours.measured() ? digits(rate(seconds, ours.series.warm.median())) : "-",
                        run.series.failure.empty()
                            ? run.agreement
                            : fmt::format("{}; ended: {}", run.agreement, run.series.failure));
  }
  return text + "\n";
}

std::string fits_table(const std::map<std::string, ModelFit>& fits) {
  std::string text = "Latency model, fitted to the persistent runs of packed batches\n";
  constexpr const char* kFit = "  {:<12} {:>6} {:>14} {:>14} {:>16} {:>16}\n";
  text += fmt::format(kFit, "mode", "points", "+ us per call", "+ us per step", "error before",
                      "error after");
  for (const auto& [mode, fit] : fits)
    text += fmt::format(
        kFit, mode, fit.points, fmt::format("{:.2f}", fit.per_call_s * kMicro),
        fmt::format("{:.4f}", fit.per_step_s * kMicro),
        fmt::format("{:.0f}% (max {:.0f}%)", 100.0 * fit.median_before, 100.0 * fit.max_before),
        fmt::format("{:.0f}% (max {:.0f}%)", 100.0 * fit.median_after, 100.0 * fit.max_after));
  return text + "\n";
}

std::string device_json(const DeviceReport& report) {
  Json json = {{"benchmark", "device"},
               {"complete", report.complete},
               {"simulated", report.simulated},
               {"device", report.device},
               {"multiprocessors", report.multiprocessors},
               {"compute_capability", report.compute_capability},
               {"memory_bytes", report.memory_bytes},
               {"l2_bytes", report.l2_bytes},
               {"driver", report.driver},
               {"toolkit", report.toolkit},
               {"commit", report.commit},
               {"date", report.date},
               {"command", report.command},
               {"constants", report.constants},
               {"peers", report.peers},
               {"notes", report.notes},
               {"model", Json::object()},
               {"problems", Json::array()}};
  for (const auto& [mode, fit] : report.fits) json["model"][mode] = json_of(fit);
  for (const ProblemResult& result : report.problems) json["problems"].push_back(json_of(result));
  // What a driver or a peer says need not be UTF-8.
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace packrnn::bench

#include "bench/race/results.hpp"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "bench/measure.hpp"

namespace packrnn::bench {
namespace {

double geometric_mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += std::log(value);
  return values.empty() ? NAN : std::exp(sum / static_cast<double>(values.size()));
}

const Contestant* find(const std::vector<Contestant>& contestants, const std::string& name) {
  for (const Contestant& c : contestants)
    if (c.name() == name) return &c;
  return nullptr;
}

std::string mebibytes(const Contestant* c) {
  return c && c->memory > 0 ? fmt::format("{:.1f}", static_cast<double>(c->memory) / 0x1p20) : "-";
}

}  // namespace

double median_of(const Contestant& contestant, int threads) {
  std::vector<double> all;
  for (const Seconds& sample : contestant.samples)
    all.push_back(threads == 1 ? sample.cpu : sample.wall);
  return median(std::move(all));
}

const Contestant* best_peer(const std::vector<Contestant>& contestants, int threads) {
  const Contestant* best = nullptr;
  for (const Contestant& c : contestants)
    if (!c.ours() && !c.samples.empty() &&
        (!best || median_of(c, threads) < median_of(*best, threads)))
      best = &c;
  return best;
}

std::string race_head(bool training) {
  return fmt::format("{:<4}{:<6}{:>8}  {:>10} {:>10}  {:<22}{:>10}  {:>6} {:>5} {:>7}  {:>7} {:>6}",
                     "", "cell", "padding", "packed", "padded", "best other", "", "ratio", "goal",
                     training ? "" : "bf16 w.", "padding", "bound") +
         (training ? fmt::format("  {:>7} {:>7}", "MiB", "torch") : "") + "\n";
}

std::string race_row(const Result& result, int threads) {
  const auto tokens = static_cast<double>(result.workload.tokens());
  const auto rate = [&](const Contestant& c) { return tokens / median_of(c, threads) / 1e3; };
  const Contestant &packed = result.contestants[0], &padded = result.contestants[1];
  const Contestant* const third = result.contestants.size() > 2 && result.contestants[2].ours()
                                      ? &result.contestants[2]
                                      : nullptr;
  const Contestant* best = best_peer(result.contestants, threads);
  const auto ratio = [&](const Contestant& c) {
    return best ? fmt::format("{:.2f}", rate(c) / rate(*best)) : "-";
  };
  const double goal = result.workload.goal(threads, result.training);
  std::string row = fmt::format(
      "{:<4}{:<6}{:>7.0f}%  {:>10.1f} {:>10.1f}  {:<22}{:>10}  {:>6} {:>5} {:>7}  {:>7.2f} "
      "{:>5.0f}%",
      result.workload.name, result.cell, 100.0 * result.workload.padding(), rate(packed),
      rate(padded), best ? best->name() : "none", best ? fmt::format("{:.1f}", rate(*best)) : "-",
      ratio(packed), threads <= 2 ? fmt::format("{:.2f}", goal) : "-",
      result.training ? ""
      : third         ? ratio(*third)
                      : "-",
      rate(packed) / rate(padded), 100.0 * result.bound / median_of(packed, threads));
  if (result.training)
    row += fmt::format("  {:>7} {:>7}", mebibytes(&packed),
                       mebibytes(find(result.contestants, "torch packed")));
  return row + "\n";
}

std::string race_foot(const std::vector<Result>& results, int threads, bool training) {
  std::string text;
  for (const char* cell : {"lstm", "gru"}) {
    std::vector<double> ratios, parts;
    for (const Result& result : results) {
      const Contestant* best = best_peer(result.contestants, threads);
      if (result.cell != cell || !best) continue;
      const double packed = median_of(result.contestants[0], threads);
      ratios.push_back(median_of(*best, threads) / packed);
      parts.push_back(result.bound / packed);
    }
    if (!ratios.empty())
      text +=
          fmt::format("{}: {:.2f} times the best other, {:.0f}% of the bound (geometric means)\n",
                      cell, geometric_mean(ratios), 100.0 * geometric_mean(parts));
  }
  return text +
         "Thousands of tokens per second, medians; ratio: packed to the best other engine; " +
         (training ? "" : "bf16 w.: the same\nwith our weights stored as bf16; ") +
         "padding: packed to padded, both ours; bound: of what\nthe machine's arithmetic and "
         "bandwidth allow" +
         (training ? "; MiB: what a packed step adds at its peak" : "") +
         " (docs/benchmarks.md).\n";
}

nlohmann::json json_of(const Contestant& c) {
  nlohmann::json wall = nlohmann::json::array(), cpu = nlohmann::json::array();
  for (const Seconds& sample : c.samples) wall.push_back(sample.wall), cpu.push_back(sample.cpu);
  return {{"engine", c.engine},      {"variant", c.variant}, {"agreement", c.agreement},
          {"passes", c.passes},      {"wall_s", wall},       {"cpu_s", cpu},
          {"memory_bytes", c.memory}};
}

nlohmann::json json_of(const Result& result) {
  nlohmann::json contestants = nlohmann::json::array();
  for (const Contestant& c : result.contestants) contestants.push_back(json_of(c));
  const RaceWorkload& w = result.workload;
  return {{"workload", w.name},
          {"what", w.what},
          {"cell", result.cell},
          {"input", w.input},
          {"hidden", w.hidden},
          {"layers", w.layers},
          {"lengths", w.lengths},
          {"tokens", w.tokens()},
          {"bidirectional", w.bidirectional},
          {"goals", {w.goal(1, result.training), w.goal(2, result.training)}},
          {"bound_s", result.bound},
          {"contestants", contestants}};
}

nlohmann::json json_of(const MachineLimits& limits) {
  nlohmann::json bandwidths = nlohmann::json::array();
  for (const auto& b : limits.bandwidths) bandwidths.push_back({b.bytes, b.rate});
  return {{"flops", limits.flops},
          {"clock_hz", limits.clock},
          {"lanes", limits.lanes},
          {"bytes_per_s", bandwidths}};
}

}  // namespace packrnn::bench

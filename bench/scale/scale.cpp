// packrnn_scale: what the CPU engine costs as work grows in one way at a time, how long a streaming
// step takes while something else loads the machine, and what a call costs at least. See --help.
//
// The tables go to stdout, progress and complaints to stderr. Status: 0 done, 1 something failed, 2
// wrong command line, 130 interrupted (what was measured until then is in the tables).
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/interrupt.hpp"
#include "bench/machine.hpp"
#include "bench/program.hpp"
#include "bench/progress.hpp"
#include "bench/report.hpp"
#include "bench/scale/latency.hpp"
#include "bench/scale/series.hpp"

namespace packrnn::bench {
namespace {

constexpr int kInterrupted = 130;

struct ScaleOptions {
  int threads = 0;
  bool quick = false;
  std::vector<std::string> only;
  std::string json_file = PACKRNN_RESULTS_DIR "/scale.json";
};

nlohmann::json json_of(const ScaleSeries& series, const std::vector<Measured>& points) {
  nlohmann::json list = nlohmann::json::array();
  for (const Measured& m : points)
    list.push_back({{"value", m.value},
                    {"tokens", m.tokens},
                    {"seconds", m.seconds},
                    {"weights_bytes", m.weight_bytes},
                    {"data_bytes", m.data_bytes},
                    {"scratch_bytes", m.scratch_bytes},
                    {"padded_over_packed", m.padded_over_packed},
                    {"bound", m.bound}});
  return {{"name", series.name}, {"what", series.what}, {"axis", series.axis}, {"points", list}};
}

std::vector<Measured> run_series(const ScaleSeries& series, const ScaleOptions& options) {
  fmt::print("\n{}\n{}", series.what, series_head(series));
  std::vector<Measured> points;
  Progress progress(static_cast<int>(series.points.size()));
  for (const ScalePoint& point : series.points) {
    if (interrupted()) break;
    progress.start(fmt::format("{} = {:g}", series.axis, point.value));
    points.push_back(measure_point(point, options.threads, options.quick ? 0.05 : 0.7));
    progress.clear();
    fmt::print("{}", series_row(points.back()));
    std::fflush(stdout);
  }
  return points;
}

nlohmann::json run_latency(const ScaleOptions& options) {
  nlohmann::json list = nlohmann::json::array();
  fmt::print("\nOne step of a stream (LSTM, I = H = 256, one thread), microseconds\n{}",
             latency_head());
  for (const bool loaded : {false, true})
    for (const std::int64_t batch : {1, 4, 16, 64}) {
      if (interrupted()) break;
      const Latency l = measure_latency(batch, options.quick ? 300 : 20'000, loaded);
      fmt::print("{}", latency_row(l));
      std::fflush(stdout);
      list.push_back({{"batch", l.batch},
                      {"loaded", l.loaded},
                      {"steps", l.steps},
                      {"p50_s", l.p50},
                      {"p99_s", l.p99},
                      {"p999_s", l.p999},
                      {"max_s", l.max}});
    }
  return list;
}

int run(ScaleOptions options) {
  ResultFile file(options.json_file);
  catch_interrupt();
  Machine machine;
  {
    const Context context(Device::cpu(), {.threads = options.threads, .pin_threads = true});
    machine = describe_machine(context, true);
    options.threads = context.threads();
  }
  fmt::print("packrnn {} on {} ({} CPUs), {}, {} thread{}\n", machine.commit, machine.cpu,
             machine.cpus, machine.target, options.threads, options.threads > 1 ? "s" : "");
  const auto wanted = [&](const std::string& name) {
    return options.only.empty() || std::ranges::find(options.only, name) != options.only.end();
  };
  nlohmann::json series_list = nlohmann::json::array();
  for (const ScaleSeries& series : all_series(machine.cpus, options.quick))
    if (wanted(series.name)) series_list.push_back(json_of(series, run_series(series, options)));
  nlohmann::json latency = nlohmann::json::array(), overhead = nullptr;
  if (wanted("latency")) latency = run_latency(options);
  if (wanted("overhead") && !interrupted()) {
    const double seconds = call_overhead(options.quick ? 1000 : 200'000);
    fmt::print("\nA call of one step of one sequence (LSTM, I = H = 64, one thread): {:.2f} us\n",
               1e6 * seconds);
    overhead = seconds;
  }
  const bool complete = !interrupted();
  if (!complete) fmt::print("Interrupted: the tables are not complete.\n");
  file.finish(nlohmann::json{{"commit", machine.commit},
                             {"date", machine.date},
                             {"cpu", machine.cpu},
                             {"cpus", machine.cpus},
                             {"target", machine.target},
                             {"threads", options.threads},
                             {"complete", complete},
                             {"series", series_list},
                             {"latency", latency},
                             {"call_s", overhead}}
                  .dump(1) +
              "\n");
  fmt::print("\nResults: {}\n", options.json_file);
  return complete ? 0 : kInterrupted;
}

/// Negative: go on.
int parse(int argc, char** argv, ScaleOptions& options) {
  CLI::App app("What the CPU engine costs as work grows, one way at a time.", "packrnn_scale");
  std::vector<std::string> names;
  for (const ScaleSeries& series : all_series(1, true)) names.push_back(series.name);
  names.insert(names.end(), {"latency", "overhead"});
  app.add_option("--threads", options.threads, "Threads (default: all CPUs of this process)")
      ->check(CLI::Range(1, 4096));
  app.add_flag("--quick", options.quick, "Small sizes and few repetitions");
  app.add_option("--only", options.only, "Some of the tables, with commas (default: all)")
      ->check(CLI::IsMember(names))
      ->type_name("NAME")
      ->delimiter(',');
  app.add_option("--json", options.json_file,
                 "Where results go (default: results/scale.json in the build folder)")
      ->type_name("FILE");
  return parse_command_line(app, argc, argv);
}

}  // namespace
}  // namespace packrnn::bench

int main(int argc, char** argv) {
  using namespace packrnn::bench;
  return run_program("packrnn_scale", [&] {
    ScaleOptions options;
    const int status = parse(argc, argv, options);
    return status >= 0 ? status : run(options);
  });
}

// packrnn_race: the CPU engine against PyTorch, oneDNN and ONNX Runtime on nine batches. Every
// round runs each engine once, so that what else happens on the machine meets all of them. See
// --help.
//
// The table goes to stdout, progress and complaints to stderr. Status: 0 done, 1 something failed
// (wrong results above all), 2 wrong command line, 130 interrupted (the table is then partial).
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <packrnn/runtime/error.hpp>
#include <string>
#include <vector>

#include "bench/bound_caller.hpp"
#include "bench/interrupt.hpp"
#include "bench/machine.hpp"
#include "bench/program.hpp"
#include "bench/progress.hpp"
#include "bench/race/batch.hpp"
#include "bench/race/results.hpp"
#include "bench/race/rounds.hpp"
#include "bench/race/training.hpp"
#include "bench/report.hpp"
#include "bench/temporary_folder.hpp"

namespace packrnn::bench {
namespace {

constexpr int kInterrupted = 130;

struct RaceOptions {
  int threads = 1;
  int rounds = 7;
  bool training = false;
  std::vector<std::string> workloads, cells{"lstm", "gru"}, peers{"torch", "onednn", "onnxruntime"};
  std::string json_file;  // empty: in the build folder
};

std::unique_ptr<RaceBatch> make_batch(Context& context, const RaceWorkload& workload,
                                      const std::string& cell, bool training) {
  if (training) return std::make_unique<TrainingBatch>(context, workload, cell);
  return std::make_unique<ForwardBatch>(context, workload, cell);
}

int run(const RaceOptions& options) {
  ResultFile file(options.json_file);
  catch_interrupt();
  std::optional<BoundCaller> bound;
  if (options.threads == 1) bound.emplace();  // the others too: all on the same CPU
  std::vector<NamedPeer> peers = start_peers(options.peers, options.threads);
  Context context(Device::cpu(), {.threads = options.threads, .pin_threads = true});
  if (options.threads > 1) bound.emplace();
  const Machine machine = describe_machine(context, true);
  fmt::print("packrnn {} on {} ({} CPUs), {}, {}{} thread{}, {} rounds\n", machine.commit,
             machine.cpu, machine.cpus, machine.target, options.training ? "training, " : "",
             options.threads, options.threads > 1 ? "s" : "", options.rounds);
  nlohmann::json engines = nlohmann::json::object();
  for (const NamedPeer& named : peers) {
    const Peer& peer = *named.peer;
    fmt::print("  {}: {}\n", named.name,
               peer.absent().empty() ? peer.engine() : "absent, " + peer.absent());
    engines[named.name] = peer.absent().empty() ? peer.engine() : "absent: " + peer.absent();
  }
  const MachineLimits limits = measure_limits(context.pool());
  fmt::print(
      "  {:.0f} GFLOP/s, reads {:.0f} GB/s from {} KiB per thread, {:.0f} GB/s from {} MiB\n\n",
      limits.flops / 1e9, limits.bandwidths.front().rate / 1e9,
      limits.bandwidths.front().bytes >> 10, limits.bandwidths.back().rate / 1e9,
      limits.bandwidths.back().bytes >> 20);
  fmt::print("{}", race_head(options.training));
  std::fflush(stdout);

  std::vector<RaceWorkload> workloads = race_workloads();
  if (!options.workloads.empty())
    std::erase_if(workloads, [&](const RaceWorkload& w) {
      return std::ranges::find(options.workloads, w.name) == options.workloads.end();
    });
  const TemporaryFolder folder("packrnn-race");
  Progress progress(static_cast<int>(workloads.size() * options.cells.size()));
  std::vector<Result> results;
  for (const std::string& cell : options.cells)
    for (const RaceWorkload& workload : workloads) {
      if (interrupted()) break;
      progress.start(workload.name + " " + cell);
      const auto batch = make_batch(context, workload, cell, options.training);
      Result result{workload, cell, batch->ours(),
                    least_seconds(limits, workload, cell, options.training), options.training};
      add_peers(peers, *batch, workload, cell, folder.path(), result.contestants);
      run_rounds(result.contestants, {.rounds = options.rounds}, [&](double part) {
        progress.update(part);
        return !interrupted();
      });
      progress.clear();
      if (result.contestants[0].samples.empty()) break;
      fmt::print("{}", race_row(result, options.threads));
      std::fflush(stdout);
      for (Contestant& c : result.contestants) c.run = nullptr;  // the batch goes
      results.push_back(std::move(result));
    }

  fmt::print("\n{}", race_foot(results, options.threads, options.training));
  const bool complete = !interrupted();
  if (!complete) fmt::print("Interrupted: the table is not complete.\n");
  nlohmann::json rows = nlohmann::json::array();
  for (const Result& result : results) rows.push_back(json_of(result));
  file.finish(nlohmann::json{{"commit", machine.commit},
                             {"date", machine.date},
                             {"cpu", machine.cpu},
                             {"cpus", machine.cpus},
                             {"target", machine.target},
                             {"threads", options.threads},
                             {"rounds", options.rounds},
                             {"training", options.training},
                             {"engines", engines},
                             {"limits", json_of(limits)},
                             {"complete", complete},
                             {"results", rows}}
                  .dump(1) +
              "\n");
  fmt::print("Results: {}\n", options.json_file);
  return complete ? 0 : kInterrupted;
}

/// Negative: go on.
int parse(int argc, char** argv, RaceOptions& options) {
  CLI::App app(
      "The CPU engine against other engines on nine batches (docs/benchmarks.md), interleaved.",
      "packrnn_race");
  std::vector<std::string> names;
  for (const RaceWorkload& w : race_workloads()) names.push_back(w.name);
  const auto add_list = [&](const char* name, std::vector<std::string>& list, const char* what,
                            const std::vector<std::string>& known) {
    app.add_option(name, list, what)
        ->check(CLI::IsMember(known))
        ->type_name("NAME")
        ->delimiter(',');
  };
  app.add_option("--threads", options.threads, "Of every engine")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  app.add_flag("--train", options.training,
               "Steps of training: forward and backward (ONNX Runtime has none)");
  app.add_option("--rounds", options.rounds, "Runs of each engine on each batch")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  add_list("--workload", options.workloads, "W1 to W9, with commas (default: all)", names);
  add_list("--cell", options.cells, "lstm, gru (default: both)", {"lstm", "gru"});
  add_list("--peers", options.peers, "torch, onednn, onnxruntime or none (default: all)",
           {"torch", "onednn", "onnxruntime", "none"});
  app.add_option("--json", options.json_file,
                 "Where results go (default: results/race.json or race_training.json in the "
                 "build folder)")
      ->type_name("FILE");
  const int status = parse_command_line(app, argc, argv);
  if (options.training) std::erase(options.peers, "onnxruntime");
  if (options.json_file.empty())
    options.json_file =
        PACKRNN_RESULTS_DIR + std::string(options.training ? "/race_training.json" : "/race.json");
  return status;
}

}  // namespace
}  // namespace packrnn::bench

int main(int argc, char** argv) {
  using namespace packrnn::bench;
  return run_program("packrnn_race", [&] {
    RaceOptions options;
    const int status = parse(argc, argv, options);
    return status >= 0 ? status : run(options);
  });
}

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
#include <packrnn/runtime/error.hpp>
#include <string>
#include <vector>

#include "bench/interrupt.hpp"
#include "bench/machine.hpp"
#include "bench/progress.hpp"
#include "bench/race/batch.hpp"
#include "bench/race/peer.hpp"
#include "bench/race/results.hpp"
#include "bench/report.hpp"
#include "bench/temporary_folder.hpp"

namespace packrnn::bench {
namespace {

constexpr int kFailed = 1, kUsage = 2, kInterrupted = 130;
constexpr double kRunSeconds = 0.04;  // of one run, at least: short passes are repeated

struct RaceOptions {
  int threads = 1;
  int rounds = 7;
  std::vector<std::string> workloads, cells{"lstm", "gru"}, peers{"torch", "onednn", "onnxruntime"};
  std::string json_file = PACKRNN_RESULTS_DIR "/race.json";
};

struct NamedPeer {
  std::string name;
  std::unique_ptr<Peer> peer;
};

/// The first Python that has the engine.
std::unique_ptr<Peer> python_peer(const char* script, int threads) {
  const std::string file = std::string(PACKRNN_SOURCE_DIR "/bench/peers/") + script;
  const char* chosen = std::getenv("PACKRNN_PYTHON");
  std::unique_ptr<Peer> peer;
  for (const char* python : {chosen ? chosen : "python3", "/usr/bin/python3"}) {
    peer = std::make_unique<Peer>(std::vector<std::string>{python, "-B", file}, threads);
    if (peer->absent().empty()) break;
  }
  return peer;
}

std::vector<NamedPeer> start_peers(const RaceOptions& options) {
  std::vector<NamedPeer> peers;
  for (const std::string& name : options.peers) {
    NamedPeer peer{name, nullptr};
    if (name == "torch") peer.peer = python_peer("torch_cpu.py", options.threads);
    if (name == "onnxruntime") peer.peer = python_peer("onnxruntime_cpu.py", options.threads);
    if (name == "onednn")
      peer.peer =
          std::make_unique<Peer>(std::vector<std::string>{PACKRNN_ONEDNN_PEER}, options.threads);
    if (peer.peer) peers.push_back(std::move(peer));
  }
  return peers;
}

/// Adds what the peers offer for this batch, each result compared with ours. Padded layers that run
/// backwards begin in the padding: their results are others, and they count for time only.
void add_peers(std::vector<NamedPeer>& peers, const RaceBatch& batch, const RaceWorkload& workload,
               const std::string& cell, const std::filesystem::path& folder,
               std::vector<Contestant>& contestants) {
  const std::string file = folder / "batch.safetensors", output = folder / "output";
  batch.save(file);
  for (NamedPeer& named : peers) {
    Peer& peer = *named.peer;
    if (!peer.absent().empty()) continue;
    try {
      for (const std::string& variant : peer.load(file, cell)) {
        std::string agreement = "not comparable";
        if (!workload.bidirectional || variant != "padded") {
          peer.output(variant, output);
          agreement = batch.agreement(output);
          if (agreement.starts_with("WRONG"))
            throw FileError(fmt::format("{} {}: {}", named.name, variant, agreement));
        }
        contestants.push_back({named.name, variant,
                               [&peer, variant](int passes) { return peer.run(variant, passes); },
                               agreement});
      }
    } catch (const FileError& error) {
      fmt::print(stderr, "{} {} {}: {}\n", workload.name, cell, named.name, error.what());
    }
  }
}

/// One pass of each to see how long it takes, then the rounds; each begins with another contestant.
void run_rounds(std::vector<Contestant>& contestants, const RaceOptions& options,
                Progress& progress) {
  for (Contestant& c : contestants)
    c.passes = std::clamp(static_cast<int>(kRunSeconds / std::max(1e-6, c.run(1).wall)), 1, 1000);
  const std::size_t count = contestants.size();
  for (int round = 0; round < options.rounds && !interrupted(); ++round) {
    for (std::size_t i = 0; i < count; ++i) {
      Contestant& c = contestants[(i + static_cast<std::size_t>(round)) % count];
      const Seconds sum = c.run(c.passes);
      c.samples.push_back({sum.wall / c.passes, sum.cpu / c.passes});
    }
    progress.update(static_cast<double>(round + 1) / options.rounds);
  }
}

int run(const RaceOptions& options) {
  ResultFile file(options.json_file);
  catch_interrupt();
  if (options.threads == 1) pin_caller();  // the others too: all on the same CPU
  std::vector<NamedPeer> peers = start_peers(options);
  Context context(Device::cpu(), {.threads = options.threads, .pin_threads = true});
  if (options.threads > 1) pin_caller();
  const Machine machine = describe_machine(context, true);
  fmt::print("packrnn {} on {} ({} CPUs), {}, {} thread{}, {} rounds\n", machine.commit,
             machine.cpu, machine.cpus, machine.target, options.threads,
             options.threads > 1 ? "s" : "", options.rounds);
  nlohmann::json engines = nlohmann::json::object();
  for (const NamedPeer& named : peers) {
    const Peer& peer = *named.peer;
    fmt::print("  {}: {}\n", named.name,
               peer.absent().empty() ? peer.engine() : "absent, " + peer.absent());
    engines[named.name] = peer.absent().empty() ? peer.engine() : "absent: " + peer.absent();
  }
  const MachineLimits limits = measure_limits(options.threads);
  fmt::print(
      "  {:.0f} GFLOP/s, reads {:.0f} GB/s from {} KiB per thread, {:.0f} GB/s from {} MiB\n\n",
      limits.flops / 1e9, limits.bandwidths.front().rate / 1e9,
      limits.bandwidths.front().bytes >> 10, limits.bandwidths.back().rate / 1e9,
      limits.bandwidths.back().bytes >> 20);
  fmt::print("{}", race_head());
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
      RaceBatch batch(context, workload, cell);
      Result result{workload, cell, batch.ours(), least_seconds(limits, workload, cell)};
      add_peers(peers, batch, workload, cell, folder.path(), result.contestants);
      run_rounds(result.contestants, options, progress);
      progress.clear();
      if (result.contestants[0].samples.empty()) break;
      fmt::print("{}", race_row(result, options.threads));
      std::fflush(stdout);
      for (Contestant& c : result.contestants) c.run = nullptr;  // the batch goes
      results.push_back(std::move(result));
    }

  fmt::print("\n{}", race_foot(results, options.threads));
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
  app.add_option("--rounds", options.rounds, "Runs of each engine on each batch")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  add_list("--workload", options.workloads, "W1 to W9, with commas (default: all)", names);
  add_list("--cell", options.cells, "lstm, gru (default: both)", {"lstm", "gru"});
  add_list("--peers", options.peers, "torch, onednn, onnxruntime or none (default: all)",
           {"torch", "onednn", "onnxruntime", "none"});
  app.add_option("--json", options.json_file,
                 "Where results go (default: results/race.json in the build folder)")
      ->type_name("FILE");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsage;
  }
  return -1;
}

}  // namespace
}  // namespace packrnn::bench

int main(int argc, char** argv) {
  using namespace packrnn::bench;
  try {
    RaceOptions options;
    const int status = parse(argc, argv, options);
    return status >= 0 ? status : run(options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "packrnn_race: {}\n", error.what());
  }
  return kFailed;
}

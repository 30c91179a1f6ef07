#include "bench/race/rounds.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <packrnn/runtime/error.hpp>
#include <thread>
#include <utility>

#include "bench/stopwatch.hpp"

namespace packrnn::bench {
namespace {

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

}  // namespace

std::vector<NamedPeer> start_peers(const std::vector<std::string>& names, int threads) {
  std::vector<NamedPeer> peers;
  for (const std::string& name : names) {
    NamedPeer peer{name, nullptr};
    if (name == "torch") peer.peer = python_peer("torch_cpu.py", threads);
    if (name == "onnxruntime") peer.peer = python_peer("onnxruntime_cpu.py", threads);
    if (name == "onednn")
      peer.peer = std::make_unique<Peer>(std::vector<std::string>{PACKRNN_ONEDNN_PEER}, threads);
    if (peer.peer) peers.push_back(std::move(peer));
  }
  return peers;
}

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
                               agreement, batch.trains() ? peer.memory(variant) : 0});
      }
    } catch (const FileError& error) {
      fmt::print(stderr, "{} {} {}: {}\n", workload.name, cell, named.name, error.what());
    }
  }
}

void run_rounds(std::vector<Contestant>& contestants, const RoundLimits& limits,
                const std::function<bool(double part)>& keep_going) {
  const Clock::time_point start = Clock::now();
  const auto run = [](Contestant& c, int passes) {
    // Threads of the one before may spin for a while before they sleep.
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    return c.run(passes);
  };
  for (Contestant& c : contestants)
    c.passes =
        std::clamp(static_cast<int>(limits.run_seconds / std::max(1e-6, run(c, 1).wall)), 1, 1000);
  const std::size_t count = contestants.size();
  for (int round = 0;
       round < limits.rounds && (round == 0 || seconds_since(start) < limits.seconds); ++round) {
    for (std::size_t i = 0; i < count; ++i) {
      Contestant& c = contestants[(i + static_cast<std::size_t>(round)) % count];
      const Seconds sum = run(c, c.passes);
      c.samples.push_back({sum.wall / c.passes, sum.cpu / c.passes});
    }
    if (!keep_going(static_cast<double>(round + 1) / limits.rounds)) return;
  }
}

}  // namespace packrnn::bench

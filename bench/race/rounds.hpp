// Who runs a batch beside us, and the rounds in which all take turns.
#pragma once

#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "bench/race/batch.hpp"
#include "bench/race/peer.hpp"
#include "bench/race/results.hpp"

namespace packrnn::bench {

struct NamedPeer {
  std::string name;
  std::unique_ptr<Peer> peer;
};

/// Of "torch", "onednn", "onnxruntime"; those that cannot run are absent and say why. A process of
/// Python is one of PACKRNN_PYTHON, or else python3 on the path, or else that of the system.
std::vector<NamedPeer> start_peers(const std::vector<std::string>& names, int threads);

/// Adds what the peers offer for this batch, each result compared with ours. Padded layers that run
/// backwards begin in the padding: their results are others, and they count for time only. Says on
/// stderr who refuses or is wrong, and leaves that one out. `folder` is for files.
void add_peers(std::vector<NamedPeer>& peers, const RaceBatch& batch, const RaceWorkload& workload,
               const std::string& cell, const std::filesystem::path& folder,
               std::vector<Contestant>& contestants);

struct RoundLimits {
  int rounds = 7;
  double seconds = std::numeric_limits<double>::infinity();  // no round but the first begins later
  double run_seconds = 0.04;  // of one run, at least: short passes are repeated
};

/// In every round each contestant runs once; each round begins with another, and there is at least
/// one. After each, keep_going() is told which part is done; false ends the rounds.
void run_rounds(std::vector<Contestant>& contestants, const RoundLimits& limits,
                const std::function<bool(double part)>& keep_going);

}  // namespace packrnn::bench

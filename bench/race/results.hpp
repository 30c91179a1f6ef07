// What a race measures, and how it is told: a table for people, row by row, and JSON for programs.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "bench/race/limits.hpp"
#include "bench/race/peer.hpp"
#include "bench/race/workloads.hpp"

namespace packrnn::bench {

/// Our variant whose weights are stored as bf16.
inline constexpr const char* kStored = "packed bf16 weights";

/// One way of running the batch that is loaded.
struct Contestant {
  std::string engine, variant;
  std::function<Seconds(int passes)> run;
  std::string agreement;
  std::int64_t memory = 0;  // bytes that a step of training adds at its peak; 0: not measured
  int passes = 1;
  std::vector<Seconds> samples = {};  // of one pass

  bool ours() const { return engine == "packrnn"; }
  std::string name() const { return engine + " " + variant; }
};

struct Result {
  RaceWorkload workload;
  std::string cell;
  std::vector<Contestant> contestants;  // first ours: see RaceBatch::ours()
  double bound = 0;                     // seconds
  bool training = false;
};

/// Of one pass. On one thread the processor's time, of which neighbours take none; on several they
/// wait for each other, and what counts is the clock.
double median_of(const Contestant& contestant, int threads);
/// The fastest that is not ours; null if there is none.
const Contestant* best_peer(const std::vector<Contestant>& contestants, int threads);

std::string race_head(bool training = false);
std::string race_row(const Result& result, int threads);
/// Geometric means, and what the columns mean.
std::string race_foot(const std::vector<Result>& results, int threads, bool training = false);

nlohmann::json json_of(const Contestant& contestant);
nlohmann::json json_of(const Result& result);
nlohmann::json json_of(const MachineLimits& limits);

}  // namespace packrnn::bench

// What this machine can do at most, measured here, and what follows for a batch: no engine that
// computes in f32 can be faster than the bound.
#pragma once

#include <cstdint>
#include <packrnn/runtime/thread_pool.hpp>
#include <string>
#include <vector>

#include "bench/race/workloads.hpp"

namespace packrnn::bench {

struct MachineLimits {
  int threads = 1;
  double flops = 0;  // fused multiply-adds in registers, all threads together
  double clock = 0;  // Hz, of one thread
  int lanes = 0;     // of f32 in a vector register
  /// Bytes per second that all threads read together, by how much each of them reads over and over,
  /// in the best order there is for it.
  struct Bandwidth {
    std::int64_t bytes = 0;  // of one thread
    double rate = 0;
  };
  std::vector<Bandwidth> bandwidths;  // growing sizes

  /// Of the largest measured size that is not above so many bytes per thread (else the smallest):
  /// they come no faster.
  double bandwidth(double bytes) const;
};

/// In processor time: a machine that is busy with other things measures the same, as far as they do
/// not take its caches and its clock. A second or so on all threads of the pool.
MachineLimits measure_limits(ThreadPool& pool);

/// Seconds that the input product takes at the peak, plus for every step the larger of its live
/// rows at the peak and of reading the recurrent weights, plus the cells: 45 clocks for a vector of
/// LSTM units, 30 for one of GRU units. Training: steps go back too, and the weights' gradients are
/// as much arithmetic again; cells on the way back, which need no exponentials, are not counted.
double least_seconds(const MachineLimits& limits, const RaceWorkload& workload,
                     const std::string& cell, bool training = false);

/// Multiplications and additions; those of a step of training are three times a forward's.
double flops_of(const RaceWorkload& workload, const std::string& cell, bool training = false);

}  // namespace packrnn::bench

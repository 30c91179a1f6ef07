// How long single steps take: of a stream, alone and on a machine that something else loads, and of
// the smallest call there is.
#pragma once

#include <cstdint>
#include <string>

namespace packrnn::bench {

/// Seconds of a step, by how many of all steps are as short.
struct Latency {
  std::int64_t batch = 0, steps = 0;
  bool loaded = false;
  double p50 = 0, p99 = 0, p999 = 0, max = 0;
};

/// Steps of `batch` streams with carried states on one thread, unbound. `loaded`: while as many
/// other threads as there are CPUs add up memory larger than the caches.
Latency measure_latency(std::int64_t batch, std::int64_t steps, bool loaded);
std::string latency_head();
std::string latency_row(const Latency& latency);

/// Mean seconds of one step of one sequence of H = 64 on one thread, called `calls` times.
double call_overhead(std::int64_t calls);

}  // namespace packrnn::bench

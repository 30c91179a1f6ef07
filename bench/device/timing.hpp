// Times several ways of doing the same on a device, in turn: by events, warm and cold.
#pragma once

#include <functional>
#include <packrnn/runtime/context.hpp>
#include <string>
#include <vector>

#include "bench/measure.hpp"

namespace packrnn::bench {

/// Something to run over and over. `run` puts its work on the stream of `context` (what the work
/// makes may be dropped, in stream order) and does not wait.
struct Candidate {
  Context* context = nullptr;
  std::function<void()> run;
};

struct Series {
  Samples cold;         // the caches hold something else
  Samples warm;         // run again at once
  std::string failure;  // what ended the series early; empty: nothing
};

/// Memory larger than the caches of a device, written to empty them.
class CacheFlush {
 public:
  explicit CacheFlush(Context& context);
  void run(Context& context);

 private:
  Tensor memory_;
};

/// Every repetition runs each candidate twice, cold and then warm, and begins with another one, so
/// that whatever drifts on the device meets all of them. Times are between two events on the
/// stream, so they include what the device waits for the host. One that throws is out of the
/// race, with the reason in its series. On the CPU a clock stands in for the events.
std::vector<Series> measure_in_turn(const std::vector<Candidate>& candidates, CacheFlush& flush,
                                    const Limits& limits, const KeepGoing& keep_going);

}  // namespace packrnn::bench

// Times packed and padded runs of the same batches, in turn, within a time budget. Prints nothing.
#pragma once

#include <functional>
#include <packrnn/layers/recurrent.hpp>
#include <vector>

#include "bench/workload.hpp"

namespace packrnn::bench {

/// Not a number for no values.
double median(std::vector<double> values);

/// Seconds of each repetition.
struct Samples {
  std::vector<double> seconds;

  double median() const { return bench::median(seconds); }
  double min() const;
  double max() const;
};

/// One sample is one pass over all batches of a workload. What a pass makes is freed off the clock.
struct Timings {
  Samples packed;    // forward, from packed input to packed output
  Samples padded;    // forward, from padded input to padded output
  Samples packing;   // of the padded input, and padding of the packed output
  Samples bucketed;  // forward, from padded input sorted into batches by length; may be empty

  /// Median over the repetitions of padded / packed: a ratio of neighbours in time, so that a slow
  /// minute of the machine, which meets both, leaves it alone. With packing: of padded / (packed +
  /// packing).
  double speed_up() const;
  double speed_up_with_packing() const;
  /// Of bucketed / packed. Not a number without such samples.
  double speed_up_over_bucketed() const;
};

struct Limits {
  double seconds = 1.0;
  int min_repetitions = 3;  // also when they take longer
  int max_repetitions = 500;
};

/// Asked after each repetition with the part of the budget that is used; false ends the measuring.
using KeepGoing = std::function<bool(double used)>;

/// Packed and padded runs alternate batch by batch, and take turns in going first, so that what
/// else happens on the machine meets both; the bucketed ones follow. Expects a warm engine:
/// verify() first.
Timings measure(Context& context, const Recurrent& layer, const Workload& workload,
                const Limits& limits, const KeepGoing& keep_going);

}  // namespace packrnn::bench

// Layers and batches that differ in one number, and what each of them costs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace packrnn::bench {

/// One LSTM and one batch.
struct ScalePoint {
  double value = 0;  // on the axis
  std::int64_t input = 256, hidden = 256, layers = 1;
  std::vector<std::int64_t> lengths;
  int threads = 0;      // 0: all
  bool padded = false;  // measured beside
};

struct ScaleSeries {
  std::string name, what, axis;
  std::vector<ScalePoint> points;
};

/// Sequences, steps, units, layers, threads and padding. `quick`: a few small points of each.
std::vector<ScaleSeries> all_series(int cpus, bool quick);

struct Measured {
  double value = 0;
  std::int64_t tokens = 0;
  double seconds = 0;              // median of one forward call
  std::int64_t weight_bytes = 0;   // parameters, and their packed form
  std::int64_t data_bytes = 0;     // input and output
  std::int64_t scratch_bytes = 0;  // of the context
  double padded_over_packed = 0;   // 0: not measured
  double bound = 1;                // padded volume / valid tokens

  double rate() const { return static_cast<double>(tokens) / seconds; }
};

/// Calls for about `seconds`, at least three after the first.
Measured measure_point(const ScalePoint& point, int threads, double seconds);

std::string series_head(const ScaleSeries& series);
std::string series_row(const Measured& measured);

}  // namespace packrnn::bench

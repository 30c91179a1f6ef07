// What was measured on a GPU: a table for people, problem by problem, and JSON for programs.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "bench/device/cases.hpp"
#include "bench/device/roofline.hpp"
#include "bench/device/timing.hpp"

namespace packrnn::bench {

/// One way of solving a problem.
struct Run {
  std::string who;               // "packrnn", "cuDNN", "PyTorch"
  std::string what;              // "packed auto", "STANDARD SEQ_MAJOR_PACKED FMA_MATH"
  Series series = {};            // with why there is none, or only the beginning of one
  std::string agreement = {};    // with the first run: Agreement::text(), or how it was compared
  std::string explanation = {};  // of ours: which algorithm ran, and why not a faster one

  bool wrong() const { return agreement.starts_with("WRONG"); }
  bool measured() const { return !series.warm.seconds.empty(); }
};

struct ProblemResult {
  Problem problem;
  Work work;
  Bound bound;
  double predicted_s = 0.0;  // by the model, input product included; 0: it has nothing to say
  std::vector<Run> runs;     // the first is what the others are compared with
};

struct DeviceReport {
  std::string device;  // as the driver names it
  bool simulated = false, complete = true;
  int multiprocessors = 0, compute_capability = 0, driver = 0;
  double memory_bytes = 0.0, l2_bytes = 0.0;
  std::string toolkit, commit, date, command;
  std::map<std::string, double> constants;   // measured on the device; seconds, bytes, flops
  std::map<std::string, std::string> peers;  // version, or why there is none
  std::vector<std::string> notes;            // what else went wrong
  std::vector<ProblemResult> problems;
  std::map<std::string, ModelFit> fits;  // by mode

  bool any_wrong() const;
};

/// Useful values per second; 0 where a simulated clock has not moved.
double rate(double amount, double seconds);

std::string device_header(const DeviceReport& report);
/// The problem and a line for each run: a table in itself.
std::string problem_table(const ProblemResult& result);
std::string fits_table(const std::map<std::string, ModelFit>& fits);
std::string device_json(const DeviceReport& report);

}  // namespace packrnn::bench

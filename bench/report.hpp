// The report: a table for people, row by row, and JSON for programs.
#pragma once

#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "bench/machine.hpp"
#include "bench/measure.hpp"
#include "bench/options.hpp"
#include "bench/race/results.hpp"
#include "bench/workload.hpp"

namespace packrnn::bench {

/// The engines beside us, on one batch of a workload.
struct Beside {
  std::int64_t tokens = 0;
  std::vector<Contestant> contestants;  // the first is ours, packed; without its run
};

struct Row {
  std::string name;
  std::int64_t features = 0;
  Size size;
  Timings timings;
  Beside beside = {};

  double packed_rate() const { return rate(timings.packed.median()); }  // valid tokens / second
  double padded_rate() const { return rate(timings.padded.median()); }
  double rate(double seconds) const { return static_cast<double>(size.tokens) / seconds; }
  double speed_up() const { return timings.speed_up(); }
  double speed_up_with_packing() const { return timings.speed_up_with_packing(); }
  double speed_up_over_bucketed() const { return timings.speed_up_over_bucketed(); }
};

/// Of the other engines: name and version, or why it is absent.
using Engines = std::map<std::string, std::string>;

std::string header_text(const Machine& machine, const Options& options, const Engines& engines);
std::string table_head();
std::string table_row(const Row& row);
/// What the columns mean, and the geometric mean of the rows.
std::string table_foot(const std::vector<Row>& rows, bool bidirectional);

/// Of the rows that were measured beside other engines, one line each; empty when there are none.
std::string beside_table(const std::vector<Row>& rows, int threads);

/// One line per row, with a head: what the tables say.
std::string csv_text(const std::vector<Row>& rows, int threads);

/// Every sample, what was derived from them, and all that the header says. `complete` is false when
/// measuring was cut short.
std::string json_text(const Machine& machine, const Options& options, const Engines& engines,
                      const std::vector<Row>& rows, bool complete);

/// A file that appears under its name only when it is whole; opened at once, so that a wrong name
/// shows before minutes of measuring. Throws FileError. Removes its unfinished self.
class ResultFile {
 public:
  explicit ResultFile(std::string path);
  ~ResultFile();
  ResultFile(const ResultFile&) = delete;
  ResultFile& operator=(const ResultFile&) = delete;

  void finish(const std::string& text);

 private:
  std::string path_, part_;
  std::FILE* file_;
};

}  // namespace packrnn::bench

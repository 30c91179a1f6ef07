// The report: a table for people, row by row, and JSON for programs.
#pragma once

#include <cstdio>
#include <string>
#include <vector>

#include "bench/machine.hpp"
#include "bench/measure.hpp"
#include "bench/options.hpp"
#include "bench/workload.hpp"

namespace packrnn::bench {

struct Row {
  std::string name;
  std::int64_t features = 0;
  Size size;
  Timings timings;

  double packed_rate() const { return rate(timings.packed.median()); }  // valid tokens / second
  double padded_rate() const { return rate(timings.padded.median()); }
  double rate(double seconds) const { return static_cast<double>(size.tokens) / seconds; }
  double speed_up() const { return timings.speed_up(); }
  double speed_up_with_packing() const { return timings.speed_up_with_packing(); }
};

std::string header_text(const Machine& machine, const Options& options);
std::string table_head();
std::string table_row(const Row& row);
/// What the columns mean, and the geometric mean of the rows.
std::string table_foot(const std::vector<Row>& rows, bool bidirectional);

/// Every sample, what was derived from them, and all that the header says. `complete` is false when
/// measuring was cut short.
std::string json_text(const Machine& machine, const Options& options, const std::vector<Row>& rows,
                      bool complete);

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

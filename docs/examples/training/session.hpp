// A training as its user sees it: how far it is, a line and a row of the learning curve at every
// report, and a checkpoint from which it goes on with the same bits.
//
//   Session session(context, options, {.title = "LSTM, 100 units",
//                                      .columns = {"epoch", "train (loss)", "test (accuracy)"},
//                                      .settings = {{"hidden", 100}, {"seed", options.seed}}});
//   TrainingRun run{...};
//   run.integers["epoch"] = 0;
//   session.resume(run);
//   std::int64_t& epoch = run.integers["epoch"];
//   while (epoch < epochs && !session.stopped()) {
//     ...  session.progress(part_of_all_that_is_done);
//     ++epoch;
//     session.report(run, {epoch, loss, accuracy});
//   }
//   if (session.stopped()) return session.say_stopped();
#pragma once

#include <cstdint>
#include <map>
#include <packrnn/layers/checkpoint.hpp>
#include <packrnn/runtime/context.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "bench/progress.hpp"
#include "docs/examples/training/curve.hpp"
#include "docs/examples/training/options.hpp"

namespace packrnn::training {

struct Description {
  std::string title;
  /// See Curve.
  std::vector<std::string> columns;
  std::vector<Level> levels = {};
  /// What a checkpoint must have been made with to be gone on from.
  std::map<std::string, double> settings = {};
  /// Trainings one after another, of several seeds say, share one session, curve and checkpoint.
  int parts = 1;
};

class Session {
 public:
  /// From now on the first Ctrl-C only makes it stopped(). Throws FileError for a checkpoint that
  /// is none, InvalidArgument for one made with other settings.
  Session(const Context& context, const Options& options, Description description);

  /// Begins a part, 0 the first. What the run borrows and its numbers become those of the
  /// checkpoint, if there is one of this part. False if there is one of a later part: this one is
  /// over, and its rows are in the curve.
  bool resume(TrainingRun& run, int part = 0, const std::string& name = "the model");
  /// How much of this part is done, 0 to 1, for the bar.
  void progress(double done);
  /// Adds a row to the curve, writes curve and checkpoint, and, if asked to, says the row.
  void report(const TrainingRun& run, std::vector<double> row, bool say = true);
  /// Prints a line, above the bar.
  void say(std::string_view line);

  /// Whether to end before all is done, right after a report: Ctrl-C or --stop-after.
  bool stopped() const noexcept;
  /// Says how to go on. The program's exit status: 0, or 130 after Ctrl-C.
  int say_stopped();

  const Curve& curve() const noexcept { return curve_; }
  /// CPU time of this process so far, in seconds.
  static double cpu_seconds();

 private:
  void check_settings() const;

  Options options_;
  std::map<std::string, double> settings_;
  Curve curve_;
  bench::Progress progress_;
  std::string note_;
  std::int64_t reports_ = 0;
  std::int64_t part_ = 0, saved_part_ = -1;  // -1: there is no checkpoint
};

}  // namespace packrnn::training

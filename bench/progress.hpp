// How far a program is, on stderr: a bar on a terminal, else a line for each job.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

namespace packrnn::bench {

class Progress {
 public:
  /// `jobs`: how many start() calls will come; `verb`: what is done with each.
  explicit Progress(int jobs, std::string verb = "measuring");
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void start(const std::string& name);
  /// The part of the job that is done, 0 to 1, and what else there is to say. Draws at most ten
  /// times a second.
  void update(double part, std::string_view note = {});
  /// Takes the bar off the screen, so that something else can be printed.
  void clear();

 private:
  void draw(double part, std::string_view note);

  int jobs_;
  std::string verb_;
  int started_ = 0;
  bool terminal_;
  bool drawn_ = false;
  std::string name_;
  std::chrono::steady_clock::time_point last_{};
};

}  // namespace packrnn::bench

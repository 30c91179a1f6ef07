// How far the benchmark is, on stderr: a bar on a terminal, else a line for each mix.
#pragma once

#include <chrono>
#include <string>

namespace packrnn::bench {

class Progress {
 public:
  /// `jobs`: how many start() calls will come.
  explicit Progress(int jobs);
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void start(const std::string& name);
  /// The part of the job that is done, 0 to 1. Draws at most ten times a second.
  void update(double part);
  /// Takes the bar off the screen, so that something else can be printed.
  void clear();

 private:
  void draw(double part);

  int jobs_;
  int started_ = 0;
  bool terminal_;
  bool drawn_ = false;
  std::string name_;
  std::chrono::steady_clock::time_point last_{};
};

}  // namespace packrnn::bench

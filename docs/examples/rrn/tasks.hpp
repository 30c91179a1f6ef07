// The two things that the example learns.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "docs/examples/rrn/model.hpp"

namespace packrnn::rrn {

enum class Part : std::uint8_t { valid, test };

/// What is right after each step, of all: cells and whole puzzles, or answers in both places.
struct Right {
  std::vector<double> single, whole;
};

/// Data with a network for them. Everything follows from the options: batch u is the same in every
/// run.
class Task {
 public:
  Task() = default;
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;
  virtual ~Task() = default;

  virtual Models models() = 0;
  /// Of the batch of update `update`.
  virtual Variable loss(Tape& tape, std::int64_t update, std::int64_t steps) = 0;
  virtual Right judge(Context& context, Part part, std::int64_t steps) = 0;
  /// "puzzles", of which there are so many in the parts.
  virtual std::string unit() const = 0;
  virtual std::string sizes() const = 0;
};

struct TaskOptions {
  int babi = 0;  // the number of a bAbI task; 0: sudoku
  bool made = false;
  std::int64_t hidden = 0, batch = 0;
  Variant variant = Variant::paper;
  Init init = Init::xavier;
  std::uint64_t seed = 0;
};
/// Null when the data are absent.
std::unique_ptr<Task> make_task(const TaskOptions& options);

}  // namespace packrnn::rrn

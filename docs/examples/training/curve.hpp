// A learning curve: one row of numbers for each report of a training.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace packrnn::training {

/// A figure that a curve is compared with, drawn as a line.
struct Level {
  std::string quantity;  // as in the columns' names: "accuracy"
  double value = 0.0;
  std::string name;  // "5-gram"
};

/// `columns`: first the keys, of which the last one grows and earlier ones tell several curves
/// apart; then what was measured, as "name (quantity)": equal quantities are drawn into one panel.
///   {"seed", "epoch", "train (loss)", "test (accuracy)"}
class Curve {
 public:
  /// `title`: lines for the top of the file.
  Curve(std::vector<std::string> title, std::vector<std::string> columns,
        std::vector<Level> levels);

  /// One number for each column (InvalidArgument).
  void add(std::vector<double> row);
  const std::vector<std::vector<double>>& rows() const noexcept { return rows_; }
  /// "epoch 3, train loss 1.234, test accuracy 0.567" of the last row.
  std::string last() const;
  /// CSV, with title and levels as comments. Throws FileError.
  void write(const std::string& path) const;

  /// The rows as names and numbers, for a checkpoint; take() removes them from there.
  void put(std::map<std::string, double>& numbers) const;
  void take(std::map<std::string, double>& numbers);

 private:
  std::vector<std::string> title_, columns_;
  std::vector<Level> levels_;
  std::vector<std::vector<double>> rows_;
};

}  // namespace packrnn::training

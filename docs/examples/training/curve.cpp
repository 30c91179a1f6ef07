#include "docs/examples/training/curve.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <fstream>
#include <packrnn/runtime/error.hpp>
#include <string_view>
#include <utility>

namespace packrnn::training {
namespace {

constexpr std::string_view kPrefix = "curve.";

/// Whole numbers without a point.
std::string text(double value, int digits) {
  constexpr double kMostWhole = 1e15;
  const bool whole = std::trunc(value) == value && std::abs(value) < kMostWhole;
  return fmt::format("{:.{}f}", value, whole ? 0 : digits);
}

}  // namespace

Curve::Curve(std::vector<std::string> title, std::vector<std::string> columns,
             std::vector<Level> levels)
    : title_(std::move(title)), columns_(std::move(columns)), levels_(std::move(levels)) {}

void Curve::add(std::vector<double> row) {
  if (row.size() != columns_.size())
    throw InvalidArgument(
        fmt::format("a row of {} numbers, expected {}", row.size(), columns_.size()));
  rows_.push_back(std::move(row));
}

std::string Curve::last() const {
  std::string line;
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    std::string name = columns_[i];
    std::erase_if(name, [](char c) { return c == '(' || c == ')'; });
    line += fmt::format("{}{} {}", i == 0 ? "" : ", ", name, text(rows_.back()[i], 4));
  }
  return line;
}

void Curve::write(const std::string& path) const {
  std::ofstream file(path);
  for (const std::string& line : title_) file << "# " << line << '\n';
  for (const Level& level : levels_)
    file << fmt::format("# level ({}) {} {}\n", level.quantity, level.value, level.name);
  file << fmt::format("{}\n", fmt::join(columns_, ","));
  for (const std::vector<double>& row : rows_)
    for (std::size_t i = 0; i < row.size(); ++i)
      file << text(row[i], 6) << (i + 1 < row.size() ? ',' : '\n');
  if (!file.flush()) throw FileError(fmt::format("cannot write {}", path));
}

void Curve::put(std::map<std::string, double>& numbers) const {
  for (std::size_t r = 0; r < rows_.size(); ++r)
    for (std::size_t i = 0; i < columns_.size(); ++i)
      numbers[fmt::format("{}{:06}.{}", kPrefix, r, columns_[i])] = rows_[r][i];
}

void Curve::take(std::map<std::string, double>& numbers) {
  rows_.clear();
  const auto number = [&](const std::string& column) {
    return numbers.extract(fmt::format("{}{:06}.{}", kPrefix, rows_.size(), column));
  };
  while (numbers.contains(fmt::format("{}{:06}.{}", kPrefix, rows_.size(), columns_.front()))) {
    std::vector<double> row;
    for (const std::string& column : columns_)
      if (const auto found = number(column)) row.push_back(found.mapped());
    add(std::move(row));
  }
}

}  // namespace packrnn::training

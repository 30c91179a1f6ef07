#include "bench/length_distribution.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <packrnn/runtime/error.hpp>
#include <packrnn/runtime/packed_layout.hpp>
#include <utility>

#include "bench/text.hpp"

namespace packrnn::bench {
namespace {

constexpr std::string_view kHistogram = "length,count", kQuantiles = "quantile,seconds";
constexpr std::int64_t kMaxCount = std::int64_t{1} << 40;
constexpr double kMaxLength = PackedLayout::kMaxExtent;

struct Line {
  int number;
  double first, second;
};

struct Table {
  std::string_view header;
  std::vector<Line> lines;
};

Table read_table(std::string_view name, std::string_view csv) {
  Table table;
  for (int line_number = 1; !csv.empty(); ++line_number) {
    std::string_view line = take_line(csv);
    if (line.empty() || line.starts_with('#')) continue;
    if (table.header.empty()) {
      table.header = line;
      if (line != kHistogram && line != kQuantiles) break;
      continue;
    }
    const std::string_view whole = line;
    const auto first = number<double>(take_until(line, ','));
    const auto second = number<double>(line);
    if (!first || !second || !std::isfinite(*first) || !std::isfinite(*second))
      throw InvalidArgument(
          fmt::format("{}, line {}: '{}' is not two numbers", name, line_number, whole));
    table.lines.push_back({line_number, *first, *second});
  }
  if (table.header != kHistogram && table.header != kQuantiles)
    throw InvalidArgument(fmt::format("{}: columns '{}', expected '{}' or '{}'", name, table.header,
                                      kHistogram, kQuantiles));
  return table;
}

}  // namespace

void LengthDistribution::add(double until, double from, double to) {
  pieces_.push_back({until, from, to});
}

LengthDistribution LengthDistribution::parse(std::string_view name, std::string_view csv,
                                             double steps_per_second) {
  const auto [header, lines] = read_table(name, csv);
  LengthDistribution result;
  const auto refuse = [name](const Line& line, std::string_view expected) {
    throw InvalidArgument(fmt::format("{}, line {}: '{},{}', expected {}", name, line.number,
                                      line.first, line.second, expected));
  };
  if (header == kHistogram) {
    double total = 0.0, before = -1.0;
    for (const Line& line : lines) {
      if (!(line.first > before && line.first <= kMaxLength &&
            line.first == std::floor(line.first)))
        refuse(line, "growing whole lengths");
      if (!(line.second >= 0 && line.second <= kMaxCount && line.second == std::floor(line.second)))
        refuse(line, "a count");
      before = line.first;
      total += line.second;
      if (line.second > 0) result.add(total, line.first, line.first);
    }
    for (Piece& piece : result.pieces_) piece.until /= total;
  } else {
    if (lines.empty() || lines.front().first != 0.0 || lines.back().first != 1.0)
      throw InvalidArgument(fmt::format("{}: quantiles must go from 0 to 1", name));
    for (std::size_t i = 0; i < lines.size(); ++i) {
      const double steps = lines[i].second * steps_per_second;
      if (!(steps >= 0 && steps <= kMaxLength)) refuse(lines[i], "seconds");
      if (i == 0) continue;
      const Line& last = lines[i - 1];
      if (!(lines[i].first > last.first && lines[i].second >= last.second))
        refuse(lines[i], "growing quantiles of growing lengths");
      result.add(lines[i].first, last.second * steps_per_second, steps);
    }
  }
  if (result.pieces_.empty()) throw InvalidArgument(fmt::format("{}: no lengths", name));
  return result;
}

LengthDistribution LengthDistribution::of(std::vector<std::int64_t> lengths) {
  std::sort(lengths.begin(), lengths.end());
  if (lengths.empty() || lengths.front() < 0 || lengths.back() > PackedLayout::kMaxExtent)
    throw InvalidArgument(fmt::format("{} lengths, expected at least one, each 0 to {}",
                                      lengths.size(), PackedLayout::kMaxExtent));
  LengthDistribution result;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    const auto length = static_cast<double>(lengths[i]);
    const double until = static_cast<double>(i + 1) / static_cast<double>(lengths.size());
    result.add(until, length, length);
  }
  return result;
}

std::int64_t LengthDistribution::sample(double u) const {
  const auto above = std::upper_bound(pieces_.begin(), pieces_.end(), u,
                                      [](double x, const Piece& piece) { return x < piece.until; });
  const auto piece = above == pieces_.end() ? std::prev(above) : above;
  const double begin = piece == pieces_.begin() ? 0.0 : std::prev(piece)->until;
  const double along = std::clamp((u - begin) / (piece->until - begin), 0.0, 1.0);
  return static_cast<std::int64_t>(piece->from + along * (piece->to - piece->from));
}

std::int64_t LengthDistribution::max() const {
  return static_cast<std::int64_t>(pieces_.back().to);
}

double LengthDistribution::mean() const {
  double sum = 0.0, begin = 0.0;
  for (const Piece& piece : pieces_) {
    sum += (piece.until - begin) * (piece.from + piece.to) / 2.0;
    begin = piece.until;
  }
  return sum;
}

}  // namespace packrnn::bench

// The named length mixes of the benchmarks, and batches drawn from them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/length_distribution.hpp"

namespace packrnn::bench {

using BatchLengths = std::vector<std::int64_t>;

struct Mix {
  std::string name;
  std::string what;       // one line
  std::int64_t features;  // I: the input width that such data usually has
  LengthDistribution lengths;
  /// When there is one, every batch is this one and nothing is drawn.
  std::optional<BatchLengths> fixed = std::nullopt;
};

/// The mixes we ship, from even to uneven; their tables (bench/lengths) are part of the program.
std::vector<Mix> mixes();

/// A mix of the caller's own lengths: a list of at most `batch` is the batch, a longer one is drawn
/// from. Throws InvalidArgument when there are none or one is negative.
Mix mix_of(std::string name, std::vector<std::int64_t> lengths, std::int64_t features,
           std::int64_t batch);

/// The lengths in a file with one per line; empty lines and lines that start with # do not count.
/// Throws FileError naming the file and the line.
std::vector<std::int64_t> read_lengths(const std::string& path);

/// `count` batches of `batch` lengths each, independent draws. A pure function of its arguments:
/// sequence n of batch b is the same whatever else is drawn.
std::vector<BatchLengths> draw(const Mix& mix, std::int64_t batch, std::int64_t count,
                               std::uint64_t seed);

}  // namespace packrnn::bench

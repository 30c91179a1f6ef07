#include "bench/mixes.hpp"

#include <fmt/format.h>

#include <packrnn/runtime/error.hpp>
#include <packrnn/runtime/packed_layout.hpp>
#include <packrnn/runtime/random.hpp>
#include <string_view>
#include <utility>

#include "bench/text.hpp"

namespace packrnn::bench {
namespace tables {

extern const std::string_view ewt, jv, libri100, libri_dev, ptb, speeches, wmt22;

}  // namespace tables

namespace {

// Features every 10 ms, four of them stacked: what speech models usually see.
constexpr double kFramesPerSecond = 25.0;

/// FNV-1a: gives each mix its own random numbers, however many mixes there are.
std::uint32_t hash(std::string_view text) {
  std::uint32_t value = 2166136261U;
  for (const char c : text) value = (value ^ static_cast<unsigned char>(c)) * 16777619U;
  return value;
}

/// A number of [0, 1) with 53 random bits.
double uniform(std::uint64_t seed, std::uint32_t stream, std::int64_t batch, std::int64_t n) {
  const PhiloxCounter counter{static_cast<std::uint32_t>(n), static_cast<std::uint32_t>(batch),
                              stream, 0};
  const PhiloxKey key{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)};
  const PhiloxCounter bits = philox4x32_10(counter, key);
  const std::uint64_t wide = std::uint64_t{bits[0]} << 32 | bits[1];
  return static_cast<double>(wide >> 11) * 0x1p-53;
}

}  // namespace

std::vector<Mix> mixes() {
  const auto table = [](std::string_view name, std::string_view csv) {
    return LengthDistribution::parse(name, csv, kFramesPerSecond);
  };
  const BatchLengths classic{300, 200, 100, 50};
  return {
      {"libri100", "LibriSpeech train-clean-100, frames of 40 ms", 80,
       table("libri100", tables::libri100)},
      {"jv", "Japanese Vowels, frames", 12, table("jv", tables::jv)},
      {"classic", "the four sequences of every introduction: 300, 200, 100, 50", 128,
       LengthDistribution::of(classic), classic},
      {"ptb", "Penn Treebank sentences, words", 256, table("ptb", tables::ptb)},
      {"wmt22", "WMT22 English segments, words", 256, table("wmt22", tables::wmt22)},
      {"libri-dev", "LibriSpeech dev-clean, frames of 40 ms", 80,
       table("libri-dev", tables::libri_dev)},
      {"ewt", "English web treebank sentences, words", 256, table("ewt", tables::ewt)},
      {"speeches", "speeches in Shakespeare, characters", 64, table("speeches", tables::speeches)},
  };
}

Mix mix_of(std::string name, std::vector<std::int64_t> lengths, std::int64_t features,
           std::int64_t batch) {
  const auto count = static_cast<std::int64_t>(lengths.size());
  std::string what = fmt::format("{} lengths of {}", count, name);
  std::optional<BatchLengths> fixed;
  if (count <= batch) fixed = lengths;
  return {std::move(name), std::move(what), features, LengthDistribution::of(std::move(lengths)),
          std::move(fixed)};
}

std::vector<std::int64_t> read_lengths(const std::string& path) {
  constexpr std::size_t kMaxBytes = std::size_t{1} << 30;
  const std::string text = read_text(path, kMaxBytes);
  std::string_view rest = text;
  std::vector<std::int64_t> lengths;
  for (int line_number = 1; !rest.empty(); ++line_number) {
    const std::string_view line = take_line(rest);
    if (line.empty() || line.starts_with('#')) continue;
    const auto length = number<std::int64_t>(line);
    if (!length || *length < 0 || *length > PackedLayout::kMaxExtent)
      throw FileError(fmt::format("{}, line {}: '{}', expected a length from 0 to {}", path,
                                  line_number, line.substr(0, 40), PackedLayout::kMaxExtent));
    lengths.push_back(*length);
  }
  if (lengths.empty()) throw FileError(fmt::format("{}: no lengths", path));
  return lengths;
}

std::vector<BatchLengths> draw(const Mix& mix, std::int64_t batch, std::int64_t count,
                               std::uint64_t seed) {
  if (mix.fixed) return std::vector<BatchLengths>(static_cast<std::size_t>(count), *mix.fixed);
  const std::uint32_t stream = hash(mix.name);
  std::vector<BatchLengths> batches(static_cast<std::size_t>(count));
  for (std::int64_t b = 0; b < count; ++b) {
    BatchLengths& lengths = batches[static_cast<std::size_t>(b)];
    for (std::int64_t n = 0; n < batch; ++n)
      lengths.push_back(mix.lengths.sample(uniform(seed, stream, b, n)));
  }
  return batches;
}

}  // namespace packrnn::bench

#include "bench/japanese_vowels.hpp"

#include <fmt/format.h>

#include <cmath>
#include <packrnn/runtime/error.hpp>
#include <utility>

#include "bench/data.hpp"
#include "bench/text.hpp"

namespace packrnn::bench {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTrainFile = "JapaneseVowels_TRAIN.ts";
constexpr const char* kTestFile = "JapaneseVowels_TEST.ts";

/// Where we are in a file, for messages.
struct Place {
  std::string_view name;
  int line = 0;

  [[noreturn]] void refuse(const std::string& what) const {
    throw FileError(fmt::format("{}, line {}: {}", name, line, what));
  }
};

std::vector<float> parse_channel(std::string_view text, std::int64_t channel, const Place& place) {
  std::vector<float> values;
  while (true) {
    const bool last = text.find(',') == std::string_view::npos;
    const std::string_view field = take_until(text, ',');
    const std::optional<float> value = number<float>(field);
    if (!value || !std::isfinite(*value))
      place.refuse(fmt::format("value {} of channel {} is '{}', expected a number",
                               values.size() + 1, channel + 1, field.substr(0, 40)));
    values.push_back(*value);
    if (last) return values;
  }
}

/// Twelve lists of equal length and the speaker, joined by colons.
Recording parse_recording(std::string_view line, const Place& place) {
  constexpr std::int64_t kFeatures = JapaneseVowels::kFeatures;
  Recording recording;
  for (std::int64_t channel = 0; channel < kFeatures; ++channel) {
    if (line.find(':') == std::string_view::npos)
      place.refuse(fmt::format("{} channels, expected {} and the speaker", channel, kFeatures));
    const std::vector<float> values = parse_channel(take_until(line, ':'), channel, place);
    const auto length = static_cast<std::int64_t>(values.size());
    if (channel == 0) {
      recording.length = length;
      recording.frames.resize(static_cast<std::size_t>(length * kFeatures));
    } else if (length != recording.length) {
      place.refuse(fmt::format("channel {} has {} values, but channel 1 has {}", channel + 1,
                               length, recording.length));
    }
    for (std::int64_t t = 0; t < length; ++t)
      recording.frames[static_cast<std::size_t>(t * kFeatures + channel)] =
          values[static_cast<std::size_t>(t)];
  }
  const std::optional<int> speaker = number<int>(line);
  if (!speaker || *speaker < 1 || *speaker > JapaneseVowels::kSpeakers)
    place.refuse(fmt::format("speaker '{}', expected 1 to {} after {} channels", line.substr(0, 40),
                             JapaneseVowels::kSpeakers, kFeatures));
  recording.speaker = *speaker;
  return recording;
}

/// What a header line says must fit what is read here.
void check_header(std::string_view line, const Place& place) {
  constexpr std::string_view kDimensions = "@dimensions ", kMissing = "@missing ";
  if (line.starts_with(kDimensions) &&
      number<std::int64_t>(line.substr(kDimensions.size())) != JapaneseVowels::kFeatures)
    place.refuse(fmt::format("'{}', expected {}", line, JapaneseVowels::kFeatures));
  if (line.starts_with(kMissing) && line.substr(kMissing.size()) != "false")
    place.refuse(fmt::format("'{}', but missing values are not supported", line));
}

std::vector<Recording> read_recordings(const fs::path& path) {
  constexpr std::size_t kMaxBytes = std::size_t{16} << 20;
  return parse_recordings(path.filename().string(), read_text(path, kMaxBytes));
}

}  // namespace

std::vector<Recording> parse_recordings(std::string_view name, std::string_view text) {
  std::vector<Recording> recordings;
  Place place{name};
  bool in_data = false;
  while (!text.empty()) {
    ++place.line;
    const std::string_view line = take_line(text);
    if (line.empty() || line.starts_with('#')) continue;
    if (in_data) {
      recordings.push_back(parse_recording(line, place));
    } else if (line == "@data") {
      in_data = true;
    } else if (line.starts_with('@')) {
      check_header(line, place);
    } else {
      place.refuse("data before the line '@data'");
    }
  }
  if (!in_data) place.refuse("ended without a line '@data'");
  if (recordings.empty()) place.refuse("ended without a recording");
  return recordings;
}

std::optional<fs::path> find_japanese_vowels() {
  return find_data("JapaneseVowels", {kTrainFile, kTestFile});
}

std::string japanese_vowels_missing() {
  return data_missing(kTrainFile,
                      "the aeon and sktime toolkits carry the .ts files, the data are DOI "
                      "10.24432/C5NS47");
}

JapaneseVowels read_japanese_vowels(const fs::path& folder) {
  return {read_recordings(folder / kTrainFile), read_recordings(folder / kTestFile)};
}

}  // namespace packrnn::bench

// The data set Japanese Vowels (UCI Machine Learning Repository, DOI 10.24432/C5NS47; M. Kudo,
// J. Toyama, M. Shimbo, 1999): 640 recordings of nine speakers, 12 cepstral coefficients a frame.
// The repository ships none of it: it is read from the .ts files where those are found.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace packrnn::bench {

struct Recording {
  std::int64_t length = 0;
  std::vector<float> frames;  // [length, 12]
  int speaker = 0;            // 1 .. 9
};

struct JapaneseVowels {
  static constexpr std::int64_t kFeatures = 12;
  static constexpr int kSpeakers = 9;
  std::vector<Recording> train, test;  // in file order, which is by speaker
};

/// Recordings in the text of a .ts file. Throws FileError that says `name`, the line and what is
/// wrong with it; nothing of such a file is used.
std::vector<Recording> parse_recordings(std::string_view name, std::string_view text);

/// Where the files are: the folder PACKRNN_DATA_DIR names, else ../shared/data beside the source
/// tree, there or in JapaneseVowels/ below. Nothing when they are not.
std::optional<std::filesystem::path> find_japanese_vowels();

/// One line for the user that has not got them: where they were looked for, where to get them.
std::string japanese_vowels_missing();

/// Reads JapaneseVowels_TRAIN.ts and _TEST.ts of `folder`. Throws FileError.
JapaneseVowels read_japanese_vowels(const std::filesystem::path& folder);

}  // namespace packrnn::bench

#include "bench/japanese_vowels.hpp"

#include <algorithm>
#include <cmath>
#include <packrnn/runtime/error.hpp>
#include <string>
#include <vector>

#include "tests/catch.hpp"

namespace packrnn::bench {
namespace {

const std::string kHeader =
    "# made up\n@problemName JapaneseVowels\n@missing false\n@dimensions 12\n@data\n";

/// Channel c of a recording of `length` frames holds c + 0.5, c + 1.5, ...
std::string line(int length, const std::string& speaker, int channels = 12) {
  std::string text;
  for (int channel = 0; channel < channels; ++channel) {
    for (int t = 0; t < length; ++t)
      text += std::to_string(channel + t) + (t + 1 < length ? ".5," : ".5:");
  }
  return text + speaker + "\n";
}

void refused(const std::string& text, const std::string& because) {
  INFO(text);
  CHECK_THROWS_AS(parse_recordings("x.ts", text), FileError);
  CHECK_THROWS_WITH(parse_recordings("x.ts", text), Catch::Matchers::StartsWith("x.ts, line ") &&
                                                        Catch::Matchers::Contains(because));
}

TEST_CASE("recordings keep order, lengths and speakers, and lie frame by frame") {
  const auto recordings = parse_recordings("x.ts", kHeader + line(3, "1") + line(1, "9"));
  REQUIRE(recordings.size() == 2);
  CHECK(recordings[0].length == 3);
  CHECK(recordings[0].speaker == 1);
  REQUIRE(recordings[0].frames.size() == 36);
  for (std::size_t t = 0; t < 3; ++t)
    for (std::size_t channel = 0; channel < 12; ++channel)
      CHECK(recordings[0].frames[t * 12 + channel] == static_cast<float>(t + channel) + 0.5F);
  CHECK(recordings[1].length == 1);
  CHECK(recordings[1].speaker == 9);
}

TEST_CASE("line ends of other systems, empty lines and a missing last line end are fine") {
  std::string text = kHeader + "\n" + line(2, "4") + "\n" + line(2, "5");
  text.pop_back();
  std::string carriage;
  for (const char c : text) carriage += c == '\n' ? std::string("\r\n") : std::string(1, c);
  CHECK(parse_recordings("x.ts", text).size() == 2);
  const auto recordings = parse_recordings("x.ts", carriage);
  REQUIRE(recordings.size() == 2);
  CHECK(recordings[1].speaker == 5);
}

TEST_CASE("a damaged file is refused with its line") {
  refused("", "without a line '@data'");
  refused("@missing false\n", "without a line '@data'");
  refused(kHeader, "without a recording");
  refused("1,2:1\n", "line 1: data before");
  refused("@dimensions 13\n@data\n" + line(2, "1"), "line 1: '@dimensions 13', expected 12");
  refused("@missing true\n@data\n" + line(2, "1"), "line 1: '@missing true'");
  refused(kHeader + line(2, "1") + line(2, "1", 11), "line 7: 11 channels, expected 12");
  refused(kHeader + line(2, "1", 13), "expected 1 to 9 after 12 channels");
  refused(kHeader + line(2, "0"), "speaker '0'");
  refused(kHeader + line(2, "10"), "speaker '10'");
  refused(kHeader + line(2, ""), "speaker ''");
  refused(kHeader + line(2, "1x"), "speaker '1x'");
  refused(kHeader + line(0, "1", 12).insert(0, "1.0,2.0:"), "channels, expected 12");
  for (const std::string bad : {"?", "", "nan", "inf", "1e99", "1.5x", " 1.5"}) {
    std::string text = line(2, "1");
    refused(kHeader + text.replace(text.find("1.5"), 3, bad),
            "value 2 of channel 1 is '" + bad + "'");
  }
  std::string uneven = line(2, "1");
  uneven.insert(uneven.find(':'), ",7");
  refused(kHeader + uneven, "channel 2 has 2 values, but channel 1 has 3");
  const std::string whole = kHeader + line(2, "1");
  for (std::size_t size = kHeader.size(); size < whole.size() - 2; ++size)
    CHECK_THROWS_AS(parse_recordings("x.ts", whole.substr(0, size)), FileError);
}

struct Summary {
  std::int64_t shortest, longest, steps;
};

Summary summary(const std::vector<Recording>& recordings) {
  Summary result{1'000'000, 0, 0};
  for (const Recording& recording : recordings) {
    result.shortest = std::min(result.shortest, recording.length);
    result.longest = std::max(result.longest, recording.length);
    result.steps += recording.length;
  }
  return result;
}

TEST_CASE("the real files are the published data set") {
  const auto folder = find_japanese_vowels();
  if (!folder) PACKRNN_SKIP(japanese_vowels_missing());
  const JapaneseVowels data = read_japanese_vowels(*folder);
  CHECK(data.train.size() == 270);
  CHECK(data.test.size() == 370);
  const Summary train = summary(data.train), test = summary(data.test);
  CHECK((train.shortest == 7 && train.longest == 26 && train.steps == 4274));
  CHECK((test.shortest == 7 && test.longest == 29 && test.steps == 5687));

  const std::vector<int> of_test{31, 35, 88, 44, 29, 24, 40, 50, 29};
  for (int speaker = 1; speaker <= JapaneseVowels::kSpeakers; ++speaker) {
    const auto is_speaker = [&](const Recording& recording) {
      return recording.speaker == speaker;
    };
    CHECK(std::count_if(data.train.begin(), data.train.end(), is_speaker) == 30);
    CHECK(std::count_if(data.test.begin(), data.test.end(), is_speaker) ==
          of_test[static_cast<std::size_t>(speaker - 1)]);
  }
  float lowest = 0.0F, highest = 0.0F;
  for (const auto* set : {&data.train, &data.test})
    for (const Recording& recording : *set)
      for (const float value : recording.frames) {
        lowest = std::min(lowest, value);
        highest = std::max(highest, value);
      }
  CHECK_THAT(lowest, Catch::Matchers::WithinAbs(-1.852765, 1e-6));
  CHECK_THAT(highest, Catch::Matchers::WithinAbs(2.203141, 1e-6));
}

}  // namespace
}  // namespace packrnn::bench

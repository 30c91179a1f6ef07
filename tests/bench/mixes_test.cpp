#include "bench/mixes.hpp"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <packrnn/runtime/error.hpp>
#include <string>
#include <vector>

#include "tests/catch.hpp"

namespace packrnn::bench {
namespace {

const Mix& find(const std::vector<Mix>& all, const std::string& name) {
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const Mix& mix) { return mix.name == name; });
  REQUIRE(found != all.end());
  return *found;
}

TEST_CASE("the shipped tables are the published ones") {
  struct Published {
    std::int64_t min, max;
    double mean;
    double bound;  // padded volume / valid tokens of random batches of 64
  };
  // Means of the LibriSpeech sets are 12.8 s and 7.2 s; ours are those of straight lines between
  // quantiles, rounded down.
  const std::map<std::string, Published> published{
      {"jv", {7, 29, 15.564, 1.54}},         {"ptb", {2, 78, 21.903, 2.29}},
      {"ewt", {1, 81, 12.320, 3.86}},        {"wmt22", {2, 93, 19.642, 2.83}},
      {"libri100", {32, 680, 320, 1.44}},    {"libri-dev", {35, 815, 180, 3.38}},
      {"speeches", {5, 3081, 153.44, 7.66}}, {"classic", {50, 300, 162.5, 1.846}}};
  const std::vector<Mix> all = mixes();
  CHECK(all.size() == published.size());
  for (const auto& [name, expected] : published) {
    INFO(name);
    const Mix& mix = find(all, name);
    CHECK(mix.lengths.min() == expected.min);
    CHECK(mix.lengths.max() == expected.max);
    CHECK_THAT(mix.lengths.mean(), Catch::Matchers::WithinRel(expected.mean, 0.025));
    CHECK(mix.features > 0);

    std::int64_t tokens = 0, count = 0;
    double bounds = 0.0;
    const auto batches = draw(mix, 64, 300, 5);
    for (const BatchLengths& lengths : batches) {
      const auto [shortest, longest] = std::minmax_element(lengths.begin(), lengths.end());
      CHECK(*shortest >= expected.min);
      CHECK(*longest <= expected.max);
      const auto n = static_cast<std::int64_t>(lengths.size());
      const std::int64_t valid = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
      tokens += valid;
      count += n;
      bounds += static_cast<double>(*longest * n) / static_cast<double>(valid);
    }
    const double mean = static_cast<double>(tokens) / static_cast<double>(count);
    CHECK_THAT(mean, Catch::Matchers::WithinRel(expected.mean, 0.04));
    CHECK_THAT(bounds / static_cast<double>(batches.size()),
               Catch::Matchers::WithinRel(expected.bound, 0.06));
  }
}

TEST_CASE("draws depend on seed, batch and mix, and on nothing else") {
  const std::vector<Mix> all = mixes();
  const Mix& ptb = find(all, "ptb");
  const auto drawn = draw(ptb, 16, 3, 7);
  REQUIRE(drawn.size() == 3);
  CHECK(drawn == draw(ptb, 16, 3, 7));
  CHECK(drawn != draw(ptb, 16, 3, 8));
  CHECK(drawn != draw(ptb, 16, 3, 7 + (std::uint64_t{1} << 32)));
  CHECK(drawn[0] != drawn[1]);
  CHECK(draw(ptb, 16, 1, 7)[0] == drawn[0]);
  const auto more = draw(ptb, 20, 1, 7)[0];
  CHECK(std::equal(drawn[0].begin(), drawn[0].end(), more.begin()));

  Mix renamed = ptb;
  renamed.name = "other";
  CHECK(draw(renamed, 16, 1, 7)[0] != drawn[0]);
}

TEST_CASE("a fixed batch stays as it is, whatever the batch size") {
  const std::vector<Mix> all = mixes();
  const auto drawn = draw(find(all, "classic"), 64, 2, 7);
  CHECK(drawn == std::vector<BatchLengths>(2, {300, 200, 100, 50}));
}

TEST_CASE("a list of lengths is one batch, or a distribution when it is longer") {
  CHECK(draw(mix_of("mine", {5, 2, 9}, 8, 3), 3, 1, 1) == std::vector<BatchLengths>{{5, 2, 9}});
  const auto drawn = draw(mix_of("mine", {5, 2, 9}, 8, 2), 2, 50, 1);
  REQUIRE(drawn.size() == 50);
  std::map<std::int64_t, int> counts;
  for (const BatchLengths& lengths : drawn)
    for (const std::int64_t length : lengths) ++counts[length];
  CHECK(counts.size() == 3);
  CHECK((counts[2] > 15 && counts[5] > 15 && counts[9] > 15));
  CHECK_THROWS_AS(mix_of("mine", {}, 8, 3), InvalidArgument);
}

class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& text)
      : path_(std::filesystem::temp_directory_path() /
              ("packrnn_mixes_test_" + std::to_string(++count))) {
    std::ofstream(path_, std::ios::binary) << text;
  }
  ~TemporaryFile() { std::filesystem::remove(path_); }
  std::string path() const { return path_.string(); }

 private:
  static inline int count = 0;
  std::filesystem::path path_;
};

TEST_CASE("lengths are read one a line, and a wrong line is named") {
  CHECK(read_lengths(TemporaryFile("# mine\n12\r\n\n0\n7").path()) ==
        std::vector<std::int64_t>{12, 0, 7});
  for (const auto& [text, message] :
       std::map<std::string, std::string>{{"3\n4.5\n", "line 2: '4.5'"},
                                          {"3\n-4\n", "line 2: '-4'"},
                                          {"99999999999\n", "line 1: '99999999999'"},
                                          {"3 4\n", "line 1: '3 4'"},
                                          {"# nothing\n", "no lengths"}}) {
    const TemporaryFile file(text);
    INFO(text);
    CHECK_THROWS_WITH(read_lengths(file.path()), Catch::Matchers::Contains(message));
    CHECK_THROWS_WITH(read_lengths(file.path()), Catch::Matchers::StartsWith(file.path()));
  }
  CHECK_THROWS_AS(read_lengths("/nowhere/to/be/found"), FileError);
  CHECK_THROWS_AS(read_lengths(std::filesystem::temp_directory_path().string()), FileError);
}

}  // namespace
}  // namespace packrnn::bench

#include <fstream>
#include <packrnn/runtime/error.hpp>
#include <string>
#include <vector>

#include "bench/temporary_folder.hpp"
#include "docs/examples/shakespeare/text.hpp"
#include "tests/catch.hpp"

namespace packrnn::shakespeare {
namespace {

TEST_CASE("characters are numbered in the order of their bytes") {
  const Alphabet alphabet("hello\xC3\xA9\n");
  REQUIRE(alphabet.size() == 7);
  const std::vector<std::int64_t> numbers = alphabet.numbers("hello\xC3\xA9\n");
  std::string back;
  for (const std::int64_t number : numbers) back += alphabet.character(number);
  CHECK(back == "hello\xC3\xA9\n");
  CHECK(numbers[2] == numbers[3]);
  CHECK_THROWS_AS(alphabet.numbers("x"), InvalidArgument);
}

TEST_CASE("nine tenths are learnt from, and 60 000 characters after them are held out") {
  const bench::TemporaryFolder folder("text_test");
  const auto path = folder.path() / "input.txt";
  std::string text(620'001, 'a');
  text[558'000] = 'b';  // the first of the last tenth
  std::ofstream(path) << text;
  const Text parts = read_text(path);
  CHECK(parts.train == std::vector<std::int64_t>(558'000, 0));
  REQUIRE(parts.held_out.size() == 60'000);
  CHECK(parts.held_out[0] == 1);
  std::ofstream(path) << std::string(599'990, 'a');
  CHECK_THROWS_WITH(read_text(path), Catch::Matchers::Contains("599990 characters, expected"));
}

TEST_CASE("the text that is known has 65 characters") {
  const auto path = find_text();
  if (!path) PACKRNN_SKIP(text_missing());
  const Text text = read_text(*path);
  CHECK(text.alphabet.size() == 65);
  CHECK(text.train.size() == 1'003'854);
}

}  // namespace
}  // namespace packrnn::shakespeare

#include "docs/examples/tagging/treebank.hpp"

#include <packrnn/runtime/error.hpp>
#include <string>

#include "tests/catch.hpp"

namespace packrnn::tagging {
namespace {

void refused(const std::string& text, const std::string& because) {
  INFO(text);
  CHECK_THROWS_AS(parse_sentences("x.tsv", text), FileError);
  CHECK_THROWS_WITH(parse_sentences("x.tsv", text),
                    Catch::Matchers::StartsWith("x.tsv") && Catch::Matchers::Contains(because));
}

TEST_CASE("sentences end at empty lines, and words keep their spelling") {
  const auto sentences =
      parse_sentences("x.tsv", "\nThe\tDET\r\nend\tNOUN\n\n\nNew York\tPROPN\n!\tPUNCT");
  REQUIRE(sentences.size() == 2);
  REQUIRE(sentences[0].size() == 2);
  CHECK(sentences[0][0].text == "The");
  CHECK(kTags.at(static_cast<std::size_t>(sentences[0][0].tag)) == "DET");
  CHECK(kTags.at(static_cast<std::size_t>(sentences[0][1].tag)) == "NOUN");
  CHECK(sentences[1][0].text == "New York");
  CHECK(kTags.at(static_cast<std::size_t>(sentences[1][1].tag)) == "PUNCT");
}

TEST_CASE("a damaged file of tags is refused with its line") {
  refused("", "no sentences");
  refused("\n\n", "no sentences");
  refused("a\tNOUN\nb\tNOON\n", "line 2: word 'b' and tag 'NOON'");
  refused("a\tNOUN\n\n\tNOUN\n", "line 3: word ''");
  refused("word\n", "line 1: word 'word' and tag ''");
  refused("a\tNOUN\textra\n", "tag 'NOUN\textra'");
}

TEST_CASE("the treebank that is known has 1000 sentences of 21180 words") {
  const auto path = find_treebank();
  if (!path) PACKRNN_SKIP(treebank_missing());
  std::size_t words = 0;
  const auto sentences = read_treebank(*path);
  for (const Sentence& sentence : sentences) words += sentence.size();
  CHECK(sentences.size() == 1000);
  CHECK(words == 21'180);
}

}  // namespace
}  // namespace packrnn::tagging

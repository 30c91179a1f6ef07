#include "docs/examples/tagging/treebank.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <packrnn/runtime/error.hpp>
#include <utility>

#include "bench/data.hpp"
#include "bench/text.hpp"

namespace packrnn::tagging {
namespace {

constexpr const char* kFile = "en_pud_upos.tsv";

}  // namespace

std::vector<Sentence> parse_sentences(std::string_view name, std::string_view text) {
  std::vector<Sentence> sentences(1);
  for (int number = 1; !text.empty(); ++number) {
    std::string_view line = bench::take_line(text);
    if (line.empty()) {
      if (!sentences.back().empty()) sentences.emplace_back();
      continue;
    }
    const std::string_view word = bench::take_until(line, '\t');
    const auto tag = std::ranges::find(kTags, line);
    if (word.empty() || tag == kTags.end())
      throw FileError(
          fmt::format("{}, line {}: word '{}' and tag '{}', expected a word and one of {}", name,
                      number, word, line, fmt::join(kTags, " ")));
    sentences.back().push_back({std::string(word), tag - kTags.begin()});
  }
  if (sentences.back().empty()) sentences.pop_back();
  if (sentences.empty()) throw FileError(fmt::format("{}: no sentences", name));
  return sentences;
}

std::optional<std::filesystem::path> find_treebank() {
  const auto folder = bench::find_data("UD_English-PUD", {kFile});
  return folder ? std::optional(*folder / kFile) : std::nullopt;
}

std::string treebank_missing() {
  return bench::data_missing(
      kFile,
      "it is columns 2 and 4 of en_pud-ud-test.conllu of "
      "github.com/UniversalDependencies/UD_English-PUD, tabulator between them: "
      "awk -F'\\t' '/^[0-9]+\\t/ {print $2 \"\\t\" $4} /^$/'");
}

std::vector<Sentence> read_treebank(const std::filesystem::path& path) {
  constexpr std::size_t kMaxBytes = std::size_t{64} << 20;
  return parse_sentences(path.filename().string(), bench::read_text(path, kMaxBytes));
}

}  // namespace packrnn::tagging

// Universal Dependencies, English PUD: 1 000 sentences, 21 180 words, 17 tags (CC BY-SA 3.0).
// The repository ships none of it: it is read where bench/data.hpp finds it.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace packrnn::tagging {

constexpr std::array<std::string_view, 17> kTags = {
    "ADJ",  "ADP",  "ADV",   "AUX",   "CCONJ", "DET", "INTJ", "NOUN", "NUM",
    "PART", "PRON", "PROPN", "PUNCT", "SCONJ", "SYM", "VERB", "X"};

struct Word {
  std::string text;
  std::int64_t tag = 0;  // into kTags
};
using Sentence = std::vector<Word>;

/// Lines of a word, a tabulator and its tag; an empty line ends a sentence. Throws FileError that
/// says `name`, the line and what is wrong with it.
std::vector<Sentence> parse_sentences(std::string_view name, std::string_view text);

/// Where the file of words and tags is. Nothing where it is not.
std::optional<std::filesystem::path> find_treebank();
std::string treebank_missing();
std::vector<Sentence> read_treebank(const std::filesystem::path& path);

}  // namespace packrnn::tagging

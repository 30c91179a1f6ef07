// Reads the files of bAbI.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "bench/data.hpp"
#include "bench/text.hpp"
#include "docs/examples/rrn/babi.hpp"

namespace packrnn::rrn {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kLongestWord = 40, kMostWords = 64;

/// Where we are in a file, for messages.
struct Place {
  std::string_view name;
  int line = 0;

  [[noreturn]] void refuse(const std::string& what) const {
    throw FileError(fmt::format("{}, line {}: {}", name, line, what));
  }
};

std::string parse_word(std::string_view text, const Place& place) {
  if (text.size() > kLongestWord)
    place.refuse(
        fmt::format("a word of {} characters, expected at most {}", text.size(), kLongestWord));
  std::string word;
  for (const char c : text) {
    if (c <= ' ' || c > '~')
      place.refuse(fmt::format("a character of code {} in a word", static_cast<unsigned char>(c)));
    word += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return word;
}

Sentence parse_sentence(std::string_view text, char mark, const Place& place) {
  while (text.ends_with(' ')) text.remove_suffix(1);
  if (!text.ends_with(mark))
    place.refuse(fmt::format("a sentence that does not end with {}", mark));
  text.remove_suffix(1);
  Sentence sentence;
  while (!text.empty()) {
    const std::string_view word = bench::take_until(text, ' ');
    if (word.empty()) continue;
    if (sentence.size() == kMostWords)
      place.refuse(fmt::format("a sentence of more than {} words", kMostWords));
    sentence.push_back(parse_word(word, place));
  }
  if (sentence.empty()) place.refuse("a sentence without words");
  return sentence;
}

Question parse_question(std::string_view text, std::span<const Sentence> facts,
                        const Place& place) {
  if (facts.empty()) place.refuse("a question before any fact");
  const std::size_t kept = std::min(facts.size(), kMostFacts);
  Question question;
  question.facts.assign(facts.end() - static_cast<std::ptrdiff_t>(kept), facts.end());
  question.text = parse_sentence(bench::take_until(text, '\t'), '?', place);
  question.answer = parse_word(bench::take_until(text, '\t'), place);
  if (question.answer.empty()) place.refuse("a question without an answer");
  return question;
}

/// The three files under one of the names that they have.
std::array<std::string, 3> file_names(int task, const char* end) {
  return {fmt::format("qa{}_train{}", task, end), fmt::format("qa{}_valid{}", task, end),
          fmt::format("qa{}_test{}", task, end)};
}

}  // namespace

std::vector<Question> parse_babi(std::string_view name, std::string_view text) {
  std::vector<Question> questions;
  std::vector<Sentence> facts;
  Place place{name};
  std::int64_t last = 0;
  while (!text.empty()) {
    ++place.line;
    std::string_view line = bench::take_line(text);
    if (line.empty()) continue;
    const std::string_view digits = bench::take_until(line, ' ');
    const std::optional<std::int64_t> number = bench::number<std::int64_t>(digits);
    if (!number || (*number != 1 && *number != last + 1))
      place.refuse(
          fmt::format("number '{}', expected {} or 1", digits.substr(0, kLongestWord), last + 1));
    if (*number == 1) facts.clear();
    last = *number;
    if (line.find('\t') == std::string_view::npos)
      facts.push_back(parse_sentence(line, '.', place));
    else
      questions.push_back(parse_question(line, facts, place));
  }
  if (questions.empty()) place.refuse("ended without a question");
  return questions;
}

std::optional<BabiFiles> find_babi(int task) {
  for (const char* end : {".txt.gz", ".txt"}) {
    const auto names = file_names(task, end);
    if (const auto folder = bench::find_data("bAbI", {names[0], names[1], names[2]}))
      return BabiFiles{*folder / names[0], *folder / names[1], *folder / names[2]};
  }
  return std::nullopt;
}

std::string babi_missing(int task) {
  return bench::data_missing(file_names(task, ".txt.gz")[0],
                             "or the same without .gz; it is in en-valid-10k of Facebook's bAbI "
                             "tasks; --stories made needs no files");
}

Babi read_babi(const BabiFiles& files) {
  const auto read = [](const fs::path& path) {
    constexpr std::size_t kMaxBytes = std::size_t{64} << 20;
    return parse_babi(path.filename().string(), bench::read_text(path, kMaxBytes));
  };
  return {read(files.train), read(files.valid), read(files.test)};
}

}  // namespace packrnn::rrn

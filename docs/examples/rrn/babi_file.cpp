// Reads the files of bAbI.
#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <memory>

#include "docs/examples/rrn/babi.hpp"

namespace packrnn::rrn {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kLongestWord = 40, kMostWords = 64;
constexpr std::array kParts{"train", "valid", "test"};

/// Where we are in a file, for messages.
struct Place {
  std::string_view name;
  int line = 0;

  [[noreturn]] void refuse(const std::string& what) const {
    throw FileError(fmt::format("{}, line {}: {}", name, line, what));
  }
};

std::string_view take_until(std::string_view& rest, char separator) {
  const std::size_t end = rest.find(separator);
  const std::string_view head = rest.substr(0, end);
  rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
  return head;
}

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
    const std::string_view word = take_until(text, ' ');
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
  question.text = parse_sentence(take_until(text, '\t'), '?', place);
  question.answer = parse_word(take_until(text, '\t'), place);
  if (question.answer.empty()) place.refuse("a question without an answer");
  return question;
}

/// A regular file, unpacked if it is packed. Throws FileError.
std::string read_file(const fs::path& path) {
  constexpr std::size_t kMostBytes = std::size_t{64} << 20, kPiece = std::size_t{1} << 16;
  const auto refuse = [&](const std::string& what) {
    return FileError(fmt::format("{}: {}", path.filename().string(), what));
  };
  if (!fs::is_regular_file(path)) throw refuse("not a regular file");
  struct Close {
    void operator()(gzFile file) const { gzclose(file); }
  };
  const std::unique_ptr<gzFile_s, Close> file(gzopen(path.c_str(), "rb"));
  if (!file) throw refuse("cannot be opened");
  std::string text;
  while (true) {
    const std::size_t size = text.size();
    text.resize(size + kPiece);
    const int count = gzread(file.get(), text.data() + size, kPiece);
    int error = Z_OK;
    const char* const what = gzerror(file.get(), &error);
    if (count < 0 || error != Z_OK) throw refuse(fmt::format("cannot be unpacked ({})", what));
    text.resize(size + static_cast<std::size_t>(count));
    if (count == 0) return text;
    if (text.size() > kMostBytes)
      throw refuse(fmt::format("more than {} bytes when unpacked", kMostBytes));
  }
}

fs::path data_folder() {
  const char* named = std::getenv("PACKRNN_DATA_DIR");
  return named && *named ? fs::path(named)
                         : fs::path(PACKRNN_SOURCE_DIR).parent_path() / "shared/data";
}

std::optional<fs::path> find_part(const fs::path& folder, int task, const char* part) {
  for (const char* end : {".txt.gz", ".txt"}) {
    fs::path path = folder / fmt::format("qa{}_{}{}", task, part, end);
    std::error_code ignored;
    if (fs::exists(path, ignored)) return path;
  }
  return std::nullopt;
}

}  // namespace

std::vector<Question> parse_babi(std::string_view name, std::string_view text) {
  std::vector<Question> questions;
  std::vector<Sentence> facts;
  Place place{name};
  std::int64_t last = 0;
  while (!text.empty()) {
    ++place.line;
    std::string_view line = take_until(text, '\n');
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    const std::string_view digits = take_until(line, ' ');
    std::int64_t number = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
    if (error != std::errc{} || end != digits.data() + digits.size() ||
        (number != 1 && number != last + 1))
      place.refuse(
          fmt::format("number '{}', expected {} or 1", digits.substr(0, kLongestWord), last + 1));
    if (number == 1) facts.clear();
    last = number;
    if (line.find('\t') == std::string_view::npos)
      facts.push_back(parse_sentence(line, '.', place));
    else
      questions.push_back(parse_question(line, facts, place));
  }
  if (questions.empty()) place.refuse("ended without a question");
  return questions;
}

std::optional<fs::path> find_babi(int task) {
  for (const fs::path& folder : {data_folder() / "bAbI", data_folder()})
    if (std::ranges::all_of(
            kParts, [&](const char* part) { return find_part(folder, task, part).has_value(); }))
      return folder;
  return std::nullopt;
}

std::string babi_missing(int task) {
  return fmt::format(
      "no qa{0}_train, qa{0}_valid and qa{0}_test.txt.gz or .txt in {1} (set PACKRNN_DATA_DIR to "
      "their folder; they are in en-valid-10k of the bAbI tasks of Facebook, research.facebook.com/"
      "downloads/babi; --stories made needs none)",
      task, data_folder().lexically_normal().string());
}

Babi read_babi(const fs::path& folder, int task) {
  const auto read = [&](const char* part) {
    const std::optional<fs::path> path = find_part(folder, task, part);
    if (!path) throw FileError(babi_missing(task));
    return parse_babi(path->filename().string(), read_file(*path));
  };
  return {read(kParts[0]), read(kParts[1]), read(kParts[2])};
}

}  // namespace packrnn::rrn

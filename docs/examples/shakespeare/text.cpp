#include "docs/examples/shakespeare/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <packrnn/runtime/error.hpp>
#include <set>

#include "bench/data.hpp"
#include "bench/text.hpp"

namespace packrnn::shakespeare {
namespace {

constexpr const char* kFolder = "tinyshakespeare";
constexpr const char* kFile = "input.txt";
constexpr const char* kCompressed = "input.txt.gz";

}  // namespace

Alphabet::Alphabet(std::string_view text) {
  const std::set<char> all(text.begin(), text.end());
  characters_.assign(all.begin(), all.end());
}

std::vector<std::int64_t> Alphabet::numbers(std::string_view text) const {
  std::vector<std::int64_t> result;
  result.reserve(text.size());
  for (const char c : text) {
    const auto found = std::ranges::find(characters_, c);
    if (found == characters_.end())
      throw InvalidArgument(fmt::format("the text has no character '{}'", c));
    result.push_back(found - characters_.begin());
  }
  return result;
}

std::optional<std::filesystem::path> find_text() {
  for (const char* const file : {kFile, kCompressed})
    if (const auto folder = bench::find_data(kFolder, {file})) return *folder / file;
  return std::nullopt;
}

std::string text_missing() {
  return bench::data_missing(
      kFile,
      "github.com/karpathy/char-rnn has it as data/tinyshakespeare/input.txt; "
      "input.txt.gz will do");
}

Text read_text(const std::filesystem::path& path) {
  constexpr std::size_t kMaxBytes = std::size_t{64} << 20, kHeldOut = 60'000;
  const std::string text = bench::read_text(path, kMaxBytes);
  const std::size_t train = text.size() * 9 / 10;
  if (text.size() < train + kHeldOut)
    throw FileError(
        fmt::format("{}: {} characters, expected 600000 or more", path.string(), text.size()));
  const Alphabet alphabet(text);
  const std::string_view all = text;
  return {alphabet, alphabet.numbers(all.substr(0, train)),
          alphabet.numbers(all.substr(train, kHeldOut))};
}

}  // namespace packrnn::shakespeare

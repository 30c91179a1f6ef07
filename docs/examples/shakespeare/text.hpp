// Tiny Shakespeare: 1 115 394 characters of 65 kinds (selected by A. Karpathy for char-rnn).
// The repository ships none of it: it is read where bench/data.hpp finds it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace packrnn::shakespeare {

/// Characters as numbers, and back.
class Alphabet {
 public:
  /// The bytes of `text`, in their order.
  explicit Alphabet(std::string_view text);

  std::int64_t size() const noexcept { return static_cast<std::int64_t>(characters_.size()); }
  char character(std::int64_t number) const {
    return characters_[static_cast<std::size_t>(number)];
  }
  /// Throws InvalidArgument for a character that the text does not have.
  std::vector<std::int64_t> numbers(std::string_view text) const;

 private:
  std::string characters_;
};

/// The first nine tenths are learnt from, the first 60 000 characters after them are held out.
struct Text {
  Alphabet alphabet;
  std::vector<std::int64_t> train, held_out;
};

/// Where the text is, plain or compressed. Nothing where it is not.
std::optional<std::filesystem::path> find_text();
std::string text_missing();
/// Throws FileError; also for a text that is too short to hold anything out.
Text read_text(const std::filesystem::path& path);

}  // namespace packrnn::shakespeare

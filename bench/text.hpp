// Reading text without copies: lines, fields and numbers.
#pragma once

#include <charconv>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

namespace packrnn::bench {

/// The text up to `separator` (or to the end), without it; `rest` loses both.
inline std::string_view take_until(std::string_view& rest, char separator) {
  const std::size_t end = rest.find(separator);
  const std::string_view head = rest.substr(0, end);
  rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
  return head;
}

/// The next line without its end, which may be a line feed or carriage return and line feed.
inline std::string_view take_line(std::string_view& rest) {
  std::string_view line = take_until(rest, '\n');
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

/// The number that all of `text` is, or nothing.
template <class Number>
std::optional<Number> number(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// The whole of a regular file of at most `max_bytes`, which may be compressed by gzip: that many
/// bytes then after it was decompressed. Throws FileError.
std::string read_text(const std::filesystem::path& path, std::size_t max_bytes);

}  // namespace packrnn::bench

#include "bench/text.hpp"

#include <fmt/format.h>
#include <zlib.h>

#include <memory>
#include <packrnn/runtime/error.hpp>

namespace packrnn::bench {

std::string read_text(const std::filesystem::path& path, std::size_t max_bytes) {
  constexpr std::size_t kPiece = std::size_t{1} << 16;
  std::error_code error;
  const bool regular = std::filesystem::is_regular_file(path, error);
  // Reads what is not compressed as it is.
  const std::unique_ptr<gzFile_s, decltype(&gzclose)> file(
      regular && !error ? gzopen(path.c_str(), "rb") : nullptr, &gzclose);
  if (!file) throw FileError(fmt::format("{}: no readable file", path.string()));
  std::string text;
  while (true) {
    const std::size_t old = text.size();
    text.resize(old + kPiece);
    const int got = gzread(file.get(), text.data() + old, static_cast<unsigned>(kPiece));
    int state = Z_OK;
    const char* const why = gzerror(file.get(), &state);
    if (got < 0 || state != Z_OK)
      throw FileError(fmt::format("{}: damaged after {} bytes: {}", path.string(), old, why));
    text.resize(old + static_cast<std::size_t>(got));
    if (text.size() > max_bytes)
      throw FileError(fmt::format("{}: more than {} bytes, expected at most that many",
                                  path.string(), max_bytes));
    if (got == 0) return text;
  }
}

}  // namespace packrnn::bench

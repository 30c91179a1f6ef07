#include "bench/text.hpp"

#include <fmt/format.h>

#include <fstream>
#include <packrnn/runtime/error.hpp>

namespace packrnn::bench {

std::string read_text(const std::filesystem::path& path, std::size_t max_bytes) {
  std::error_code error;
  const bool regular = std::filesystem::is_regular_file(path, error);
  const std::uintmax_t size = regular ? std::filesystem::file_size(path, error) : 0;
  std::ifstream file(path, std::ios::binary);
  if (!regular || error || !file)
    throw FileError(fmt::format("{}: no readable file", path.string()));
  if (size > max_bytes)
    throw FileError(
        fmt::format("{}: {} bytes, expected at most {}", path.string(), size, max_bytes));
  std::string text(size, '\0');
  file.read(text.data(), static_cast<std::streamsize>(size));
  if (file.gcount() != static_cast<std::streamsize>(size))
    throw FileError(
        fmt::format("{}: ended after {} of {} bytes", path.string(), file.gcount(), size));
  return text;
}

}  // namespace packrnn::bench

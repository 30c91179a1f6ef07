// Files for the safetensors tests: a folder that goes away, and bytes put together by hand.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <stdexcept>
#include <string>

#include "packrnn/layers/safetensors.hpp"

namespace packrnn::tests {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string path = (std::filesystem::temp_directory_path() / "packrnn-test-XXXXXX").string();
    if (::mkdtemp(path.data()) == nullptr)
      throw std::runtime_error("cannot make a temporary folder");
    path_ = path;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  const std::filesystem::path& path() const { return path_; }
  std::ptrdiff_t files() const {
    return std::distance(std::filesystem::directory_iterator(path_), {});
  }

 private:
  std::filesystem::path path_;
};

/// A file with any header length in front of `rest`.
inline std::string raw_file(std::uint64_t header_length, const std::string& rest) {
  std::string file(sizeof(header_length), '\0');
  std::memcpy(file.data(), &header_length, sizeof(header_length));
  return file + rest;
}

/// A file whose header length is right; the data are `data_bytes` bytes 1, 2, 3...
inline std::string file_with(const std::string& header, std::size_t data_bytes) {
  std::string data(data_bytes, '\0');
  for (std::size_t i = 0; i < data_bytes; ++i) data[i] = static_cast<char>(i + 1);
  return raw_file(header.size(), header + data);
}

/// One tensor of the header.
inline std::string entry(const std::string& name, const std::string& dtype,
                         const std::string& shape, const std::string& offsets) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":[" + shape +
         "],\"data_offsets\":[" + offsets + "]}";
}

/// Braces around entries. (GCC 12 warns of an overlap that cannot be when "{" + ... is spelled
/// out.)
inline std::string object(const std::string& entries) {
  std::string text(1, '{');
  text += entries;
  text += '}';
  return text;
}

inline SafeTensors parse(const std::string& file) {
  return SafeTensors::from_bytes(std::as_bytes(std::span(file)), "some.safetensors");
}

/// The message of the FileError that reading `file` throws; "" when it throws none.
inline std::string refusal(const std::string& file) {
  try {
    parse(file);
  } catch (const FileError& error) {
    return error.what();
  }
  return "";
}

inline void write_file(const std::filesystem::path& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace packrnn::tests

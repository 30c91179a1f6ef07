// The header of a safetensors file, read and checked; private to the library.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "packrnn/runtime/dtype.hpp"

namespace packrnn {

/// A dtype of the format.
struct SafeTensorsDtype {
  std::string_view name;
  unsigned bits;  // of one element
  std::optional<Dtype> ours;
};

struct SafeTensorsEntry {
  const SafeTensorsDtype* dtype = nullptr;
  std::vector<std::int64_t> extents;
  std::uint64_t begin = 0;  // bytes from the start of the data
  std::uint64_t end = 0;
};

struct SafeTensorsHeader {
  std::vector<std::string> names;  // order of the header
  std::vector<SafeTensorsEntry> entries;
  std::vector<std::size_t> by_name;  // indices in the order of the names
  std::map<std::string, std::string> metadata;
  std::uint64_t data_begin = 0;  // bytes from the start of the file

  /// The index of a name, or names.size().
  std::size_t find(std::string_view name) const noexcept;
};

/// How packrnn's dtype is spelled in a file.
std::string_view safetensors_name(Dtype dtype);

/// Reads the header of a whole file of `file.size()` bytes. Throws FileError("'name': reason").
SafeTensorsHeader read_safetensors_header(std::span<const std::byte> file, const std::string& name);

/// A name out of a file, fit for a message: quoted, cut, control characters written out.
std::string shown(std::string_view text);

}  // namespace packrnn

// Files in the safetensors format: named tensors behind a JSON header, nothing that is executed.
// Reading trusts no number of the file; writing replaces a file as a whole or not at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "packrnn/layers/parameters.hpp"
#include "packrnn/runtime/tensor.hpp"

namespace packrnn {

struct SafeTensorsHeader;  // private: layers/safetensors_header.hpp

/// A file opened for reading. Cheap to copy (copies share the mapping); const use from several
/// threads is safe.
class SafeTensors {
 public:
  /// Longest header that is read, in bytes; other implementations of the format have the same
  /// limit.
  static constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;

  /// Maps the file and checks its whole header: lengths, JSON, names, dtypes, shapes, and that the
  /// tensors fill the rest of the file without hole or overlap. Throws FileError naming the file
  /// and the reason; memory used until then is proportional to the header. Never waits: what is not
  /// a regular file is refused.
  ///
  /// The mapping is of the file that is there now; replacing it later (rename) changes nothing
  /// here. Nobody may shorten that same file while it is mapped: the system answers a read of what
  /// is gone with SIGBUS.
  static SafeTensors open(const std::filesystem::path& path);

  /// The same from memory, which is copied; `name` stands for the file's name in messages.
  static SafeTensors from_bytes(std::span<const std::byte> bytes,
                                const std::string& name = "<memory>");

  /// Names in the order of the header.
  const std::vector<std::string>& names() const noexcept;
  bool contains(std::string_view name) const noexcept;
  /// The dtype, or nothing for one that the format has and packrnn has not (then see dtype_name()).
  /// This and the next two throw InvalidArgument for a name that is not there; none reads data.
  std::optional<Dtype> dtype(std::string_view name) const;
  /// The dtype as the file spells it: "F32", "BOOL", "F8_E4M3".
  std::string_view dtype_name(std::string_view name) const;
  /// Throws Unsupported for more than Shape::kMaxRank dimensions.
  Shape shape(std::string_view name) const;
  /// The file's own strings; empty when it has none.
  const std::map<std::string, std::string>& metadata() const noexcept;

  /// The values, converted to `as` when that is given and another dtype (packrnn::convert).
  /// Otherwise the tensor shares the mapping, which then lives as long as the tensor; a copy is
  /// made only when the file did not align the data to its element size. Pages are private: writing
  /// into the tensor never reaches the file, but is seen by other tensors made from the same name.
  /// Throws InvalidArgument for a name that is not there, Unsupported for a dtype or a rank that
  /// packrnn has not.
  Tensor tensor(std::string_view name, std::optional<Dtype> as = std::nullopt) const;

  /// All tensors whose name starts with `prefix`, in the order of the header, the prefix taken off.
  StateDict state_dict(std::string_view prefix = "") const;

 private:
  SafeTensors(std::shared_ptr<Buffer> storage, const std::string& name);
  std::size_t find(std::string_view name) const;

  std::shared_ptr<Buffer> storage_;  // the whole file
  std::shared_ptr<const SafeTensorsHeader> header_;
};

/// Writes all entries: to a temporary file in the same folder, synced, then renamed over `path`. On
/// any failure (FileError) the temporary file is gone and what `path` named before is untouched.
/// A symbolic link is replaced, not followed. The bytes depend on the arguments alone; names keep
/// their order, every tensor is aligned to its element size.
/// Throws InvalidArgument, before touching the file system, for: a name twice, "__metadata__" as a
/// name, a name or metadata that is not UTF-8, an undefined tensor, memory of another device.
void save_safetensors(const std::filesystem::path& path, const StateDict& state,
                      const std::map<std::string, std::string>& metadata = {});

}  // namespace packrnn

// What was measured on a GPU and is worth keeping between processes: calibrated constants and tuned
// plans, as named numbers in one JSON file. Private. A cache and nothing more: a file that is
// missing, damaged, of another version or not writable costs the measurements, never a call.
//
// Any number of processes and threads may use one file. It is only ever replaced as a whole, and
// who replaces it first takes over what the others wrote, under a lock that dies with its holder.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>

namespace packrnn::kernels::cuda {

class PlanFile {
 public:
  /// Finite numbers by name.
  using Record = std::map<std::string, double>;

  static constexpr int kFormat = 1;
  /// What is read and written at most: a larger file is damaged, older records make room.
  static constexpr std::size_t kMostBytes = std::size_t{4} << 20, kMostRecords = 4096;

  /// An empty path: nothing is found and nothing stored. Nothing is read yet.
  explicit PlanFile(std::filesystem::path path) : path_(std::move(path)) {}

  /// $PACKRNN_CACHE/plans-1.json, or below $XDG_CACHE_HOME/packrnn or ~/.cache/packrnn; empty when
  /// PACKRNN_CACHE is "off" or there is no home. `only_if_asked`: empty without PACKRNN_CACHE.
  static std::filesystem::path from_environment(bool only_if_asked = false);

  /// Never throws for what is, or is not, on the disk.
  std::optional<Record> find(const std::string& key) const;
  /// False when it could not be kept; then note() says why, unless there is simply no place for it.
  bool store(const std::string& key, const Record& record);
  /// Why the last find() or store() ignored the file; empty if it did not.
  const std::string& note() const noexcept { return note_; }

 private:
  std::filesystem::path path_;
  mutable std::string note_;
};

}  // namespace packrnn::kernels::cuda

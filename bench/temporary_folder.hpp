// A folder for files that pass between processes.
#pragma once

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <packrnn/runtime/error.hpp>
#include <string>

namespace packrnn::bench {

/// Goes with all that is in it.
class TemporaryFolder {
 public:
  /// Throws FileError.
  explicit TemporaryFolder(const char* name) {
    std::string path =
        (std::filesystem::temp_directory_path() / fmt::format("{}-XXXXXX", name)).string();
    if (!mkdtemp(path.data())) throw FileError(fmt::format("cannot make a folder like {}", path));
    path_ = path;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace packrnn::bench

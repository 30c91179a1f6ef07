#include "bench/data.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <system_error>

namespace packrnn::bench {
namespace {

namespace fs = std::filesystem;

fs::path data_folder() {
  const char* named = std::getenv("PACKRNN_DATA_DIR");
  return named && *named ? fs::path(named)
                         : fs::path(PACKRNN_SOURCE_DIR).parent_path() / "shared/data";
}

}  // namespace

std::optional<fs::path> find_data(std::string_view name,
                                  std::initializer_list<std::string_view> files) {
  for (const fs::path& folder : {data_folder() / name, data_folder()}) {
    const auto is_there = [&folder](std::string_view file) {
      std::error_code ignored;
      return fs::exists(folder / file, ignored);
    };
    if (std::ranges::all_of(files, is_there)) return folder;
  }
  return std::nullopt;
}

std::string data_missing(std::string_view file, std::string_view source) {
  return fmt::format("no {} in {} (set PACKRNN_DATA_DIR to its folder; {})", file,
                     data_folder().lexically_normal().string(), source);
}

}  // namespace packrnn::bench

// Where data sets are that the repository does not ship: the folder PACKRNN_DATA_DIR names, else
// ../shared/data beside the source tree.
#pragma once

#include <filesystem>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

namespace packrnn::bench {

/// The folder that has all of `files`: the data folder or `name` below it. Nothing where neither
/// has.
std::optional<std::filesystem::path> find_data(std::string_view name,
                                               std::initializer_list<std::string_view> files);

/// One line for the user that has not got them: where `file` was looked for, and, in `source`,
/// where to get it.
std::string data_missing(std::string_view file, std::string_view source);

}  // namespace packrnn::bench

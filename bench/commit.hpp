#pragma once

#include <string_view>

namespace packrnn::bench {

/// The commit this was built from, as git describes it (commit.cmake); "unknown" without git.
extern const std::string_view kCommit;

}  // namespace packrnn::bench

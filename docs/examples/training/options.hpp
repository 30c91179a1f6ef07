// What every example that trains can be told.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

namespace packrnn::training {

struct Options {
  std::int64_t seed = 1;
  int threads = 0;         // 0: all
  std::string checkpoint;  // "": none
  std::string curve;       // "": none
  std::int64_t stop_after = 0;
};

/// Given twice, the last one counts.
void add_options(CLI::App& app, Options& options);

}  // namespace packrnn::training

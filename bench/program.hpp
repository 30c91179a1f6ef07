// What the main() of every benchmark does.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>

namespace packrnn::bench {

/// Negative: go on. Else the status to end with: help was asked for, or the command line is wrong;
/// what there is to say has been said.
inline int parse_command_line(CLI::App& app, int argc, char** argv) {
  constexpr int kUsage = 2;
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsage;
  }
  return -1;
}

/// The status that body() returns, or 1 when it throws, which is said on stderr.
template <class Body>
int run_program(const char* name, Body&& body) {
  constexpr int kFailed = 1;
  try {
    return body();
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}: {}\n", name, error.what());
  }
  return kFailed;
}

}  // namespace packrnn::bench

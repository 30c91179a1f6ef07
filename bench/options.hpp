// What packrnn_bench can be told on its command line.
#pragma once

#include <algorithm>
#include <cstdint>
#include <packrnn/runtime/device.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace packrnn::bench {

/// Name of the real data among the mixes, for --mix.
inline constexpr const char* kRealData = "JapaneseVowels";

struct Options {
  // What is run.
  std::string cell = "lstm";
  std::int64_t hidden = 256;
  std::int64_t layers = 1;
  bool bidirectional = false;
  // On what.
  std::int64_t batch = 64;
  std::vector<std::string> mixes;  // empty: all, and the real data
  std::string lengths_file;
  std::int64_t features = 0;  // 0: each mix's own
  std::uint64_t seed = 1;
  bool list = false;
  // How.
  int threads = 0;  // 0: all
  bool pin = true;
  bool quick = false;
  double budget_seconds = 0.0;     // 0: 60, or 10 when quick
  std::string json_file;           // empty: in the build folder
  std::string device;              // empty: the best there is
  std::vector<std::string> peers;  // empty: all that there are for the device
  std::string weights = "full";    // as the CPU stores them: full, f16 or bf16
  std::vector<std::string> dtypes{"f32", "bf16", "f16"};  // of the layers; on the CPU f32 or f64
  // On a GPU only.
  std::vector<std::string> maths{"exact", "tf32"};      // of f32
  std::vector<std::string> algorithms{"auto", "step"};  // of ours
  // Whether these were said, or are defaults.
  bool chose_cell = false, chose_hidden = false, chose_batch = false, chose_dtype = false;
  std::string gpu_only;  // an option that was said and means nothing on the CPU; empty: none
  std::string command;   // as it was typed

  double budget() const { return budget_seconds > 0.0 ? budget_seconds : quick ? 10.0 : 60.0; }
  std::int64_t batches() const { return quick ? 2 : 3; }
  bool wants_peer(std::string_view name) const {
    return peers.empty() || std::find(peers.begin(), peers.end(), name) != peers.end();
  }
};

struct Parsed {
  Options options;
  /// The program is to end with this status: help was asked for, or the command line is wrong; what
  /// there is to say has been said. Negative: go on.
  int exit_status = -1;
};

/// The device that --device names. Throws InvalidArgument for what is none.
Device device_of(const std::string& name);

Parsed parse_options(int argc, char** argv);

}  // namespace packrnn::bench

// PyTorch, as something to compare with: peers/torch_rnn.py in a process of its own, once for all
// problems, with JSON both ways.
#pragma once

#include <cstddef>
#include <packrnn/runtime/context.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "bench/device/cases.hpp"
#include "bench/device/timing.hpp"

namespace packrnn::bench {

struct TorchRow {
  std::size_t problem = 0;  // index
  std::string what;         // "packed" or "padded"
  Series series;
};

/// How far PyTorch's output was from ours for a small layer.
struct TorchCheck {
  std::string cell;
  double largest = 0.0;  // may be NaN
};

struct TorchAnswer {
  std::string version = {};
  std::string absent = {};  // why there is none; empty: there is
  std::vector<TorchRow> rows = {};
  std::vector<TorchCheck> checks = {};
};

/// Throws FileError saying what is wrong with an answer to a request of `problems` problems.
TorchAnswer parse_torch_answer(std::string_view text, std::size_t problems);

struct TorchRequest {
  std::string device;  // "cuda:0", or "cpu" to try the script out
  double seconds = 1.0;
  std::size_t flush_bytes = 0;
};

/// Never throws: what goes wrong is the reason for PyTorch's absence.
TorchAnswer run_torch(const std::vector<Problem>& problems, const TorchRequest& request) noexcept;

}  // namespace packrnn::bench

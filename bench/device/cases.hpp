// The problems that packrnn_bench runs on a GPU: layers, batches of lengths, dtypes and math.
#pragma once

#include <cstdint>
#include <packrnn/runtime/context.hpp>
#include <packrnn/runtime/dtype.hpp>
#include <string>
#include <vector>

#include "bench/mixes.hpp"
#include "bench/options.hpp"

namespace packrnn::bench {

struct Mode {
  Dtype dtype = Dtype::f32;
  F32Math math = F32Math::exact;  // of f32 only

  /// "f32 exact", "f32 tf32", "bf16".
  std::string name() const;
};

struct Problem {
  std::string cell;  // "lstm", "gru" or "rnn"
  std::string mix;
  std::int64_t input = 0, hidden = 0;
  BatchLengths lengths;
  Mode mode;

  std::int64_t batch() const { return static_cast<std::int64_t>(lengths.size()); }
  std::int64_t steps() const;
  std::int64_t tokens() const;
  bool equal_lengths() const;
  std::int64_t gates() const { return cell == "lstm" ? 4 : cell == "gru" ? 3 : 1; }
  /// "lstm, uniform, H 512, B 64, f32 exact".
  std::string name() const;
};

/// Name of the mix of equal lengths, which --mix does not know.
inline constexpr const char* kEqual = "equal";

/// What the options ask for; without wishes, the shapes that targets were set for, those first.
/// `tiny` makes all of them so small that a simulated device is done in seconds.
std::vector<Problem> device_problems(const Options& options, bool tiny);

}  // namespace packrnn::bench

// The batches that packed and padded runs are compared on, made ready before anything is measured.
#pragma once

#include <cstdint>
#include <packrnn/layers/packing.hpp>
#include <packrnn/runtime/context.hpp>
#include <string>
#include <vector>

#include "bench/japanese_vowels.hpp"
#include "bench/mixes.hpp"

namespace packrnn::bench {

struct Batch {
  Tensor padded;          // [T, N, I], zeros past the end of each sequence
  PackedSequence packed;  // the same values
};

struct Workload {
  std::string name;
  std::int64_t features = 0;  // I
  std::vector<Batch> batches;
  /// The same sequences sorted by length and batched anew, padded [T, N, I]: what who pads does
  /// against padding. Empty when there is one batch, which sorting does not change.
  std::vector<Tensor> bucketed;
};

/// Of how many sequences a batch is, and of what its values are: f32 or f64.
struct BatchOptions {
  std::int64_t batch = 64;
  std::uint64_t seed = 1;
  Dtype dtype = Dtype::f32;
};

/// `count` batches with lengths drawn from the mix and values from U(-1, 1). `features` 0: the
/// mix's own.
Workload make_workload(Context& context, const Mix& mix, std::int64_t count, std::int64_t features,
                       const BatchOptions& options);

/// Every recording of both sets once, shuffled (the files are sorted by speaker).
Workload make_workload(Context& context, const JapaneseVowels& data, const BatchOptions& options);

/// Sizes of a workload, summed over its batches.
struct Size {
  std::int64_t batches = 0, sequences = 0;  // sequences: of the largest batch
  std::int64_t steps = 0;                   // T of the longest
  std::int64_t tokens = 0, volume = 0;      // valid tokens, and with padding
  std::int64_t bucketed_volume = 0;         // with padding, bucketed

  double padding() const { return 1.0 - 1.0 / bound(); }
  /// The largest speed-up that leaving out padding can give.
  double bound() const { return static_cast<double>(volume) / static_cast<double>(tokens); }
};
Size size_of(const Workload& workload);

}  // namespace packrnn::bench

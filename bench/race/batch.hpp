// A workload made ready: our layer, its input, and what it gives.
#pragma once

#include <filesystem>
#include <packrnn/layers/packing.hpp>
#include <packrnn/layers/recurrent.hpp>
#include <packrnn/runtime/context.hpp>
#include <string>
#include <vector>

#include "bench/race/results.hpp"

namespace packrnn::bench {

class RaceBatch {
 public:
  /// Runs the layer once.
  RaceBatch(Context& context, const RaceWorkload& workload, const std::string& cell);
  RaceBatch(const RaceBatch&) = delete;
  RaceBatch& operator=(const RaceBatch&) = delete;

  /// Parameters, x [T, N, I] and lengths [N], for other engines (safetensors).
  void save(const std::filesystem::path& file) const;
  /// Packed; padded as if all sequences were as long as the longest; packed by a layer that keeps
  /// its weights in bf16. They use this batch.
  std::vector<Contestant> ours();
  /// Of another engine's y [T, N, D*H], float32 as raw bytes, with ours where there are tokens:
  /// "bits", the largest difference, or "WRONG: ...". Throws FileError.
  std::string agreement(const std::filesystem::path& output) const;

 private:
  Context& context_;
  Recurrent layer_, stored_;
  Tensor padded_;
  PackedSequence packed_;
  Tensor expected_;  // [total, D*H]
};

}  // namespace packrnn::bench

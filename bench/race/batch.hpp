// A workload made ready: our layer, its input, and what it gives.
#pragma once

#include <filesystem>
#include <functional>
#include <packrnn/layers/packing.hpp>
#include <packrnn/layers/recurrent.hpp>
#include <packrnn/runtime/context.hpp>
#include <string>
#include <vector>

#include "bench/race/results.hpp"

namespace packrnn::bench {

class RaceBatch {
 public:
  RaceBatch() = default;
  virtual ~RaceBatch() = default;
  RaceBatch(const RaceBatch&) = delete;
  RaceBatch& operator=(const RaceBatch&) = delete;

  virtual bool trains() const = 0;
  /// Parameters, x [T, N, I] and lengths [N], for other engines (safetensors).
  virtual void save(const std::filesystem::path& file) const = 0;
  /// Packed, padded and perhaps one more way. They use this batch.
  virtual std::vector<Contestant> ours() = 0;
  /// Of what another engine wrote, float32 as raw bytes, with ours: "bits", the largest difference,
  /// or "WRONG: ...". Throws FileError.
  virtual std::string agreement(const std::filesystem::path& output) const = 0;
};

class ForwardBatch final : public RaceBatch {
 public:
  /// Runs the layer once.
  ForwardBatch(Context& context, const RaceWorkload& workload, const std::string& cell);

  bool trains() const override { return false; }
  void save(const std::filesystem::path& file) const override;
  /// Packed; padded as if all sequences were as long as the longest; packed by a layer that keeps
  /// its weights in bf16.
  std::vector<Contestant> ours() override;
  /// Of y [T, N, D*H], where there are tokens.
  std::string agreement(const std::filesystem::path& output) const override;

 private:
  Context& context_;
  Recurrent layer_, stored_;
  Tensor padded_;
  PackedSequence packed_;
  Tensor expected_;  // [total, D*H]
};

// For both:

inline constexpr double kAllowed = 1e-4;  // between engines in f32

/// Of so many passes, after one that does not count.
Seconds timed(int passes, const std::function<void()>& pass);

/// A file of so many numbers. Throws FileError.
std::vector<float> read_floats(const std::string& file, std::size_t count);

}  // namespace packrnn::bench

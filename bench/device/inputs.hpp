// The layer and the batch of a problem, in a GPU's memory, made through the public calls.
#pragma once

#include <cstdint>
#include <packrnn/layers/recurrent.hpp>
#include <string>
#include <vector>

#include "bench/device/cases.hpp"
#include "bench/peers/cudnn.hpp"

namespace packrnn::bench {

Recurrent make_layer(const Problem& problem, std::uint64_t seed);

/// One batch in every layout. Values are from U(-1, 1), repeated after 65537 of them, which no row
/// length divides: drawing 10^8 numbers would take longer than all the rest.
class ProblemInput {
 public:
  ProblemInput(Context& context, const Problem& problem, std::uint64_t seed);

  const PackedSequence& packed() const { return packed_; }
  const Tensor& padded() const { return seq_major_; }
  DeviceInput view() const;
  /// Packs the padded batch again; empty when the bits are those of packed(), else what is wrong.
  std::string check_packing(Context& context) const;

 private:
  PackedSequence packed_;
  Tensor seq_major_, batch_major_;
};

/// The values of a tensor, wherever it is, as f32 on the host; waits.
std::vector<float> host_values(Context& context, const TensorView& view);

}  // namespace packrnn::bench

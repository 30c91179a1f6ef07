// Long short-term memory: c' = s(f) c + s(i) tanh(g), h' = s(o) tanh(c'), projected when asked.
#pragma once

#include "packrnn/layers/recurrent.hpp"

namespace packrnn {

struct LstmOptions {
  std::int64_t input_size = 0;
  std::int64_t hidden_size = 0;
  std::int64_t num_layers = 1;
  bool bias = true;
  bool batch_first = false;
  /// Probability, 0 .. 1, between layers, in training only.
  double dropout = 0.0;
  bool bidirectional = false;
  /// 0 < proj_size < hidden_size: h is W_hr h' of that width.
  std::int64_t proj_size = 0;
  /// Any floating one; f16 and bf16 compute on a GPU only, with sums and cell states in f32.
  Dtype dtype = Dtype::f32;
  /// f16 or bf16: f32 on the CPU with its weights rounded once to 16 bits, for inference: half the
  /// memory, and faster where few sequences live, because reading weights is all a step does then.
  /// Everything else is f32 (docs/math.md says how far results move). Parameters keep their values.
  WeightStorage weight_storage = WeightStorage::full;
  /// Of the initial parameters. Equal seeds give equal layers.
  std::uint64_t seed = 0;
};

class Lstm : public Recurrent {
 public:
  /// Throws InvalidArgument naming the option. Parameters are drawn as reset_parameters() does.
  explicit Lstm(const LstmOptions& options);
};

}  // namespace packrnn

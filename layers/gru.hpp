// Gated recurrent unit: h' = (1 - z) n + z h, in both published forms of the reset gate.
#pragma once

#include "packrnn/layers/recurrent.hpp"

namespace packrnn {

struct GruOptions {
  std::int64_t input_size = 0;
  std::int64_t hidden_size = 0;
  std::int64_t num_layers = 1;
  bool bias = true;
  bool batch_first = false;
  double dropout = 0.0;
  bool bidirectional = false;
  /// true: n = tanh(W_in x + b_in + r (W_hn h + b_hn)), as PyTorch and cuDNN;
  /// false: n = tanh(W_in x + b_in + W_hn (r h) + b_hn), as the original paper and ONNX's default.
  bool reset_after = true;
  /// Any floating one; f16 and bf16 compute on a GPU only, with sums and cell states in f32.
  Dtype dtype = Dtype::f32;
  /// As LstmOptions.
  WeightStorage weight_storage = WeightStorage::full;
  std::uint64_t seed = 0;
};

class Gru : public Recurrent {
 public:
  explicit Gru(const GruOptions& options);
};

}  // namespace packrnn

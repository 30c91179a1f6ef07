// The plain recurrent layer: h' = tanh or relu of W_ih x + b_ih + W_hh h + b_hh.
#pragma once

#include "packrnn/layers/recurrent.hpp"

namespace packrnn {

enum class Nonlinearity : std::uint8_t { tanh, relu };

struct RnnOptions {
  std::int64_t input_size = 0;
  std::int64_t hidden_size = 0;
  std::int64_t num_layers = 1;
  Nonlinearity nonlinearity = Nonlinearity::tanh;
  bool bias = true;
  bool batch_first = false;
  double dropout = 0.0;
  bool bidirectional = false;
  /// Any floating one; f16 and bf16 compute on a GPU only, with sums and cell states in f32.
  Dtype dtype = Dtype::f32;
  /// As LstmOptions.
  WeightStorage weight_storage = WeightStorage::full;
  std::uint64_t seed = 0;
};

class Rnn : public Recurrent {
 public:
  explicit Rnn(const RnnOptions& options);
};

}  // namespace packrnn

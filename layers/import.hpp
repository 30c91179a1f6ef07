// Weights that other systems stored in their own gate order and layout, as state dicts with
// PyTorch's names. Plain functions over tensors: reading the other system's file is the caller's.
//
// What the weights alone do not say is the caller's to check: other activations than sigmoid and
// tanh, clipping, coupled gates.
//
// Every tensor must be defined unless marked optional, lie in host memory, and have the same
// floating dtype as the others of its layer, which the result keeps. Everything else throws
// InvalidArgument naming the tensor and what was expected. Sizes follow from the shapes. Letters: D
// directions, G gates (LSTM 4, GRU 3, RNN 1), I input, H hidden.
#pragma once

#include <cstdint>
#include <vector>

#include "packrnn/layers/parameters.hpp"

namespace packrnn {

/// Which layer of the stack, and which direction of it, the imported names shall have.
struct ImportPlace {
  std::int64_t layer = 0;
  bool reverse = false;
};

struct ImportedWeights {
  /// weight_ih_l0 and so on; without the two biases when the source has none.
  StateDict state;
  /// GRU: whether the reset gate acts after the recurrent product. A layer of the other form would
  /// take the same weights and be off by several percent, so carry this into its options.
  bool reset_after = true;
};

// --- ONNX: operators LSTM, GRU, RNN. Gates i o f c and z r h.

struct OnnxWeights {
  TensorView w;                      // [D, G*H, I]
  TensorView r;                      // [D, G*H, H]
  TensorView b = {};                 // [D, 2*G*H], input biases then recurrent ones; optional
  TensorView p = {};                 // peephole weights: Unsupported when defined (LSTM only)
  bool linear_before_reset = false;  // the GRU's attribute, ONNX's default
};

/// Both directions when D is 2. An operator with direction "reverse" has D = 1, and comes out here
/// as the forward direction.
ImportedWeights import_onnx_lstm(const OnnxWeights& weights, std::int64_t layer = 0);
ImportedWeights import_onnx_gru(const OnnxWeights& weights, std::int64_t layer = 0);
ImportedWeights import_onnx_rnn(const OnnxWeights& weights, std::int64_t layer = 0);

// --- Keras: layers LSTM, GRU, SimpleRNN. Gates i f c o and z r h; matrices are transposed.

struct KerasWeights {
  TensorView kernel;            // [I, G*H]
  TensorView recurrent_kernel;  // [H, G*H]
  TensorView bias = {};     // [G*H]; GRU with reset_after [2, G*H], input then recurrent; optional
  bool reset_after = true;  // the GRU's argument, Keras's default; must fit the shape of the bias
};

/// One direction; for a Bidirectional wrapper call twice and join the two states. A single bias
/// becomes bias_ih, and bias_hh is zero.
ImportedWeights import_keras_lstm(const KerasWeights& weights, const ImportPlace& place = {});
ImportedWeights import_keras_gru(const KerasWeights& weights, const ImportPlace& place = {});
ImportedWeights import_keras_rnn(const KerasWeights& weights, const ImportPlace& place = {});

// --- cuDNN: gates i f g o and r z n, one matrix each.

enum class CudnnMode : std::uint8_t { lstm, gru, rnn };

/// The matrices of one pseudo-layer, as cudnnGetRNNWeightParams hands them out: the index is
/// linLayerID.
struct CudnnLayer {
  CudnnMode mode = CudnnMode::lstm;
  /// 2*G of them: [H, I] for the first half, [H, P] for the second. An LSTM with projection has a
  /// ninth, [P, H]; P is H without.
  std::vector<TensorView> matrices;
  /// Empty (no bias) or 2*G of them, [H] each. In the modes with a single bias one half is
  /// undefined, and counts as zero.
  std::vector<TensorView> biases;
};

ImportedWeights import_cudnn_layer(const CudnnLayer& weights, const ImportPlace& place = {});

/// A whole weight space: first the matrices of all pseudo-layers (input ones, then recurrent ones),
/// then all biases (the same way). The pseudo-layer is layer * D + direction. No projection.
struct CudnnWeightSpace {
  CudnnMode mode = CudnnMode::lstm;
  TensorView flat;  // [number of parameters], without padding
  std::int64_t input_size = 0;
  std::int64_t hidden_size = 0;
  std::int64_t num_layers = 1;
  bool bidirectional = false;
  bool bias = true;  // two biases per gate; false: none
};

/// All layers. Throws InvalidArgument when the count does not fit the sizes.
ImportedWeights import_cudnn(const CudnnWeightSpace& weights);

}  // namespace packrnn

// The reference that every backend is held against: recurrent layers in double precision, one
// sequence at a time, in plain loops over std::vector<double>. It is written to be checked by
// reading, not to be fast, and includes nothing of the product, so that an error cannot be in both.
//
// Equations, parameter names, gate orders (LSTM i f g o, GRU r z n) and shapes are PyTorch's.
// Letters: T steps, I input size, H hidden size, P = proj_size or H, L layers, D directions,
// G gates (4, 3, 1). Matrices are row-major.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace packrnn::reference {

enum class Cell {
  lstm,
  gru,               // reset gate applied after the recurrent product (PyTorch, cuDNN)
  gru_reset_before,  // reset gate applied to the state before it (original paper, ONNX default)
  rnn_tanh,
  rnn_relu
};

struct Config {
  Cell cell = Cell::lstm;
  std::int64_t input_size = 1;
  std::int64_t hidden_size = 1;
  std::int64_t num_layers = 1;
  std::int64_t proj_size = 0;  // LSTM only; 0 means none
  bool bias = true;
  bool bidirectional = false;

  [[nodiscard]] std::int64_t gates() const;       // G
  [[nodiscard]] std::int64_t directions() const;  // D
  [[nodiscard]] std::int64_t state_size() const;  // P, the width of h and of one output direction
};

struct Parameter {
  std::string name;
  std::vector<std::int64_t> shape;
  std::vector<double> value;
};

// Zero-filled parameters in the order of PyTorch's named_parameters(): per layer, per direction
// weight_ih, weight_hh, bias_ih, bias_hh, weight_hr, each present only when the layer has it.
// Throws std::invalid_argument for a configuration that PyTorch refuses too.
[[nodiscard]] std::vector<Parameter> parameters(const Config& config);

struct Sequence {
  std::vector<double> x;   // [T, I]; T follows from the size, and may be 0
  std::vector<double> h0;  // [L*D, P], row = layer * D + direction; empty means zeros
  std::vector<double> c0;  // [L*D, H], LSTM only; empty means zeros
};

struct Result {
  std::vector<double> y;    // [T, D*P], forward direction first
  std::vector<double> h_n;  // [L*D, P]; a sequence without steps returns its initial state
  std::vector<double> c_n;  // [L*D, H]; empty unless LSTM
  // [L][T, D*H], LSTM only: the cell state after every step, at the step's own place in time.
  std::vector<double> cells;
  // The largest absolute value of any partial sum in any dot product (bias first, then the input
  // terms, then the recurrent ones) and of any cell state. tolerance.hpp needs it: a rounding error
  // is relative to the partial sum it happens in, not to the final value.
  double magnitude = 0.0;
};

// Runs one sequence through all layers. Throws std::invalid_argument when a parameter's name or
// shape, or the size of x, h0 or c0, does not fit the configuration.
[[nodiscard]] Result run(const Config& config, std::span<const Parameter> parameters,
                         const Sequence& sequence);

// d loss / d (output), of the shapes of a Result; empty means zeros.
struct OutputGradients {
  std::vector<double> y, h_n, c_n;
};

struct Gradients {
  std::vector<Parameter> parameters;  // names and shapes as given
  std::vector<double> x, h0, c0;      // of the sequence's shapes; empty where it has none
};

// d loss / d (everything that run() depends on), where `by` is d loss / d (its results). The same
// loops, on numbers that remember how they were made. Throws as run() does, and for a `by` of the
// wrong size.
[[nodiscard]] Gradients gradients(const Config& config, std::span<const Parameter> parameters,
                                  const Sequence& sequence, const OutputGradients& by);

// The same loops in float arithmetic: no oracle, but a model of an honest f32 engine. The test of
// tolerance.hpp uses it to show that the tolerances are neither too small nor slack.
[[nodiscard]] Result run_in_float(const Config& config, std::span<const Parameter> parameters,
                                  const Sequence& sequence);

// y[r] = weight x[r] + bias for x [rows, in], weight [out, in], bias [out] or empty.
[[nodiscard]] std::vector<double> linear(const std::vector<double>& weight,
                                         const std::vector<double>& bias,
                                         const std::vector<double>& x, std::int64_t in,
                                         std::int64_t out);

// One sequence out of a time-major batch: rows 0 .. count-1 of sequence n in values
// [rows, N, width], as [count, width]. It also takes one sequence's states out of [L*D, N, H].
[[nodiscard]] std::vector<double> column(const std::vector<double>& values, std::int64_t N,
                                         std::int64_t width, std::int64_t n, std::int64_t count);

}  // namespace packrnn::reference

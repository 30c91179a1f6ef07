// One recurrent layer over a packed batch: both directions, all steps. Equations and gate orders
// are PyTorch's (docs/math.md).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "packrnn/kernels/dropout.hpp"
#include "packrnn/runtime/context.hpp"
#include "packrnn/runtime/packed_layout.hpp"
#include "packrnn/runtime/tensor.hpp"

namespace packrnn::kernels {

/// Gate blocks of a weight, in row order: LSTM i f g o; GRU r z n; RNN one.
/// `gru` resets after the recurrent product (PyTorch, cuDNN), `gru_reset_before` before it (the
/// original paper, ONNX's default, Keras with reset_after=False).
enum class Cell : std::uint8_t { lstm, gru, gru_reset_before, rnn_tanh, rnn_relu };

/// G: 4, 3 or 1.
constexpr int gates(Cell cell) noexcept {
  return cell == Cell::lstm ? 4 : cell == Cell::rnn_tanh || cell == Cell::rnn_relu ? 1 : 3;
}
std::string_view name_of(Cell cell) noexcept;

/// How packed weights lie in memory: in the layer's dtype, or rounded once to 16 bits, from which
/// products make f32 again. That halves what a step of few sequences has to read. Biases stay f32.
enum class WeightStorage : std::uint8_t { full, f16, bf16 };
std::string_view name_of(WeightStorage storage) noexcept;

/// What the packed weights of one direction of one layer are made for.
struct RecurrentShape {
  Cell cell = Cell::lstm;
  std::int64_t input = 0;       // I
  std::int64_t hidden = 0;      // H
  std::int64_t projection = 0;  // P of an LSTM with projection; 0: none
  Dtype dtype = Dtype::f32;     // f32, f64; on a GPU also f16, bf16. Others throw Unsupported
  WeightStorage storage = WeightStorage::full;  // another: on the CPU in f32, else Unsupported

  /// Width S of h: P with projection, else H.
  constexpr std::int64_t state() const noexcept { return projection > 0 ? projection : hidden; }
};

/// Of sums and cell states (c_0, c_n, cells): f64 for f64, else f32. A cell state adds up over the
/// whole sequence, which 16 bits cannot hold; h is rounded to the layer's dtype at every step.
constexpr Dtype cell_dtype(Dtype dtype) noexcept {
  return dtype == Dtype::f64 ? Dtype::f64 : Dtype::f32;
}

/// PyTorch's parameters of one direction, all in the host's memory or all on the context's device.
/// The biases may be undefined (none), `w_hr` is [P, H] with projection and undefined without.
struct RecurrentWeights {
  TensorView w_ih;  // [G*H, I]
  TensorView w_hh;  // [G*H, S]
  TensorView b_ih;  // [G*H]
  TensorView b_hh;  // [G*H]
  TensorView w_hr;  // [P, H]
};

/// Elements (of the shape's dtype) of the packed form on this device.
std::int64_t recurrent_panel_elements(Device device, const RecurrentShape& shape);

/// Assigns the packed form of `weights` to `panels` [recurrent_panel_elements] on the context's
/// device. The form is of this machine and process: never store it. A weight that 16 bits of
/// storage cannot hold (it would become infinite) throws InvalidArgument. From weights on a GPU it
/// is made there, in the order of the context's stream; host memory may change at once. The host
/// waits for neither.
void pack_recurrent(Context& context, const RecurrentShape& shape, const RecurrentWeights& weights,
                    const TensorSpan& panels);

/// One direction of the layer. States are in the caller's order of sequences; cell states are of
/// cell_dtype().
struct RecurrentDirection {
  TensorView panels;
  bool reverse = false;  // starts at each sequence's own end
  TensorView h_0;        // [N, S]; undefined: zeros
  TensorView c_0;        // [N, H], LSTM only; undefined: zeros
  TensorSpan h_n;        // [N, S], assigned
  TensorSpan c_n;        // [N, H], assigned, LSTM only
  /// [recurrent_reserve_elements()], assigned for a backward; undefined: none.
  TensorSpan reserve = {};
};

/// Assigns y [total, D*S] (direction d in columns d*S ..), the final states, and, when defined, the
/// cell states of every step, cells [total, D*H] (LSTM only). x is [total, I]; y and cells may not
/// overlap x or each other. A sequence of length zero gets its initial state as its final state.
/// All tensors are on the context's device. On a GPU the host does not wait, the layout may be one
/// whose lengths only the device knows (total is then its capacity, and rows that no sequence has
/// become zeros), and a NaN stays in its own sequence. In f32 with F32Math::exact and
/// in f64 the results have the same bits on every device, the payload of NaNs aside, provided that
/// the CPU has fused multiply-add.
void recurrent_forward(Context& context, const RecurrentShape& shape, const PackedLayout& layout,
                       const TensorView& x, std::span<const RecurrentDirection> directions,
                       const TensorSpan& y, const TensorSpan& cells = {});

/// One layer of a stack.
struct RecurrentLayer {
  RecurrentShape shape;
  std::span<const RecurrentDirection> directions;
  TensorSpan cells;  // of every step; undefined: not wanted
};

/// Between the layers: element-wise with probability p, where the key's layer counts from 0.
struct StackDropout {
  DropoutKey key;
  double p = 0;
};

/// Layers one above the other: each is a recurrent_forward() whose input is what the layer below
/// gives. Assigns y [total, D*S], the output of the last, and every layer's final states and cells;
/// the outputs between them are workspace. On a GPU the layers of a stack may work at the same
/// time, each a few steps behind the one below; the bits are those of one after the other.
void stack_forward(Context& context, const PackedLayout& layout, const TensorView& x,
                   std::span<const RecurrentLayer> layers, const TensorSpan& y,
                   const StackDropout& dropout = {});

/// What recurrent_forward() will do with such a batch, and why nothing faster: one line.
std::string explain_recurrent(Context& context, const RecurrentShape& shape,
                              const PackedLayout& layout, std::int64_t directions);
/// The same of a stack without dropout: a line for each layer, or one for all that work at the same
/// time. Of the layers only shapes and the number of directions matter.
std::string explain_stack(Context& context, const PackedLayout& layout,
                          std::span<const RecurrentLayer> layers);

}  // namespace packrnn::kernels

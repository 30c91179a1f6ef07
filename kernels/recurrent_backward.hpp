// The way back through one recurrent layer: both directions, all steps. Equations: docs/math.md.
#pragma once

#include <span>
#include <string>

#include "packrnn/kernels/recurrent.hpp"

namespace packrnn::kernels {

/// Elements (of cell_dtype()) that a forward keeps of one direction for its backward, where `total`
/// is the layout's. On the CPU: the gates after their activations, what else the cell's derivative
/// needs, and the cell states, in an order of its own. On a GPU an LSTM's cell states, of other
/// cells nothing: a backward computes the gates again.
std::int64_t recurrent_reserve_elements(Device device, const RecurrentShape& shape,
                                        std::int64_t total);

/// Elements (of the shape's dtype) of the packed form that a backward multiplies with on this
/// device.
std::int64_t recurrent_backward_panel_elements(Device device, const RecurrentShape& shape);
/// Assigns the packed form of `weights` to `panels` [recurrent_backward_panel_elements] on the
/// context's device. As pack_recurrent(); storage must be full (Unsupported).
void pack_recurrent_backward(Context& context, const RecurrentShape& shape,
                             const RecurrentWeights& weights, const TensorSpan& panels);

/// d loss / d weights of one direction, of PyTorch's shapes and cell_dtype(), accumulated;
/// undefined: not wanted.
struct RecurrentWeightGradients {
  TensorSpan w_ih, w_hh, b_ih, b_hh, w_hr;
};

/// One direction of the layer. States and their gradients are in the caller's order of sequences.
struct RecurrentBackwardDirection {
  TensorView panels;  // of pack_recurrent_backward()
  bool reverse = false;
  TensorView h_0, c_0;    // as the forward had them; undefined: zeros
  TensorSpan reserve;     // as the forward left it. It is worked in: afterwards it means nothing
  TensorView dh_n, dc_n;  // [N, S], [N, H] of cell_dtype(); undefined: zeros
  TensorSpan dh_0, dc_0;  // [N, S], [N, H], assigned; undefined: not wanted
  RecurrentWeightGradients weights;
};

/// Assigns dx [total, I] (undefined: not wanted), dh_0 and dc_0, and adds to the gradients of
/// weights, from dy [total, D*S] = d loss / d y (undefined: zeros), where x and y are the forward's
/// input and output. A missing gradient is zero. Every sum runs in an order fixed by the shapes and
/// the layout: two runs give the same bits on any number of threads, and dx, dh_0 and dc_0 of a
/// sequence have the same bits whatever sequences stand beside it. Sums of weight gradients are
/// taken in blocks of tokens. Aliasing and devices: as recurrent_forward(). A sequence of length
/// zero passes dh_n to dh_0 and dc_n to dc_0. On a GPU the host does not wait, the layout may be
/// one whose lengths only the device knows (rows of x that no sequence has must be zeros, and
/// become zeros in dx), and a NaN of one sequence stays out of others' dx, dh_0 and dc_0.
void recurrent_backward(Context& context, const RecurrentShape& shape, const PackedLayout& layout,
                        const TensorView& x, const TensorView& y, const TensorView& dy,
                        std::span<const RecurrentBackwardDirection> directions,
                        const TensorSpan& dx);

/// What recurrent_backward() will do with such a batch: one line.
std::string explain_recurrent_backward(Context& context, const RecurrentShape& shape,
                                       const PackedLayout& layout, std::int64_t directions);

}  // namespace packrnn::kernels

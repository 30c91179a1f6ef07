// What the two ways of running a recurrent layer, with and without a tape, have in common; private
// to the library.
#pragma once

#include <array>
#include <mutex>
#include <string>
#include <vector>

#include "packrnn/kernels/recurrent_backward.hpp"
#include "packrnn/layers/derived.hpp"
#include "packrnn/layers/recurrent.hpp"

namespace packrnn {

/// Of dense input.
Lengths equal_lengths(std::int64_t batch, std::int64_t steps);

/// The layout of dense input, kept for the next call: a stream steps through equal ones, and making
/// one costs as much as the step of a small layer. Not on a GPU, whose memory it would hold.
class DenseLayout {
 public:
  PackedLayoutPtr get(const Context& context, std::int64_t batch, std::int64_t steps);

 private:
  std::mutex mutex_;
  PackedLayoutPtr last_;
};

struct Recurrent::Impl {
  Parameters parameters;
  std::array<Derived<std::vector<Tensor>>, 2> panels;  // of each way
  std::array<DerivedForStep<std::vector<Tensor>>, 2> step_panels;
  DenseLayout dense_layout;
};

kernels::RecurrentShape shape_of(const Recurrent::Config& config, std::int64_t layer);
/// "_l0_reverse"
std::string suffix(std::int64_t layer, std::int64_t direction);
kernels::RecurrentWeights weights_of(const Recurrent::Config& config, const Parameters& parameters,
                                     std::int64_t layer, std::int64_t direction);

/// A form of packed weights: how many elements it has, and how it is made.
struct PackedForm {
  std::int64_t (*elements)(Device, const kernels::RecurrentShape&);
  void (*pack)(Context&, const kernels::RecurrentShape&, const kernels::RecurrentWeights&,
               const TensorSpan&);
};
inline constexpr PackedForm kForwardForm{kernels::recurrent_panel_elements,
                                         kernels::pack_recurrent};
inline constexpr PackedForm kBackwardForm{kernels::recurrent_backward_panel_elements,
                                          kernels::pack_recurrent_backward};

/// The packed weights of every layer and direction, in memory of an earlier result or, where that
/// is empty, of what `empty` makes of a shape and a dtype.
template <class Empty>
std::vector<Tensor> pack_weights(Context& context, const Recurrent::Config& config,
                                 const Parameters& parameters, const PackedForm& form,
                                 std::vector<Tensor> all, Empty&& empty) {
  const bool fresh = all.empty();
  std::size_t index = 0;
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    const kernels::RecurrentShape shape = shape_of(config, layer);
    for (std::int64_t d = 0; d < (config.bidirectional ? 2 : 1); ++d, ++index) {
      if (fresh) all.push_back(empty(Shape{form.elements(context.device(), shape)}, config.dtype));
      form.pack(context, shape, weights_of(config, parameters, layer, d), all[index]);
    }
  }
  return all;
}

/// [A, B, F] as [B, A, F].
Tensor swapped(Context& context, const TensorView& from);

/// Row `index` of [L*D, N, F] as [N, F].
template <class View>
View slice(const View& states, std::int64_t index) {
  if (!states.defined()) return {};
  return states.rows(index, index + 1).reshape(states.shape().from(1));
}

/// Throws unless x is of the layer's width and dtype, and on the context's device.
void check_input(const Context& context, const Recurrent::Config& config, const TensorView& x,
                 std::string_view what);

/// Initial states as [L*D, N, .], with what had to be copied for it.
struct InitialState {
  TensorView h, c;
  Tensor own_h, own_c;
};
/// Checks the caller's states, [L*D, N, .] or as the options say, and brings them into that form.
InitialState initial_state(Context& context, const Recurrent::Config& config,
                           const ForwardOptions& options, std::int64_t batch, bool unbatched);

}  // namespace packrnn

// Recurrent layers on a tape: each layer's forward keeps its input, its output and the kernel's
// reserve; one backward walks the stack from the top down and frees them as it goes.
#include <array>
#include <optional>
#include <utility>

#include "packrnn/kernels/elementwise.hpp"
#include "packrnn/kernels/recurrent_backward.hpp"
#include "packrnn/layers/arguments.hpp"
#include "packrnn/layers/functions.hpp"
#include "packrnn/layers/packing.hpp"
#include "packrnn/layers/recurrent_parts.hpp"
#include "packrnn/runtime/expects.hpp"

namespace packrnn {
namespace {

/// What one layer keeps.
struct Kept {
  std::shared_ptr<const Tensor> y;  // before dropout
  std::array<Tensor, 2> reserve;    // of each direction
};

/// Everything of one call.
struct Recorded {
  Recurrent::Config config;
  Parameters parameters;  // where the gradients go
  PackedLayoutPtr layout;
  bool state_batch_first = false;
  kernels::StackDropout dropout;
  Variable x;
  StateVariable initial;
  InitialState states;  // the values of `initial`, in the kernels' order of axes
  std::vector<Kept> layers;
  std::shared_ptr<const std::vector<Tensor>> panels;
  std::shared_ptr<Gradient> y, h_n, c_n;
};

kernels::RecurrentWeightGradients gradients_of(const Recurrent::Config& config, Parameters& p,
                                               std::int64_t layer, std::int64_t direction) {
  if (!p.trainable()) return {};
  const std::string end = suffix(layer, direction);
  kernels::RecurrentWeightGradients gradients{
      p.gradient("weight_ih" + end), p.gradient("weight_hh" + end), {}, {}, {}};
  if (config.bias) {
    gradients.b_ih = p.gradient("bias_ih" + end);
    gradients.b_hh = p.gradient("bias_hh" + end);
  }
  if (config.proj_size > 0) gradients.w_hr = p.gradient("weight_hr" + end);
  return gradients;
}

/// Multiplies rows by the mask behind layer `layer`, on the way forward and back alike.
void drop(Context& context, const Recorded& r, std::size_t layer, const TensorSpan& rows) {
  if (r.dropout.p == 0) return;
  kernels::DropoutKey key = r.dropout.key;
  key.layer += static_cast<std::uint32_t>(layer);
  kernels::dropout(context, *r.layout, key, r.dropout.p, rows);
}

/// What layer `layer` reads: the data, or the output of the layer below after dropout.
struct Input {
  TensorView view;
  Tensor own;
};
Input input_of(Context& context, const Recorded& r, std::size_t layer) {
  if (layer == 0) return {r.x.value(), {}};
  const Tensor& below = *r.layers[layer - 1].y;
  if (r.dropout.p == 0) return {below, {}};
  Input input{{}, context.empty(below.shape(), below.dtype())};
  context.copy(below, input.own);
  drop(context, r, layer - 1, input.own);
  input.view = input.own;
  return input;
}

/// In another dtype: gradients of h have h's, the kernels add them up in cell_dtype().
Tensor as(Context& context, Dtype dtype, Tensor tensor) {
  if (tensor.dtype() == dtype) return tensor;
  Tensor result = context.empty(tensor.shape(), dtype);
  kernels::convert_elements(context, tensor, result);
  return result;
}

/// The gradient of a final state as [L*D, N, .] of cell_dtype(), undefined for zeros.
Tensor take_state(Context& context, const Recorded& r, const std::shared_ptr<Gradient>& of) {
  Tensor gradient = of ? of->take(context) : Tensor();
  if (!gradient.defined()) return {};
  if (r.state_batch_first) gradient = swapped(context, gradient);
  return as(context, kernels::cell_dtype(r.config.dtype), std::move(gradient));
}

/// Room for the gradient of an initial state, if it has one.
Tensor make_state(Context& context, const Recorded& r, const Variable& initial) {
  if (!initial.needs_gradient()) return {};
  const std::int64_t stack = r.config.num_layers * (r.config.bidirectional ? 2 : 1);
  return context.empty({stack, r.layout->batch(), initial.size(-1)},
                       kernels::cell_dtype(r.config.dtype));
}

void give_state(Context& context, const Recorded& r, const Variable& initial, Tensor gradient) {
  if (!gradient.defined()) return;
  if (r.state_batch_first) gradient = swapped(context, gradient);
  initial.gradient_ptr()->add(context, as(context, initial.dtype(), std::move(gradient)));
}

/// The backward of the whole stack.
void go_back(Context& context, Recorded& r) {
  Tensor dy = r.y->take(context);
  const Tensor dh_n = take_state(context, r, r.h_n), dc_n = take_state(context, r, r.c_n);
  if (!dy.defined() && !dh_n.defined() && !dc_n.defined()) return;
  const std::int64_t D = r.config.bidirectional ? 2 : 1, L = r.config.num_layers;
  Tensor dh_0 = make_state(context, r, r.initial.h), dc_0 = make_state(context, r, r.initial.c);
  for (std::int64_t layer = L - 1; layer >= 0; --layer) {
    const auto at = static_cast<std::size_t>(layer);
    Kept& kept = r.layers[at];
    const Input in = input_of(context, r, at);
    std::array<kernels::RecurrentBackwardDirection, 2> both;
    for (std::int64_t d = 0; d < D; ++d) {
      const std::int64_t index = layer * D + d;
      const auto place = static_cast<std::size_t>(d);
      both[place] = {.panels = (*r.panels)[static_cast<std::size_t>(index)],
                     .reverse = d == 1,
                     .h_0 = slice(r.states.h, index),
                     .c_0 = slice(r.states.c, index),
                     .reserve = kept.reserve[place].span(),
                     .dh_n = slice(dh_n.view(), index),
                     .dc_n = slice(dc_n.view(), index),
                     .dh_0 = slice(dh_0.span(), index),
                     .dc_0 = slice(dc_0.span(), index),
                     .weights = gradients_of(r.config, r.parameters, layer, d)};
    }
    const bool wants_dx = layer > 0 || r.x.needs_gradient();
    Tensor dx = wants_dx ? context.empty(in.view.shape(), in.view.dtype()) : Tensor();
    kernels::recurrent_backward(context, shape_of(r.config, layer), *r.layout, in.view, *kept.y, dy,
                                {both.data(), static_cast<std::size_t>(D)}, dx);
    kept = {};
    if (layer > 0) drop(context, r, at - 1, dx);
    dy = std::move(dx);
  }
  if (dy.defined()) r.x.gradient_ptr()->add(context, std::move(dy));
  give_state(context, r, r.initial.h, std::move(dh_0));
  give_state(context, r, r.initial.c, std::move(dc_0));
}

}  // namespace

Recurrent::Panels Recurrent::backward_panels(Context& context) const {
  const Parameters& parameters = impl_->parameters;
  return impl_->backward_panels.get(context, parameters.version(), [&] {
    return pack_weights(context, config_, parameters, kernels::recurrent_backward_panel_elements,
                        kernels::pack_recurrent_backward);
  });
}

PackedOutputVariable Recurrent::forward(Tape& tape, const PackedVariable& input,
                                        const StateVariable& state, bool state_batch_first) {
  Context& context = tape.context();
  expects(input.defined(), "input is not defined");
  const TensorView x = input.data.value();
  expects(x.shape().rank() == 2 && x.size(0) == input.layout->total(),
          "input has packed rows of shape {}, expected [{}, I]", x.shape(), input.layout->total());
  check_input(context, config_, x, "input");
  expects_usable(impl_->parameters, context, impl_->parameters.trainable());
  const bool lstm = config_.cell == kernels::Cell::lstm;
  const std::int64_t D = directions(), S = state_size(), L = config_.num_layers;
  const std::int64_t N = input.layout->batch(), total = input.layout->total();
  const bool needs = input.data.needs_gradient() || state.h.needs_gradient() ||
                     state.c.needs_gradient() || impl_->parameters.trainable();

  const auto recorded = std::make_shared<Recorded>();
  Recorded& r = *recorded;
  r.config = config_;
  r.layout = input.layout;
  r.state_batch_first = state_batch_first;
  r.x = input.data;
  r.initial = state;
  r.states = initial_state(
      context, config_,
      {.state = {state.h.value(), state.c.value()}, .state_batch_first = state_batch_first}, N,
      false);
  if (tape.options().training && config_.dropout > 0.0 && L > 1)
    r.dropout = {{context.random().seed(), context.random().draw(), 0}, config_.dropout};
  const Panels panels = forward_panels(context);

  Tensor h_n = context.empty({L * D, N, S}, config_.dtype), c_n;
  const Dtype c_dtype = kernels::cell_dtype(config_.dtype);
  if (lstm) c_n = context.empty({L * D, N, config_.hidden_size}, c_dtype);
  for (std::int64_t layer = 0; layer < L; ++layer) {
    const auto at = static_cast<std::size_t>(layer);
    const kernels::RecurrentShape shape = shape_of(config_, layer);
    const Input in = input_of(context, r, at);
    Kept kept;
    Tensor y = context.empty({total, D * S}, config_.dtype);
    std::array<kernels::RecurrentDirection, 2> both;
    for (std::int64_t d = 0; d < D; ++d) {
      const std::int64_t index = layer * D + d;
      const auto place = static_cast<std::size_t>(d);
      if (needs)
        kept.reserve[place] = context.empty(
            {kernels::recurrent_reserve_elements(context.device(), shape, total)}, c_dtype);
      both[place] = {.panels = (*panels)[static_cast<std::size_t>(index)],
                     .reverse = d == 1,
                     .h_0 = slice(r.states.h, index),
                     .c_0 = slice(r.states.c, index),
                     .h_n = slice(h_n.span(), index),
                     .c_n = slice(c_n.span(), index),
                     .reserve = kept.reserve[place].span()};
    }
    kernels::recurrent_forward(context, shape, *r.layout, in.view,
                               {both.data(), static_cast<std::size_t>(D)}, y);
    kept.y = std::make_shared<const Tensor>(std::move(y));
    r.layers.push_back(std::move(kept));
  }

  const auto finish = [&](Tensor& states) {
    if (!states.defined()) return Variable();
    return tape.result(state_batch_first ? swapped(context, states) : std::move(states), needs);
  };
  std::shared_ptr<const Tensor> y = r.layers.back().y;
  if (needs) r.y = std::make_shared<Gradient>(y->shape(), y->dtype(), false);
  PackedOutputVariable result{{Variable(std::move(y), r.y), r.layout}, {finish(h_n), finish(c_n)}};
  if (!needs) return result;
  r.parameters = impl_->parameters.shared();
  r.h_n = result.state.h.gradient_ptr();
  r.c_n = result.state.c.gradient_ptr();

  r.panels = backward_panels(context);
  tape.record([recorded](Context& on) { go_back(on, *recorded); });
  return result;
}

DenseOutputVariable Recurrent::forward(Tape& tape, const Variable& input,
                                       const StateVariable& state, bool state_batch_first) {
  const bool batch_first = config_.batch_first;
  expects(input.defined() && input.shape().rank() == 3 && input.size(batch_first ? 1 : 0) > 0,
          "input has shape {}, expected {} with one step or more",
          input.defined() ? input.shape() : Shape{}, batch_first ? "[N, T, I]" : "[T, N, I]");
  const std::int64_t T = input.size(batch_first ? 1 : 0), N = input.size(batch_first ? 0 : 1);
  if (batch_first) {
    const PackedVariable packed =
        pack_padded_sequence(tape, input, equal_lengths(N, T), {.batch_first = true});
    PackedOutputVariable result = forward(tape, packed, state, state_batch_first);
    return {pad_packed_sequence(tape, result.output, {.batch_first = true}),
            std::move(result.state)};
  }
  // Time-major rows of equal lengths are packed rows already.
  const PackedVariable rows{reshape(tape, input, {T * N, input.size(2)}),
                            impl_->dense_layout.get(tape.context(), N, T)};
  PackedOutputVariable result = forward(tape, rows, state, state_batch_first);
  return {reshape(tape, result.output.data, {T, N, directions() * state_size()}),
          std::move(result.state)};
}

}  // namespace packrnn

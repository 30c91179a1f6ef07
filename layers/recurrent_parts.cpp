#include "packrnn/layers/recurrent_parts.hpp"

#include <utility>

#include "packrnn/kernels/elementwise.hpp"
#include "packrnn/layers/arguments.hpp"
#include "packrnn/runtime/expects.hpp"

namespace packrnn {

Lengths equal_lengths(std::int64_t batch, std::int64_t steps) {
  return Lengths(std::vector<std::int64_t>(static_cast<std::size_t>(batch), steps));
}

PackedLayoutPtr DenseLayout::get(const Context& context, std::int64_t batch, std::int64_t steps) {
  const auto make = [&] {
    return PackedLayout::make(equal_lengths(batch, steps), {.padded_length = steps});
  };
  if (context.device() != Device::cpu()) return make();
  const std::lock_guard lock(mutex_);
  if (!last_ || last_->batch() != batch || last_->steps() != steps) last_ = make();
  return last_;
}

kernels::RecurrentShape shape_of(const Recurrent::Config& c, std::int64_t layer) {
  const std::int64_t state = c.proj_size > 0 ? c.proj_size : c.hidden_size;
  return {.cell = c.cell,
          .input = layer == 0 ? c.input_size : state * (c.bidirectional ? 2 : 1),
          .hidden = c.hidden_size,
          .projection = c.proj_size,
          .dtype = c.dtype,
          .storage = c.weight_storage};
}

std::string suffix(std::int64_t layer, std::int64_t direction) {
  return fmt::format("_l{}{}", layer, direction == 1 ? "_reverse" : "");
}

kernels::RecurrentWeights weights_of(const Recurrent::Config& config, const Parameters& p,
                                     std::int64_t layer, std::int64_t direction) {
  const std::string end = suffix(layer, direction);
  kernels::RecurrentWeights weights{
      p.value("weight_ih" + end), p.value("weight_hh" + end), {}, {}, {}};
  if (config.bias) {
    weights.b_ih = p.value("bias_ih" + end);
    weights.b_hh = p.value("bias_hh" + end);
  }
  if (config.proj_size > 0) weights.w_hr = p.value("weight_hr" + end);
  return weights;
}

Tensor swapped(Context& context, const TensorView& from) {
  Tensor to = context.empty({from.size(1), from.size(0), from.size(2)}, from.dtype());
  kernels::swap_axes(context, from, to);
  return to;
}

void check_input(const Context& context, const Recurrent::Config& config, const TensorView& x,
                 std::string_view what) {
  expects_computable(kernels::name_of(config.cell), config.dtype, context);
  expects(x.dtype() == config.dtype, "input has dtype {}, the layer {}", name_of(x.dtype()),
          name_of(config.dtype));
  expects_on_device("input", x, context);
  const std::int64_t width = x.size(-1);
  expects(width == config.input_size, "{} has {} features (shape {}), the layer's input_size is {}",
          what, width, x.shape(), config.input_size);
}

InitialState initial_state(Context& context, const Recurrent::Config& config,
                           const ForwardOptions& options, std::int64_t batch, bool unbatched) {
  const std::int64_t stack = config.num_layers * (config.bidirectional ? 2 : 1);
  const std::int64_t state_size = config.proj_size > 0 ? config.proj_size : config.hidden_size;
  const bool lstm = config.cell == kernels::Cell::lstm;
  const StateView& given = options.state;
  expects(lstm || !given.c.defined(), "c_0 was given, but only an LSTM has a cell state");
  expects(!lstm || given.h.defined() == given.c.defined(),
          "h_0 and c_0 belong together: only {} was given", given.h.defined() ? "h_0" : "c_0");
  InitialState result;
  const auto bring = [&](std::string_view name, const TensorView& state, std::int64_t width,
                         Dtype dtype, TensorView& view, Tensor& own) {
    if (!state.defined()) return;
    const bool batch_first = options.state_batch_first && !unbatched;
    const Shape expected = unbatched     ? Shape{stack, width}
                           : batch_first ? Shape{batch, stack, width}
                                         : Shape{stack, batch, width};
    const char* axes = unbatched ? "[L*D, S]" : batch_first ? "[N, L*D, S]" : "[L*D, N, S]";
    expects(state.shape() == expected, "{} has shape {}, expected {} {}", name, state.shape(), axes,
            expected);
    expects(state.dtype() == dtype, "{} has dtype {}, expected {} for a layer of {}", name,
            state.dtype(), dtype, config.dtype);
    expects_on_device(name, state, context);
    if (batch_first) {
      own = swapped(context, state);
      view = own;
    } else {
      view = state.reshape({stack, batch, width});
    }
  };
  bring("h_0", given.h, state_size, config.dtype, result.h, result.own_h);
  bring("c_0", given.c, config.hidden_size, kernels::cell_dtype(config.dtype), result.c,
        result.own_c);
  return result;
}

}  // namespace packrnn

#include "packrnn/layers/recurrent.hpp"

#include <array>
#include <cmath>

#include "packrnn/layers/arguments.hpp"
#include "packrnn/layers/recurrent_parts.hpp"
#include "packrnn/layers/safetensors.hpp"
#include "packrnn/runtime/expects.hpp"

namespace packrnn {

namespace {

using Config = Recurrent::Config;

void check_config(const Config& c) {
  // Beyond these, a product of sizes could overflow before any memory is asked for.
  constexpr std::int64_t kMaxSize = std::int64_t{1} << 28, kMaxLayers = 4096;
  const auto within = [](std::string_view name, std::int64_t value, std::int64_t most) {
    expects(value > 0 && value <= most, "{}: {} must be positive and at most {}", name, value,
            most);
  };
  within("input_size", c.input_size, kMaxSize);
  within("hidden_size", c.hidden_size, kMaxSize);
  within("num_layers", c.num_layers, kMaxLayers);
  expects(c.dropout >= 0.0 && c.dropout <= 1.0, "dropout: {} is not a probability in [0, 1]",
          c.dropout);
  expects(c.proj_size >= 0 && c.proj_size < c.hidden_size,
          "proj_size: {} must be at least 0 (none) and less than hidden_size {}", c.proj_size,
          c.hidden_size);
  expects(is_floating(c.dtype), "dtype is {}, expected a floating one", c.dtype);
  expects(c.weight_storage == WeightStorage::full || c.dtype == Dtype::f32,
          "weight_storage is {}, which is for layers of f32, not of {}",
          kernels::name_of(c.weight_storage), c.dtype);
}

std::vector<Parameters::Declaration> declare(const Config& c, std::int64_t directions) {
  std::vector<Parameters::Declaration> all;
  const std::int64_t rows = kernels::gates(c.cell) * c.hidden_size;
  for (std::int64_t layer = 0; layer < c.num_layers; ++layer)
    for (std::int64_t d = 0; d < directions; ++d) {
      const kernels::RecurrentShape shape = shape_of(c, layer);
      const std::string end = suffix(layer, d);
      all.push_back({"weight_ih" + end, {rows, shape.input}});
      all.push_back({"weight_hh" + end, {rows, shape.state()}});
      if (c.bias) {
        all.push_back({"bias_ih" + end, {rows}});
        all.push_back({"bias_hh" + end, {rows}});
      }
      if (c.proj_size > 0) all.push_back({"weight_hr" + end, {c.proj_size, c.hidden_size}});
    }
  return all;
}

}  // namespace

Recurrent::Recurrent(const Config& config) : config_(config) {
  check_config(config);
  impl_ = std::make_unique<Impl>();
  impl_->parameters = Parameters(declare(config, directions()), config.dtype);
  Generator generator(config.seed);
  reset_parameters(generator);
}

Recurrent::~Recurrent() = default;
Recurrent::Recurrent(Recurrent&&) noexcept = default;
Recurrent& Recurrent::operator=(Recurrent&&) noexcept = default;

const Parameters& Recurrent::parameters() const noexcept { return impl_->parameters; }
Parameters& Recurrent::parameters() noexcept { return impl_->parameters; }

StateDict Recurrent::state_dict(std::string_view prefix) const {
  return impl_->parameters.state_dict(prefix);
}

void Recurrent::load(const StateDict& source, const LoadOptions& options) {
  impl_->parameters.load(source, options);
}

void Recurrent::load(const SafeTensors& file, std::string_view prefix) {
  impl_->parameters.load(file.state_dict(prefix), {});
}

void Recurrent::reset_parameters(Generator& generator) {
  impl_->parameters.fill_uniform(generator,
                                 1.0 / std::sqrt(static_cast<double>(config_.hidden_size)));
}

Recurrent::Panels Recurrent::forward_panels(Context& context) const {
  const Parameters& parameters = impl_->parameters;
  expects_usable(parameters, context, false);
  return impl_->forward_panels.get(context, parameters.version(), [&] {
    return pack_weights(context, config_, parameters, kernels::recurrent_panel_elements,
                        kernels::pack_recurrent);
  });
}

/// The one path that every forward() takes: packed rows x [total, I] in, [total, D*S] out.
DenseOutput Recurrent::run(Context& context, const PackedLayout& layout, const TensorView& x,
                           const ForwardOptions& options, bool unbatched) const {
  const bool lstm = config_.cell == kernels::Cell::lstm;
  expects(lstm || options.cells == nullptr, "cells were asked for, but only an LSTM has them");
  const std::int64_t D = directions(), S = state_size(), H = config_.hidden_size,
                     L = config_.num_layers, N = layout.batch(), total = layout.total();
  const InitialState initial = initial_state(context, config_, options, N, unbatched);
  const Panels packed = forward_panels(context);

  DenseOutput result;
  const Dtype dtype = config_.dtype, c_dtype = kernels::cell_dtype(dtype);
  result.output = context.empty({total, D * S}, dtype);
  result.state.h = context.empty({L * D, N, S}, dtype);
  if (lstm) result.state.c = context.empty({L * D, N, H}, c_dtype);
  std::vector<Tensor> cells;
  if (options.cells)
    for (std::int64_t layer = 0; layer < L; ++layer)
      cells.push_back(context.empty({total, D * H}, c_dtype));

  const auto count = static_cast<std::size_t>(L);
  std::vector<std::array<kernels::RecurrentDirection, 2>> directions_of(count);
  std::vector<kernels::RecurrentLayer> layers(count);
  for (std::size_t layer = 0; layer < count; ++layer) {
    for (std::int64_t d = 0; d < D; ++d) {
      const std::int64_t index = static_cast<std::int64_t>(layer) * D + d;
      directions_of[layer][static_cast<std::size_t>(d)] = {
          .panels = (*packed)[static_cast<std::size_t>(index)],
          .reverse = d == 1,
          .h_0 = slice(initial.h, index),
          .c_0 = slice(initial.c, index),
          .h_n = slice(result.state.h.span(), index),
          .c_n = slice(result.state.c.span(), index)};
    }
    layers[layer] = {shape_of(config_, static_cast<std::int64_t>(layer)),
                     {directions_of[layer].data(), static_cast<std::size_t>(D)},
                     cells.empty() ? TensorSpan{} : cells[layer].span()};
  }
  kernels::StackDropout dropout;
  if (options.training && config_.dropout > 0.0 && L > 1)
    dropout = {{context.random().seed(), context.random().draw(), 0}, config_.dropout};
  kernels::stack_forward(context, layout, x, layers, result.output, dropout);

  if (options.cells) *options.cells = std::move(cells);
  const auto finish = [&](Tensor& state, std::int64_t width) {
    if (!state.defined()) return;
    if (unbatched)
      state = std::move(state).reshape({L * D, width});
    else if (options.state_batch_first)
      state = swapped(context, state);
  };
  finish(result.state.h, S);
  finish(result.state.c, H);
  return result;
}

PackedOutput Recurrent::forward(Context& context, const PackedSequence& input,
                                const ForwardOptions& options) const {
  expects(input.defined(), "input is an empty packed sequence (made by default or moved from)");
  const TensorView x = input.data();
  expects(x.shape().rank() == 2, "input has packed rows of shape {}, expected [total, I]",
          x.shape());
  check_input(context, config_, x, "input");
  DenseOutput result = run(context, input.layout(), x, options, false);
  return {PackedSequence(std::move(result.output), input.layout_ptr()), std::move(result.state)};
}

DenseOutput Recurrent::forward(Context& context, const TensorView& input,
                               const ForwardOptions& options) const {
  const int rank = input.shape().rank();
  expects(input.defined() && (rank == 2 || rank == 3),
          "input has shape {}, expected {} or, unbatched, [T, I]", input.shape(),
          config_.batch_first ? "[N, T, I]" : "[T, N, I]");
  check_input(context, config_, input, "input");
  const bool unbatched = rank == 2, batch_first = config_.batch_first && !unbatched;
  const std::int64_t T = input.size(batch_first ? 1 : 0);
  const std::int64_t N = unbatched ? 1 : input.size(batch_first ? 0 : 1);
  expects(T > 0, "input has shape {}: no time steps; a packed batch may hold empty sequences",
          input.shape());

  if (batch_first) return forward_padded(context, input, equal_lengths(N, T), options);
  // Time-major rows of equal lengths are packed rows already.
  const PackedLayoutPtr layout = impl_->dense_layout.get(context, N, T);
  DenseOutput result =
      run(context, *layout, input.reshape({T * N, config_.input_size}), options, unbatched);
  const std::int64_t width = directions() * state_size();
  result.output =
      std::move(result.output).reshape(unbatched ? Shape{T, width} : Shape{T, N, width});
  return result;
}

template <class AnyLengths>
DenseOutput Recurrent::run_padded(Context& context, const TensorView& padded,
                                  const AnyLengths& lengths, const ForwardOptions& options) const {
  expects(padded.defined() && padded.shape().rank() == 3, "input has shape {}, expected {}",
          padded.shape(), config_.batch_first ? "[N, T, I]" : "[T, N, I]");
  check_input(context, config_, padded, "input");
  const PackedSequence input =
      pack_padded_sequence(context, padded, lengths, {.batch_first = config_.batch_first});
  PackedOutput result = forward(context, input, options);
  return {pad_packed_sequence(context, result.output, {.batch_first = config_.batch_first}),
          std::move(result.state)};
}

DenseOutput Recurrent::forward_padded(Context& context, const TensorView& padded,
                                      const Lengths& lengths, const ForwardOptions& options) const {
  return run_padded(context, padded, lengths, options);
}

DenseOutput Recurrent::forward_padded(Context& context, const TensorView& padded,
                                      const DeviceLengths& lengths,
                                      const ForwardOptions& options) const {
  return run_padded(context, padded, lengths, options);
}

State to_device(Context& context, const State& state) {
  const auto moved = [&](const Tensor& tensor) {
    return tensor.defined() ? context.to_device(tensor) : Tensor();
  };
  return {moved(state.h), moved(state.c)};
}

State to_host(Context& context, const State& state) {
  const auto moved = [&](const Tensor& tensor) {
    return tensor.defined() ? context.to_host(tensor) : Tensor();
  };
  return {moved(state.h), moved(state.c)};
}

PackedOutput to_host(Context& context, const PackedOutput& output) {
  return {to_host(context, output.output), to_host(context, output.state)};
}

DenseOutput to_host(Context& context, const DenseOutput& output) {
  return {context.to_host(output.output), to_host(context, output.state)};
}

std::string Recurrent::explain(Context& context, const PackedLayout& layout) const {
  const std::array<kernels::RecurrentDirection, 2> both{};
  std::vector<kernels::RecurrentLayer> layers;
  for (std::int64_t layer = 0; layer < config_.num_layers; ++layer)
    layers.push_back(
        {shape_of(config_, layer), {both.data(), static_cast<std::size_t>(directions())}, {}});
  return kernels::explain_stack(context, layout, layers);
}

}  // namespace packrnn

#include "packrnn/kernels/recurrent.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "packrnn/kernels/check.hpp"
#include "packrnn/kernels/check_weights.hpp"
#include "packrnn/kernels/cpu/recurrent.hpp"
#include "packrnn/kernels/cuda/pack_panels.hpp"
#include "packrnn/kernels/cuda/recurrent.hpp"
#include "packrnn/kernels/cuda/recurrent_panels.hpp"
#include "packrnn/kernels/cuda/wavefront.hpp"
#include "packrnn/kernels/dropout.hpp"
#include "packrnn/kernels/recurrent_backward.hpp"

namespace packrnn::kernels {
namespace {

void check_shape(Device device, const RecurrentShape& s) {
  expects(s.input > 0 && s.hidden > 0, "recurrent: input {} and hidden {} must be positive",
          s.input, s.hidden);
  expects(s.projection >= 0 && s.projection < s.hidden,
          "recurrent: projection {} must be at least 0 and less than hidden {}", s.projection,
          s.hidden);
  expects(s.projection == 0 || s.cell == Cell::lstm,
          "recurrent: projection {} is for an LSTM only, not for {}", s.projection,
          name_of(s.cell));
  check_computable("recurrent", s.dtype, device);
  if (s.storage == WeightStorage::full) return;
  if (s.dtype != Dtype::f32 || device.type != DeviceType::cpu)
    throw Unsupported(fmt::format(
        "recurrent: weights stored as {} are for f32 on the CPU, not for {} on {}; a GPU computes "
        "layers of dtype f16 and bf16",
        name_of(s.storage), name_of(s.dtype), device.name()));
}

/// Throws unless all of a weight fits its storage.
template <class Stored>
void check_fits(std::string_view name, const TensorView& weight) {
  const float* data = weight.data<float>();
  for (std::int64_t i = 0; i < weight.elements(); ++i)
    expects(std::isfinite(static_cast<float>(Stored(data[i]))) || !std::isfinite(data[i]),
            "{} holds {}, which is too large to be stored as {}", name, data[i],
            name_of(kDtypeOf<Stored>));
}

void check_fits(const RecurrentShape& s, const RecurrentWeights& w) {
  const auto check_one = [&](std::string_view name, const TensorView& weight) {
    if (!weight.defined()) return;
    if (s.storage == WeightStorage::f16)
      check_fits<Half>(name, weight);
    else
      check_fits<BFloat16>(name, weight);
  };
  if (s.storage == WeightStorage::full) return;
  check_one("w_ih", w.w_ih);
  check_one("w_hh", w.w_hh);
  check_one("w_hr", w.w_hr);
}

void check_layer(Device device, const RecurrentLayer& layer, const PackedLayout& layout,
                 const TensorView& x, const TensorSpan& y) {
  const RecurrentShape& s = layer.shape;
  const std::int64_t elements = recurrent_panel_elements(device, s);
  const auto count = static_cast<std::int64_t>(layer.directions.size());
  expects(count == 1 || count == 2, "directions: {} given, expected 1 or 2", count);
  const std::int64_t total = layout.total(), batch = layout.batch();
  const bool lstm = s.cell == Cell::lstm;
  const Dtype cell = cell_dtype(s.dtype);
  check("x", x, {total, s.input}, s.dtype, device);
  check("y", y, {total, count * s.state()}, s.dtype, device);
  expects(lstm || !layer.cells.defined(), "cells: {} has no cell state", name_of(s.cell));
  check_optional("cells", layer.cells, {total, count * s.hidden}, cell, device);
  for (const RecurrentDirection& d : layer.directions) {
    check_panels(d.panels, elements, s.dtype, device);
    check_optional("h_0", d.h_0, {batch, s.state()}, s.dtype, device);
    check("h_n", d.h_n, {batch, s.state()}, s.dtype, device);
    expects(lstm || !d.c_0.defined(), "c_0: {} has no cell state", name_of(s.cell));
    check_optional("c_0", d.c_0, {batch, s.hidden}, cell, device);
    if (lstm) check("c_n", d.c_n, {batch, s.hidden}, cell, device);
    if (d.reserve.defined())
      check("reserve", d.reserve, {recurrent_reserve_elements(device, s, total)}, cell, device);
  }
}

/// Its arguments are checked.
void run_layer(Context& context, const RecurrentLayer& layer, const PackedLayout& layout,
               const TensorView& x, const TensorSpan& y) {
  const auto& [shape, directions, cells] = layer;
  if (context.device().type == DeviceType::cuda)
    cuda::recurrent_forward(context, shape, layout, x, directions, y, cells);
  else
    cpu::recurrent_forward(context, shape, layout, x, directions, y, cells);
}

}  // namespace

std::string_view name_of(Cell cell) noexcept {
  switch (cell) {
    case Cell::lstm:
      return "LSTM";
    case Cell::gru:
      return "GRU";
    case Cell::gru_reset_before:
      return "GRU (reset before)";
    case Cell::rnn_tanh:
      return "RNN (tanh)";
    case Cell::rnn_relu:
      break;
  }
  return "RNN (relu)";
}

std::string_view name_of(WeightStorage storage) noexcept {
  switch (storage) {
    case WeightStorage::full:
      return "full";
    case WeightStorage::f16:
      return "f16";
    case WeightStorage::bf16:
      break;
  }
  return "bf16";
}

std::int64_t recurrent_panel_elements(Device device, const RecurrentShape& shape) {
  check_shape(device, shape);
  return device.type == DeviceType::cuda ? cuda::RecurrentPanels::of(shape).elements
                                         : cpu::recurrent_panel_elements(shape);
}

void check_weights(Device device, const RecurrentShape& s, const RecurrentWeights& w) {
  const std::int64_t rows = gates(s.cell) * s.hidden;
  // All on the host, unless the first is where the context works.
  const Device place = w.w_ih.device() == device ? device : Device::cpu();
  check("w_ih", w.w_ih, {rows, s.input}, s.dtype, place);
  check("w_hh", w.w_hh, {rows, s.state()}, s.dtype, place);
  check_optional("b_ih", w.b_ih, {rows}, s.dtype, place);
  check_optional("b_hh", w.b_hh, {rows}, s.dtype, place);
  if (s.projection > 0) check("w_hr", w.w_hr, {s.projection, s.hidden}, s.dtype, place);
}

void pack_recurrent(Context& context, const RecurrentShape& s, const RecurrentWeights& w,
                    const TensorSpan& panels) {
  const Device device = context.device();
  const std::int64_t elements = recurrent_panel_elements(device, s);
  check_weights(device, s, w);
  check_panels(panels, elements, s.dtype, device);
  check_fits(s, w);
  if (device.type == DeviceType::cpu) return cpu::pack_recurrent(context, s, w, panels);
  if (w.w_ih.device() == device) return cuda::pack_panels(context.stream(), s, w, panels.raw());
  Tensor filled = Tensor::empty({elements}, s.dtype);
  cuda::fill_panels(s, w, filled.span().raw());
  context.copy(filled, panels);
}

void recurrent_forward(Context& context, const RecurrentShape& shape, const PackedLayout& layout,
                       const TensorView& x, std::span<const RecurrentDirection> directions,
                       const TensorSpan& y, const TensorSpan& cells) {
  check_layer(context.device(), {shape, directions, cells}, layout, x, y);
  run_layer(context, {shape, directions, cells}, layout, x, y);
}

void stack_forward(Context& context, const PackedLayout& layout, const TensorView& x,
                   std::span<const RecurrentLayer> layers, const TensorSpan& y,
                   const StackDropout& dropout) {
  const std::size_t L = layers.size();
  expects(L > 0, "layers: none given, expected at least one");
  const Device device = context.device();
  cuda::Wavefront wavefront;
  if (device.type == DeviceType::cuda && dropout.p == 0)
    wavefront = cuda::choose_wavefront(context, layout, layers);
  const bool in_turn = wavefront.ranges == 1;

  // One after the other, layers write to two buffers in turns.
  Workspace::Scope scratch(context.workspace());
  const std::size_t buffers = in_turn ? std::min(L - 1, std::size_t{2}) : L - 1;
  std::vector<void*> memory(buffers);
  const auto width = [&](const RecurrentLayer& layer) {
    return std::ssize(layer.directions) * layer.shape.state();
  };
  std::int64_t widest = 0;
  for (std::size_t l = 0; l + 1 < L; ++l)
    widest = std::max(widest,
                      width(layers[l]) * static_cast<std::int64_t>(size_of(layers[l].shape.dtype)));
  for (void*& buffer : memory) buffer = scratch.take<std::byte>(layout.total() * widest).data();
  std::vector<TensorSpan> outputs;
  for (std::size_t l = 0; l + 1 < L; ++l)
    outputs.emplace_back(memory[l % buffers], Shape{layout.total(), width(layers[l])},
                         layers[l].shape.dtype, device);
  outputs.push_back(y);
  const auto input = [&](std::size_t l) { return l == 0 ? x : TensorView(outputs[l - 1]); };

  for (std::size_t l = 0; l < L; ++l) check_layer(device, layers[l], layout, input(l), outputs[l]);
  if (!in_turn) return cuda::wavefront_forward(context, wavefront, layout, x, layers, outputs);
  for (std::size_t l = 0; l < L; ++l) {
    run_layer(context, layers[l], layout, input(l), outputs[l]);
    if (dropout.p == 0 || l + 1 == L) continue;
    DropoutKey key = dropout.key;
    key.layer += static_cast<std::uint32_t>(l);
    kernels::dropout(context, layout, key, dropout.p, outputs[l]);
  }
}

std::string explain_recurrent(Context& context, const RecurrentShape& shape,
                              const PackedLayout& layout, std::int64_t directions) {
  check_shape(context.device(), shape);
  if (context.device().type == DeviceType::cuda)
    return cuda::explain_recurrent(context, shape, layout, directions);
  return cpu::recurrent_plan(context, shape, layout, directions).reason;
}

std::string explain_stack(Context& context, const PackedLayout& layout,
                          std::span<const RecurrentLayer> layers) {
  std::string lines;
  if (context.device().type == DeviceType::cuda && layers.size() > 1) {
    const cuda::Wavefront wavefront = cuda::choose_wavefront(context, layout, layers);
    lines = fmt::format("layers 0 to {}: {}\n", layers.size() - 1, wavefront.choice.reason);
    if (wavefront.ranges > 1) return lines;
  }
  for (std::size_t l = 0; l < layers.size(); ++l)
    lines += fmt::format(
        "layer {}: {}\n", l,
        explain_recurrent(context, layers[l].shape, layout, std::ssize(layers[l].directions)));
  return lines;
}

}  // namespace packrnn::kernels

#include "packrnn/kernels/recurrent.hpp"

#include "packrnn/kernels/check.hpp"
#include "packrnn/kernels/cpu/recurrent.hpp"
#include "packrnn/kernels/cuda/recurrent.hpp"
#include "packrnn/kernels/cuda/recurrent_panels.hpp"

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

std::int64_t recurrent_panel_elements(Device device, const RecurrentShape& shape) {
  check_shape(device, shape);
  return device.type == DeviceType::cuda ? cuda::RecurrentPanels::of(shape).elements
                                         : cpu::recurrent_panel_elements(shape);
}

void pack_recurrent(Context& context, const RecurrentShape& s, const RecurrentWeights& w,
                    const TensorSpan& panels) {
  const Device device = context.device();
  const std::int64_t elements = recurrent_panel_elements(device, s);
  const std::int64_t rows = gates(s.cell) * s.hidden;
  check("w_ih", w.w_ih, {rows, s.input}, s.dtype);
  check("w_hh", w.w_hh, {rows, s.state()}, s.dtype);
  check_optional("b_ih", w.b_ih, {rows}, s.dtype);
  check_optional("b_hh", w.b_hh, {rows}, s.dtype);
  if (s.projection > 0) check("w_hr", w.w_hr, {s.projection, s.hidden}, s.dtype);
  check_panels(panels, elements, s.dtype, device);
  if (device.type == DeviceType::cpu) return cpu::pack_recurrent(s, w, panels);
  Tensor filled = Tensor::empty({elements}, s.dtype);
  cuda::fill_panels(s, w, filled.span().raw());
  context.copy(filled, panels);
}

void recurrent_forward(Context& context, const RecurrentShape& s, const PackedLayout& layout,
                       const TensorView& x, std::span<const RecurrentDirection> directions,
                       const TensorSpan& y, const TensorSpan& cells) {
  const Device device = context.device();
  const std::int64_t elements = recurrent_panel_elements(device, s);
  const auto count = static_cast<std::int64_t>(directions.size());
  expects(count == 1 || count == 2, "directions: {} given, expected 1 or 2", count);
  const std::int64_t total = layout.total(), batch = layout.batch();
  const bool lstm = s.cell == Cell::lstm;
  const Dtype cell = cell_dtype(s.dtype);
  check("x", x, {total, s.input}, s.dtype, device);
  check("y", y, {total, count * s.state()}, s.dtype, device);
  expects(lstm || !cells.defined(), "cells: {} has no cell state", name_of(s.cell));
  check_optional("cells", cells, {total, count * s.hidden}, cell, device);
  for (const RecurrentDirection& d : directions) {
    check_panels(d.panels, elements, s.dtype, device);
    check_optional("h_0", d.h_0, {batch, s.state()}, s.dtype, device);
    check("h_n", d.h_n, {batch, s.state()}, s.dtype, device);
    expects(lstm || !d.c_0.defined(), "c_0: {} has no cell state", name_of(s.cell));
    check_optional("c_0", d.c_0, {batch, s.hidden}, cell, device);
    if (lstm) check("c_n", d.c_n, {batch, s.hidden}, cell, device);
  }
  if (device.type == DeviceType::cuda)
    cuda::recurrent_forward(context, s, layout, x, directions, y, cells);
  else
    cpu::recurrent_forward(context, s, layout, x, directions, y, cells);
}

std::string explain_recurrent(Context& context, const RecurrentShape& shape,
                              const PackedLayout& layout, std::int64_t directions) {
  check_shape(context.device(), shape);
  if (context.device().type == DeviceType::cuda)
    return cuda::explain_recurrent(context, shape, layout, directions);
  return cpu::recurrent_plan(context, shape, layout, directions).reason;
}

}  // namespace packrnn::kernels

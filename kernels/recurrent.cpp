#include "packrnn/kernels/recurrent.hpp"

#include "packrnn/kernels/check.hpp"
#include "packrnn/kernels/cpu/recurrent.hpp"

namespace packrnn::kernels {
namespace {

void check_shape(const RecurrentShape& s) {
  expects(s.input > 0 && s.hidden > 0, "recurrent: input {} and hidden {} must be positive",
          s.input, s.hidden);
  expects(s.projection >= 0 && s.projection < s.hidden,
          "recurrent: projection {} must be at least 0 and less than hidden {}", s.projection,
          s.hidden);
  expects(s.projection == 0 || s.cell == Cell::lstm,
          "recurrent: projection {} is for an LSTM only, not for {}", s.projection,
          name_of(s.cell));
  check_computable("recurrent", s.dtype);
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

std::int64_t recurrent_panel_elements(const RecurrentShape& shape) {
  check_shape(shape);
  return cpu::recurrent_panel_elements(shape);
}

void pack_recurrent(const RecurrentShape& s, const RecurrentWeights& w, const TensorSpan& panels) {
  check_shape(s);
  const std::int64_t rows = gates(s.cell) * s.hidden;
  check("w_ih", w.w_ih, {rows, s.input}, s.dtype);
  check("w_hh", w.w_hh, {rows, s.state()}, s.dtype);
  check_optional("b_ih", w.b_ih, {rows}, s.dtype);
  check_optional("b_hh", w.b_hh, {rows}, s.dtype);
  if (s.projection > 0) check("w_hr", w.w_hr, {s.projection, s.hidden}, s.dtype);
  check_panels(panels, recurrent_panel_elements(s), s.dtype);
  cpu::pack_recurrent(s, w, panels);
}

void recurrent_forward(Context& context, const RecurrentShape& s, const PackedLayout& layout,
                       const TensorView& x, std::span<const RecurrentDirection> directions,
                       const TensorSpan& y, const TensorSpan& cells) {
  check_shape(s);
  const auto count = static_cast<std::int64_t>(directions.size());
  expects(count == 1 || count == 2, "directions: {} given, expected 1 or 2", count);
  const std::int64_t total = layout.total(), batch = layout.batch();
  const bool lstm = s.cell == Cell::lstm;
  check("x", x, {total, s.input}, s.dtype);
  check("y", y, {total, count * s.state()}, s.dtype);
  expects(lstm || !cells.defined(), "cells: {} has no cell state", name_of(s.cell));
  check_optional("cells", cells, {total, count * s.hidden}, s.dtype);
  const std::int64_t elements = recurrent_panel_elements(s);
  for (const RecurrentDirection& d : directions) {
    check_panels(d.panels, elements, s.dtype);
    check_optional("h_0", d.h_0, {batch, s.state()}, s.dtype);
    check("h_n", d.h_n, {batch, s.state()}, s.dtype);
    expects(lstm || !d.c_0.defined(), "c_0: {} has no cell state", name_of(s.cell));
    check_optional("c_0", d.c_0, {batch, s.hidden}, s.dtype);
    if (lstm) check("c_n", d.c_n, {batch, s.hidden}, s.dtype);
  }
  cpu::recurrent_forward(context, s, layout, x, directions, y, cells);
}

std::string explain_recurrent(Context& context, const RecurrentShape& shape,
                              const PackedLayout& layout, std::int64_t directions) {
  check_shape(shape);
  return cpu::recurrent_plan(context, shape, layout, directions).reason;
}

}  // namespace packrnn::kernels

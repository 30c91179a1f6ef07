#include "packrnn/kernels/recurrent_backward.hpp"

#include <fmt/format.h>

#include "packrnn/kernels/check.hpp"
#include "packrnn/kernels/cpu/recurrent_backward.hpp"

namespace packrnn::kernels {
namespace {

/// Throws unless a backward of such a layer runs on such a device.
void check_shape(Device device, const RecurrentShape& s) {
  recurrent_panel_elements(device, s);  // what a forward does not take, a backward does not either
  if (device.type == DeviceType::cuda) throw Unsupported("recurrent_backward: not on a GPU yet");
}

void check_direction(const RecurrentShape& s, const PackedLayout& layout, std::int64_t elements,
                     const RecurrentBackwardDirection& d) {
  const std::int64_t N = layout.batch(), S = s.state(), H = s.hidden, rows = gates(s.cell) * H;
  const Dtype cell = cell_dtype(s.dtype);
  check_panels(d.panels, elements, s.dtype);
  check("reserve", d.reserve, {recurrent_reserve_elements(Device::cpu(), s, layout.total())}, cell);
  check_optional("h_0", d.h_0, {N, S}, s.dtype);
  check_optional("dh_n", d.dh_n, {N, S}, cell);
  check_optional("dh_0", d.dh_0, {N, S}, cell);
  const auto check_cell = [&](std::string_view name, const TensorView& state) {
    expects(s.cell == Cell::lstm || !state.defined(), "{}: {} has no cell state", name,
            name_of(s.cell));
    check_optional(name, state, {N, H}, cell);
  };
  check_cell("c_0", d.c_0);
  check_cell("dc_n", d.dc_n);
  check_cell("dc_0", d.dc_0);
  check_optional("gradient of w_ih", d.weights.w_ih, {rows, s.input}, cell);
  check_optional("gradient of w_hh", d.weights.w_hh, {rows, S}, cell);
  check_optional("gradient of b_ih", d.weights.b_ih, {rows}, cell);
  check_optional("gradient of b_hh", d.weights.b_hh, {rows}, cell);
  expects(s.projection > 0 || !d.weights.w_hr.defined(),
          "gradient of w_hr: the layer has no projection");
  check_optional("gradient of w_hr", d.weights.w_hr, {s.projection, H}, cell);
}

}  // namespace

std::int64_t recurrent_reserve_elements(Device device, const RecurrentShape& shape,
                                        std::int64_t total) {
  check_shape(device, shape);
  expects(total >= 0, "total is {}, expected at least 0", total);
  return cpu::recurrent_reserve_elements(shape, total);
}

std::int64_t recurrent_backward_panel_elements(Device device, const RecurrentShape& shape) {
  check_shape(device, shape);
  if (shape.storage != WeightStorage::full)
    throw Unsupported(fmt::format(
        "recurrent_backward: weights stored as {} are for inference; train with full ones",
        name_of(shape.storage)));
  return cpu::recurrent_backward_panel_elements(shape);
}

void pack_recurrent_backward(Context& context, const RecurrentShape& s, const RecurrentWeights& w,
                             const TensorSpan& panels) {
  const std::int64_t elements = recurrent_backward_panel_elements(context.device(), s);
  const std::int64_t rows = gates(s.cell) * s.hidden;
  check("w_ih", w.w_ih, {rows, s.input}, s.dtype);
  check("w_hh", w.w_hh, {rows, s.state()}, s.dtype);
  if (s.projection > 0) check("w_hr", w.w_hr, {s.projection, s.hidden}, s.dtype);
  check_panels(panels, elements, s.dtype);
  cpu::pack_recurrent_backward(context, s, w, panels);
}

void recurrent_backward(Context& context, const RecurrentShape& s, const PackedLayout& layout,
                        const TensorView& x, const TensorView& y, const TensorView& dy,
                        std::span<const RecurrentBackwardDirection> directions,
                        const TensorSpan& dx) {
  check_shape(context.device(), s);
  const std::int64_t elements = recurrent_backward_panel_elements(context.device(), s);
  const auto count = static_cast<std::int64_t>(directions.size());
  expects(count == 1 || count == 2, "directions: {} given, expected 1 or 2", count);
  const std::int64_t total = layout.total(), width = count * s.state();
  check("x", x, {total, s.input}, s.dtype);
  check("y", y, {total, width}, s.dtype);
  check_optional("dy", dy, {total, width}, s.dtype);
  check_optional("dx", dx, {total, s.input}, s.dtype);
  for (const RecurrentBackwardDirection& d : directions) check_direction(s, layout, elements, d);
  cpu::recurrent_backward(context, s, layout, x, y, dy, directions, dx);
}

}  // namespace packrnn::kernels

#include "packrnn/kernels/recurrent_backward.hpp"

#include <fmt/format.h>

#include "packrnn/kernels/check.hpp"
#include "packrnn/kernels/check_weights.hpp"
#include "packrnn/kernels/cpu/recurrent_backward.hpp"
#include "packrnn/kernels/cuda/pack_panels.hpp"
#include "packrnn/kernels/cuda/recurrent_backward.hpp"

namespace packrnn::kernels {
namespace {

bool on_gpu(Device device) { return device.type == DeviceType::cuda; }

/// Throws unless a backward of such a layer runs on such a device.
void check_shape(Device device, const RecurrentShape& s) {
  recurrent_panel_elements(device, s);  // what a forward does not take, a backward does not either
}

void check_direction(Device device, const RecurrentShape& s, const PackedLayout& layout,
                     std::int64_t elements, const RecurrentBackwardDirection& d) {
  const std::int64_t N = layout.batch(), S = s.state(), H = s.hidden, rows = gates(s.cell) * H;
  const Dtype cell = cell_dtype(s.dtype);
  const auto check_maybe = [&](std::string_view name, const TensorView& tensor, const Shape& shape,
                               Dtype dtype) { check_optional(name, tensor, shape, dtype, device); };
  check_panels(d.panels, elements, s.dtype, device);
  check("reserve", d.reserve, {recurrent_reserve_elements(device, s, layout.total())}, cell,
        device);
  check_maybe("h_0", d.h_0, {N, S}, s.dtype);
  check_maybe("dh_n", d.dh_n, {N, S}, cell);
  check_maybe("dh_0", d.dh_0, {N, S}, cell);
  const auto check_cell = [&](std::string_view name, const TensorView& state) {
    expects(s.cell == Cell::lstm || !state.defined(), "{}: {} has no cell state", name,
            name_of(s.cell));
    check_maybe(name, state, {N, H}, cell);
  };
  check_cell("c_0", d.c_0);
  check_cell("dc_n", d.dc_n);
  check_cell("dc_0", d.dc_0);
  check_maybe("gradient of w_ih", d.weights.w_ih, {rows, s.input}, cell);
  check_maybe("gradient of w_hh", d.weights.w_hh, {rows, S}, cell);
  check_maybe("gradient of b_ih", d.weights.b_ih, {rows}, cell);
  check_maybe("gradient of b_hh", d.weights.b_hh, {rows}, cell);
  expects(s.projection > 0 || !d.weights.w_hr.defined(),
          "gradient of w_hr: the layer has no projection");
  check_maybe("gradient of w_hr", d.weights.w_hr, {s.projection, H}, cell);
}

}  // namespace

std::int64_t recurrent_reserve_elements(Device device, const RecurrentShape& shape,
                                        std::int64_t total) {
  check_shape(device, shape);
  expects(total >= 0, "total is {}, expected at least 0", total);
  return on_gpu(device) ? cuda::recurrent_reserve_elements(shape, total)
                        : cpu::recurrent_reserve_elements(shape, total);
}

std::int64_t recurrent_backward_panel_elements(Device device, const RecurrentShape& shape) {
  check_shape(device, shape);
  if (shape.storage != WeightStorage::full)
    throw Unsupported(fmt::format(
        "recurrent_backward: weights stored as {} are for inference; train with full ones",
        name_of(shape.storage)));
  return on_gpu(device) ? cuda::RecurrentBackwardPanels::of(shape).elements
                        : cpu::recurrent_backward_panel_elements(shape);
}

void pack_recurrent_backward(Context& context, const RecurrentShape& s, const RecurrentWeights& w,
                             const TensorSpan& panels) {
  const Device device = context.device();
  const std::int64_t elements = recurrent_backward_panel_elements(device, s);
  check_weights(device, s, w);
  check_panels(panels, elements, s.dtype, device);
  if (!on_gpu(device)) return cpu::pack_recurrent_backward(context, s, w, panels);
  if (w.w_ih.device() == device)
    return cuda::pack_backward_panels(context.stream(), s, w, panels.raw());
  const auto up = [&](const TensorView& t) {
    return t.defined() ? context.to_device(t) : Tensor();
  };
  const Tensor w_ih = up(w.w_ih), w_hh = up(w.w_hh), b_ih = up(w.b_ih), b_hh = up(w.b_hh),
               w_hr = up(w.w_hr);
  cuda::pack_backward_panels(context.stream(), s, {w_ih, w_hh, b_ih, b_hh, w_hr}, panels.raw());
}

void recurrent_backward(Context& context, const RecurrentShape& s, const PackedLayout& layout,
                        const TensorView& x, const TensorView& y, const TensorView& dy,
                        std::span<const RecurrentBackwardDirection> directions,
                        const TensorSpan& dx) {
  const Device device = context.device();
  const std::int64_t elements = recurrent_backward_panel_elements(device, s);
  const auto count = static_cast<std::int64_t>(directions.size());
  expects(count == 1 || count == 2, "directions: {} given, expected 1 or 2", count);
  const std::int64_t total = layout.total(), width = count * s.state();
  check("x", x, {total, s.input}, s.dtype, device);
  check("y", y, {total, width}, s.dtype, device);
  check_optional("dy", dy, {total, width}, s.dtype, device);
  check_optional("dx", dx, {total, s.input}, s.dtype, device);
  for (const RecurrentBackwardDirection& d : directions)
    check_direction(device, s, layout, elements, d);
  if (on_gpu(device))
    cuda::recurrent_backward(context, s, layout, x, y, dy, directions, dx);
  else
    cpu::recurrent_backward(context, s, layout, x, y, dy, directions, dx);
}

std::string explain_recurrent_backward(Context& context, const RecurrentShape& shape,
                                       const PackedLayout& layout, std::int64_t directions) {
  recurrent_backward_panel_elements(context.device(), shape);  // throws where there is none
  if (on_gpu(context.device()))
    return cuda::explain_recurrent_backward(context, shape, layout, directions);
  return fmt::format("{} {}: backward on the CPU, {} thread{}, each with sequences of its own",
                     name_of(shape.cell), shape.dtype, context.threads(),
                     context.threads() == 1 ? "" : "s");
}

}  // namespace packrnn::kernels

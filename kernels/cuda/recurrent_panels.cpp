#include "packrnn/kernels/cuda/recurrent_panels.hpp"

#include <cstring>
#include <type_traits>

#include "packrnn/kernels/cuda/recurrent_backward_run.hpp"
#include "packrnn/runtime/element.hpp"

namespace packrnn::kernels::cuda {
namespace {

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

template <class T>
void fill(const RecurrentShape& s, const RecurrentWeights& w, T* panels) {
  using Sum = std::conditional_t<std::is_same_v<T, double>, double, float>;
  const RecurrentPanels p = RecurrentPanels::of(s);
  const auto matrix = [&](const TensorView& from, std::int64_t k, std::int64_t at,
                          std::int64_t pitch, std::int64_t units, std::int64_t per_unit) {
    const T* const rows = from.data<T>();
    for (std::int64_t u = 0; u < units; ++u)
      for (std::int64_t g = 0; g < per_unit; ++g)
        std::memcpy(panels + at + (u * per_unit + g) * pitch, rows + (g * units + u) * k,
                    static_cast<std::size_t>(k) * sizeof(T));
  };
  matrix(w.w_ih, s.input, p.w_ih, p.pitch_ih, s.hidden, p.gates);
  matrix(w.w_hh, s.state(), p.w_hh, p.pitch_hh, s.hidden, p.gates);
  if (s.projection > 0) matrix(w.w_hr, s.hidden, p.w_hr, p.pitch_hr, s.projection, 1);

  const auto value = [](const TensorView& bias, std::int64_t row) {
    return bias.defined() ? convert_element<Sum>(bias.data<T>()[row]) : Sum{0};
  };
  Sum* const bias = reinterpret_cast<Sum*>(panels + p.bias);
  Sum* const bias_n = reinterpret_cast<Sum*>(panels + p.bias_n);
  for (std::int64_t u = 0; u < s.hidden; ++u)
    for (std::int64_t g = 0; g < p.gates; ++g) {
      const std::int64_t row = g * s.hidden + u;
      const bool separate = s.cell == Cell::gru && g == 2;  // b_hn stays inside r * (.)
      const Sum ih = value(w.b_ih, row), hh = value(w.b_hh, row);
      bias[u * p.gates + g] = separate ? ih : ih + hh;
      if (separate) bias_n[u] = hh;
    }
}

}  // namespace

RecurrentPanels RecurrentPanels::of(const RecurrentShape& s) {
  const auto size = static_cast<std::int64_t>(size_of(s.dtype));
  const std::int64_t sum_size = s.dtype == Dtype::f64 ? 8 : 4;
  RecurrentPanels p{};
  p.gates = kernels::gates(s.cell);
  p.units = round_up(s.hidden, kUnits);
  p.pitch_ih = round_up(s.input, 16 / size);
  p.pitch_hh = round_up(s.state(), kPitch);
  p.pitch_hr = s.projection > 0 ? round_up(s.hidden, kPitch) : 0;
  std::int64_t end = 0;
  const auto place = [&](std::int64_t count) {
    const std::int64_t begin = end;
    end += round_up(count, 64 / size);
    return begin;
  };
  p.w_ih = place(p.units * p.gates * p.pitch_ih);
  p.w_hh = place(p.units * p.gates * p.pitch_hh);
  p.w_hr = place(s.projection * p.pitch_hr);
  p.bias = place(p.units * p.gates * sum_size / size);
  p.bias_n = place(p.units * sum_size / size);
  p.elements = end;
  return p;
}

RecurrentBackwardPanels RecurrentBackwardPanels::of(const RecurrentShape& s) {
  const auto size = static_cast<std::int64_t>(size_of(s.dtype));
  RecurrentBackwardPanels p{};
  p.gates = kernels::gates(s.cell);
  p.parts = s.cell == Cell::gru ? 4 : p.gates;
  p.units = round_up(s.hidden, kUnits);
  p.pitch_hh = p.pitch_ih = round_up(p.gates * p.units, kPitch);
  p.pitch_hr = round_up(s.projection, kPitch);
  std::int64_t end = 0;
  const auto place = [&](std::int64_t count) {
    const std::int64_t begin = end;
    end += round_up(count, 64 / size);
    return begin;
  };
  p.w_hh = place(s.state() * p.pitch_hh);
  p.w_ih = place(s.input * p.pitch_ih);
  p.w_hr = place(s.hidden * p.pitch_hr);
  p.forward = place(RecurrentPanels::of(s).elements);
  p.elements = end;
  return p;
}

void fill_panels(const RecurrentShape& shape, const RecurrentWeights& weights, void* panels) {
  std::memset(panels, 0,
              static_cast<std::size_t>(RecurrentPanels::of(shape).elements) * size_of(shape.dtype));
  switch (shape.dtype) {
    case Dtype::f32:
      return fill(shape, weights, static_cast<float*>(panels));
    case Dtype::f64:
      return fill(shape, weights, static_cast<double*>(panels));
    case Dtype::f16:
      return fill(shape, weights, static_cast<Half*>(panels));
    default:
      return fill(shape, weights, static_cast<BFloat16*>(panels));
  }
}

}  // namespace packrnn::kernels::cuda

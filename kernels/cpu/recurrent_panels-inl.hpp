// How the weights of one direction of one layer lie in panels; included once per instruction set.

#if defined(PACKRNN_CPU_RECURRENT_PANELS_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef PACKRNN_CPU_RECURRENT_PANELS_INL
#undef PACKRNN_CPU_RECURRENT_PANELS_INL
#else
#define PACKRNN_CPU_RECURRENT_PANELS_INL
#endif

#include "packrnn/kernels/cpu/panel-inl.hpp"
#include "packrnn/kernels/recurrent.hpp"

HWY_BEFORE_NAMESPACE();
namespace packrnn::kernels::HWY_NAMESPACE {

/// Panel geometry of a cell: kWidth vectors hold kBlocks blocks of units, each with its kGates
/// gates.
template <Cell kCell>
inline constexpr int kGates = gates(kCell);
template <Cell kCell>
inline constexpr int kBlocks = kGates<kCell> == 1 ? 4 : 1;
template <Cell kCell>
inline constexpr int kWidth = kGates<kCell>* kBlocks<kCell>;
inline constexpr int kProjectionWidth = 4;

/// Where each part of the packed weights begins, in elements of the layer's dtype, of which a
/// weight in 16-bit storage is half a one.
struct PanelMap {
  std::int64_t units;                                     // H rounded up to whole panels
  std::int64_t columns;                                   // gate columns: G * units
  std::int64_t recurrent, bias, bias_n, projection, end;  // the input panels begin at 0

  PanelMap(const RecurrentShape& s, std::int64_t lanes) {
    const int gate_count = gates(s.cell), blocks = gate_count == 1 ? 4 : 1;
    units = round_up(s.hidden, blocks * lanes);
    columns = gate_count * units;
    // Two weights of 16 bits in an element; of bf16 always an even number of terms.
    const auto stored = [&](std::int64_t width, std::int64_t terms) {
      return s.storage == WeightStorage::full ? width * terms
                                              : round_up(width * round_up(terms, 2) / 2, lanes);
    };
    recurrent = stored(columns, s.input);
    bias = recurrent + stored(columns, s.state());
    bias_n = bias + columns;
    projection = bias_n + (s.cell == Cell::gru ? units : 0);
    end =
        projection +
        (s.projection > 0 ? stored(round_up(s.projection, kProjectionWidth * lanes), s.hidden) : 0);
  }
};

/// Row stride of a state buffer: whole panels, and never a multiple of 4 KiB, where the rows of a
/// tile would fall into one cache set.
template <class T>
std::int64_t state_stride(std::int64_t width) {
  return round_up(width, kLanes<T>) + 64 / std::int64_t{sizeof(T)};
}

/// What a forward keeps of each packed row, in planes of `units`: the gates after their
/// activations, which the backward replaces by the gradients of their sums, and what else it needs.
///   LSTM                i f g o, then c
///   GRU                 n r z, then W_hn h + b_hn; so that the gradients of the input's sums and
///                       those of the state's, which differ in n, are both neighbours
///   GRU (reset before)  r z n, then room for r h
///   RNN                 h
template <class T>
struct ReserveMap {
  std::int64_t units;
  std::int64_t projected;  // where the gradient of a projected h goes
  std::int64_t stride;     // of rows

  explicit ReserveMap(const RecurrentShape& s)
      : units(PanelMap(s, kLanes<T>).units),
        projected((gates(s.cell) + (gates(s.cell) > 1 ? 1 : 0)) * units),
        stride(state_stride<T>(projected + s.projection)) {}
};

/// Whether steps read the recurrent weights up and down in turns, so that what was read last is
/// still in a core's own cache: where that holds much of them, and rows are so few that reading is
/// what takes the time. Else up: the machine looks ahead.
inline bool turns_panels(const RecurrentShape& s, std::int64_t rows) {
  constexpr std::int64_t kTwoCaches = 2 << 20;
  const auto element = static_cast<std::int64_t>(size_of(s.dtype));
  return rows <= 2 && gates(s.cell) * s.hidden * s.state() * element <= kTwoCaches;
}

/// Calls body with a part of the packed weights as what it is stored as.
template <class T, class Body>
HWY_INLINE void with_stored(const RecurrentShape& s, T* part, Body&& body) {
  if constexpr (std::is_same_v<std::remove_const_t<T>, float>) {
    const auto as = [&]<class W>(std::type_identity<W>) {
      body(reinterpret_cast<std::conditional_t<std::is_const_v<T>, const W, W>*>(part));
    };
    if (s.storage == WeightStorage::f16) return as(std::type_identity<Half>());
    if (s.storage == WeightStorage::bf16) return as(std::type_identity<BFloat16>());
  }
  body(part);
}

/// The share's part of it.
template <class T, Cell kCell>
void pack(const RecurrentShape& s, const RecurrentWeights& w, T* panels, Share share) {
  const PanelMap map(s, kLanes<T>);
  const auto row_index = [&](std::int64_t column) -> std::int64_t {  // -1: padding
    constexpr std::int64_t kN = kLanes<T>;
    const std::int64_t vector = column / kN;
    const std::int64_t unit = vector / kGates<kCell> * kN + column % kN;
    return unit < s.hidden ? vector % kGates<kCell> * s.hidden + unit : -1;
  };
  const auto rows_of = [&](const TensorView& weight, std::int64_t k) {
    return [&row_index, data = weight.data<T>(), k](std::int64_t column) {
      const std::int64_t row = row_index(column);
      return row < 0 ? nullptr : data + row * k;
    };
  };
  with_stored(s, panels, [&](auto* out) {
    fill_panels<kWidth<kCell>, T>(map.columns, s.input, rows_of(w.w_ih, s.input), out, share);
  });
  with_stored(s, panels + map.recurrent, [&](auto* out) {
    fill_panels<kWidth<kCell>, T>(map.columns, s.state(), rows_of(w.w_hh, s.state()), out, share);
  });
  if (s.projection > 0)
    with_stored(s, panels + map.projection, [&](auto* out) {
      fill_panels<kProjectionWidth, T>(
          round_up(s.projection, kProjectionWidth * kLanes<T>), s.hidden,
          [&](std::int64_t c) {
            return c < s.projection ? w.w_hr.data<T>() + c * s.hidden : nullptr;
          },
          out, share);
    });
  if (share.part > 0) return;
  for (std::int64_t c = 0; c < map.columns; ++c) {
    const std::int64_t row = row_index(c);
    const bool separate = kCell == Cell::gru && row >= 2 * s.hidden;  // b_hn stays inside r * (.)
    const T ih = row >= 0 && w.b_ih.defined() ? w.b_ih.data<T>()[row] : T{0};
    const T hh = row >= 0 && w.b_hh.defined() ? w.b_hh.data<T>()[row] : T{0};
    panels[map.bias + c] = separate ? ih : ih + hh;
  }
  if constexpr (kCell == Cell::gru)
    for (std::int64_t u = 0; u < map.units; ++u)
      panels[map.bias_n + u] =
          u < s.hidden && w.b_hh.defined() ? w.b_hh.data<T>()[2 * s.hidden + u] : T{0};
}

/// Calls body with the cell as a compile-time constant.
template <class Body>
void with_cell(Cell cell, Body&& body) {
  switch (cell) {
    case Cell::lstm:
      return body.template operator()<Cell::lstm>();
    case Cell::gru:
      return body.template operator()<Cell::gru>();
    case Cell::gru_reset_before:
      return body.template operator()<Cell::gru_reset_before>();
    case Cell::rnn_tanh:
      return body.template operator()<Cell::rnn_tanh>();
    case Cell::rnn_relu:
      return body.template operator()<Cell::rnn_relu>();
  }
}

}  // namespace packrnn::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard

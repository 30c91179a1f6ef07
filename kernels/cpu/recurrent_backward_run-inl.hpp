// The way back through the steps of one direction of one recurrent layer on the CPU; included once
// per instruction set. It leaves the gradients of all gates' sums where the forward kept the gates:
// what input and weights get of them are products over all rows (recurrent_backward.cpp).
//
// Rows do not meet on this way, so that each thread owns every team-th sequence of the sorted
// batch, takes it through all steps, and waits for nobody.

#if defined(PACKRNN_CPU_RECURRENT_BACKWARD_RUN_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef PACKRNN_CPU_RECURRENT_BACKWARD_RUN_INL
#undef PACKRNN_CPU_RECURRENT_BACKWARD_RUN_INL
#else
#define PACKRNN_CPU_RECURRENT_BACKWARD_RUN_INL
#endif

#include "packrnn/kernels/cpu/cells_backward-inl.hpp"
#include "packrnn/kernels/cpu/recurrent_panels-inl.hpp"
#include "packrnn/kernels/recurrent_backward.hpp"

HWY_BEFORE_NAMESPACE();
namespace packrnn::kernels::HWY_NAMESPACE {

inline constexpr int kBackWidth = 4;
template <class T>
inline constexpr std::int64_t kBackColumns = kBackWidth* kLanes<T>;

/// The gate whose gradient a plane of ReserveMap holds.
template <Cell kCell>
constexpr std::int64_t gate_of(std::int64_t plane) {
  return kCell == Cell::gru ? (plane + 2) % 3 : plane;
}
/// Planes of gates whose sums have h as a factor: the first, and how many.
template <Cell kCell>
inline constexpr std::int64_t kStatePlane = kCell == Cell::gru ? 1 : 0;
template <Cell kCell>
inline constexpr std::int64_t kStatePlanes = kCell == Cell::gru_reset_before ? 2 : kGates<kCell>;

/// Where the transposed weights begin, in panels of kBackColumns; terms are whole planes.
template <class T>
struct BackwardMap {
  std::int64_t units;
  std::int64_t input_terms, state_terms;
  std::int64_t input_columns, state_columns, hidden_columns;
  std::int64_t state, reset, projection, end;  // W_ih begins at 0; reset: W_hn of reset before

  explicit BackwardMap(const RecurrentShape& s) : units(PanelMap(s, kLanes<T>).units) {
    const bool before = s.cell == Cell::gru_reset_before;
    input_terms = gates(s.cell) * units;
    state_terms = input_terms - (before ? units : 0);
    input_columns = round_up(s.input, kBackColumns<T>);
    state_columns = round_up(s.state(), kBackColumns<T>);
    hidden_columns = round_up(s.hidden, kBackColumns<T>);
    state = input_columns * input_terms;
    reset = state + state_columns * state_terms;
    projection = reset + (before ? hidden_columns * units : 0);
    end = projection + hidden_columns * s.projection;
  }
};

/// Fills panels for `width` columns, where row_of_term(k) is the row of weights behind term k, or
/// nullptr for a term of zeros.
template <class T, class RowOfTerm>
void fill_transposed(std::int64_t width, std::int64_t terms, RowOfTerm&& row_of_term, T* panels) {
  for (std::int64_t first = 0; first < width; first += kBackColumns<T>)
    for (std::int64_t k = 0; k < terms; ++k, panels += kBackColumns<T>) {
      const T* row = row_of_term(k);
      const std::int64_t count = row ? std::min(kBackColumns<T>, width - first) : 0;
      if (row) std::copy_n(row + first, count, panels);
      std::fill(panels + count, panels + kBackColumns<T>, T{0});
    }
}

template <class T, Cell kCell>
void pack_backward(const RecurrentShape& s, const RecurrentWeights& w, T* panels) {
  const BackwardMap<T> map(s);
  const auto rows_of = [&](const TensorView& weight, std::int64_t first_plane) {
    const std::int64_t width = weight.size(1);
    return [&s, &map, width, first_plane, data = weight.data<T>()](std::int64_t k) -> const T* {
      const std::int64_t gate = gate_of<kCell>(first_plane + k / map.units), unit = k % map.units;
      return unit < s.hidden ? data + (gate * s.hidden + unit) * width : nullptr;
    };
  };
  fill_transposed(s.input, map.input_terms, rows_of(w.w_ih, 0), panels);
  fill_transposed(s.state(), map.state_terms, rows_of(w.w_hh, kStatePlane<kCell>),
                  panels + map.state);
  if constexpr (kCell == Cell::gru_reset_before)
    fill_transposed(s.hidden, map.units, rows_of(w.w_hh, 2), panels + map.reset);
  if (s.projection > 0)
    fill_transposed(
        s.hidden, s.projection, [&](std::int64_t k) { return w.w_hr.data<T>() + k * s.hidden; },
        panels + map.projection);
}

/// One direction of one call. Row r of dh, dc and inner is the r-th longest sequence.
template <class T>
struct BackwardJob {
  RecurrentShape shape;
  BackwardMap<T> map;
  const T* panels;
  bool reverse;
  std::span<const std::int64_t> batch_sizes, offsets, sorted_indices;
  /// Of each packed row that of the step before; ~n where that is the initial state of the caller's
  /// sequence n.
  std::span<std::int64_t> before;
  Rows<const T> y, dy;  // this direction's columns; dy.data may be null
  const T *h_0, *c_0;   // caller's order; null: zeros
  Rows<T> reserve;      // of ReserveMap
  Rows<T> dh, dc;       // of the state after the step at hand
  Rows<T> inner;        // gradient of the h to be projected, or of r h of reset before
  int team;

  /// Null: zeros.
  const T* state_before(std::int64_t row) const {
    const std::int64_t from = before[static_cast<std::size_t>(row)];
    if (from >= 0) return y[from];
    return h_0 ? h_0 + ~from * shape.state() : nullptr;
  }
  const T* cell_before(std::int64_t row) const {
    const std::int64_t from = before[static_cast<std::size_t>(row)];
    if (from >= 0) return reserve[from] + 4 * map.units;
    return c_0 ? c_0 + ~from * shape.hidden : nullptr;
  }
};

/// out = a . panels, or added to what out holds, for whole panels of columns.
template <bool kAdd, class T>
void back_product(std::int64_t rows, std::int64_t terms, std::int64_t columns, Rows<const T> a,
                  const T* panels, Rows<T> out) {
  HWY_ALIGN const T zeros[kBackColumns<T>] = {};
  for (std::int64_t c = 0; c < columns; c += kBackColumns<T>) {
    const Rows<T> part{out.data + c, out.stride};
    panel_product<kBackWidth, 0, kBackWidth>(
        rows, terms, a, panels + c * terms,
        kAdd ? Rows<const T>{part.data, part.stride} : Rows<const T>{zeros, 0}, part);
  }
}

/// This thread's rows of the step whose first own row is packed row `base`.
template <class T, Cell kCell, bool kProjected>
void back_step(const BackwardJob<T>& job, std::int64_t rows, std::int64_t base, int part) {
  constexpr std::int64_t kN = kLanes<T>;
  const Tag<T> d;
  const BackwardMap<T>& map = job.map;
  const std::int64_t S = job.shape.state(), H = job.shape.hidden;
  const auto own = [&](Rows<T> all) {
    return Rows<T>{all.data + part * all.stride, all.stride * job.team};
  };
  const Rows<T> dh = own(job.dh), dc = own(job.dc), inner = own(job.inner);
  const Rows<T> kept{job.reserve[base], job.reserve.stride * job.team};
  const auto upstream = [&](std::int64_t r, std::int64_t unit) {
    const auto back = hn::LoadU(d, dh[r] + unit);
    if (!job.dy.data) return back;
    return hn::Add(back, load_first(job.dy[base + r * job.team] + unit, S - unit));
  };

  if constexpr (kProjected) {
    const std::int64_t projected = ReserveMap<T>(job.shape).projected;
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t unit = 0; unit < S; unit += kN) {
        const auto v = upstream(r, unit);
        hn::StoreU(v, d, dh[r] + unit);
        hn::StoreU(v, d, kept[r] + projected + unit);
      }
    back_product<false>(rows, S, map.hidden_columns, Rows<const T>{dh.data, dh.stride},
                        job.panels + map.projection, inner);
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t row = base + r * job.team;
    for (std::int64_t unit = 0; unit < H; unit += kN) {
      T* const at = kept[r] + unit;
      const auto before = [&](const T* from) {
        return load_first(from ? from + unit : nullptr, H - unit);
      };
      const auto grad = kProjected ? hn::LoadU(d, inner[r] + unit) : upstream(r, unit);
      if constexpr (kCell == Cell::lstm)
        lstm_back<kProjected>(grad, before(job.cell_before(row)), at, map.units, dc[r] + unit);
      else if constexpr (kCell == Cell::gru)
        hn::StoreU(gru_back(grad, before(job.state_before(row)), at, map.units), d, dh[r] + unit);
      else if constexpr (kCell == Cell::gru_reset_before)
        hn::StoreU(gru_update_back(grad, before(job.state_before(row)), at, map.units), d,
                   dh[r] + unit);
      else
        rnn_back<kCell == Cell::rnn_relu>(grad, at);
    }
  }
  if constexpr (kCell == Cell::gru_reset_before) {
    back_product<false>(rows, map.units, map.hidden_columns,
                        Rows<const T>{kept.data + 2 * map.units, kept.stride},
                        job.panels + map.reset, inner);
    for (std::int64_t r = 0; r < rows; ++r) {
      const T* const h = job.state_before(base + r * job.team);
      for (std::int64_t unit = 0; unit < H; unit += kN) {
        const auto past =
            gru_reset_back(hn::LoadU(d, inner[r] + unit),
                           load_first(h ? h + unit : nullptr, H - unit), kept[r] + unit, map.units);
        hn::StoreU(hn::Add(hn::LoadU(d, dh[r] + unit), past), d, dh[r] + unit);
      }
    }
  }
  constexpr bool kAdd = kGates<kCell> == 3;  // of a GRU, h also has a way past the gates
  back_product<kAdd>(rows, map.state_terms, map.state_columns,
                     Rows<const T>{kept.data + kStatePlane<kCell> * map.units, kept.stride},
                     job.panels + map.state, dh);
}

template <class T, Cell kCell, bool kProjected>
HWY_NOINLINE void run_back(const BackwardJob<T>& job, int part) {
  const auto steps = static_cast<std::int64_t>(job.batch_sizes.size());
  for (std::int64_t q = 0; q < steps; ++q) {
    const auto t = static_cast<std::size_t>(job.reverse ? q : steps - 1 - q);
    const std::int64_t rows = (job.batch_sizes[t] - part + job.team - 1) / job.team;
    if (rows > 0) back_step<T, kCell, kProjected>(job, rows, job.offsets[t] + part, part);
  }
}

template <class T, Cell kCell>
void run_cell_back(const BackwardJob<T>& job, int part) {
  if constexpr (kCell == Cell::lstm)
    if (job.shape.projection > 0) return run_back<T, kCell, true>(job, part);
  run_back<T, kCell, false>(job, part);
}

}  // namespace packrnn::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard

// The way back through the steps of one direction of one recurrent layer on the CPU; included once
// per instruction set. It leaves the gradients of all gates' sums where the forward kept the gates:
// what input and weights get of them are products over all rows (recurrent_backward.cpp).
//
// A team of threads shares a step as the forward does (recurrent_run-inl.hpp): by rows, where each
// takes every team-th sequence of the sorted batch and waits for nobody, or, with few rows, by
// units, where each reads only its share of the weights and all meet in every step. Neither changes
// a bit of the result.

#if defined(PACKRNN_CPU_RECURRENT_BACKWARD_RUN_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef PACKRNN_CPU_RECURRENT_BACKWARD_RUN_INL
#undef PACKRNN_CPU_RECURRENT_BACKWARD_RUN_INL
#else
#define PACKRNN_CPU_RECURRENT_BACKWARD_RUN_INL
#endif

#include "packrnn/kernels/cpu/cells_backward-inl.hpp"
#include "packrnn/kernels/cpu/recurrent_panels-inl.hpp"
#include "packrnn/kernels/recurrent_backward.hpp"
#include "packrnn/runtime/thread_pool.hpp"

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

/// Panels for so many columns. The last is as narrow as what is left, in whole vectors.
template <class T>
constexpr std::int64_t back_panels(std::int64_t columns) {
  return (columns + kBackColumns<T> - 1) / kBackColumns<T>;
}

/// Where the transposed weights begin, in panels of kBackColumns; terms are the units of all planes
/// that count.
template <class T>
struct BackwardMap {
  std::int64_t units;                     // of a plane of the reserve
  std::int64_t input_terms, state_terms;  // H for each plane
  std::int64_t state, reset, projection;  // W_ih begins at 0; reset: W_hn of reset before
  std::int64_t end;

  explicit BackwardMap(const RecurrentShape& s) : units(PanelMap(s, kLanes<T>).units) {
    const bool before = s.cell == Cell::gru_reset_before;
    const auto width = [](std::int64_t columns) { return round_up(columns, kLanes<T>); };
    input_terms = gates(s.cell) * s.hidden;
    state_terms = input_terms - (before ? s.hidden : 0);
    state = width(s.input) * input_terms;
    reset = state + width(s.state()) * state_terms;
    projection = reset + (before ? width(s.hidden) * s.hidden : 0);
    end = projection + (s.projection > 0 ? width(s.hidden) * s.projection : 0);
  }
};

/// Fills the share's panels for `width` columns; plane p has `each` terms, which are the rows of
/// weights from rows_of_plane(p) on.
template <class T, class RowsOfPlane>
void fill_transposed(std::int64_t width, std::int64_t planes, std::int64_t each,
                     RowsOfPlane&& rows_of_plane, T* panels, Share share) {
  const Tag<T> d;
  constexpr std::int64_t kN = kLanes<T>, kColumns = kBackColumns<T>;
  const Range own = share.of(back_panels<T>(width));
  for (std::int64_t p = own.begin; p < own.end; ++p) {
    const std::int64_t first = p * kColumns, count = std::min(kColumns, width - first);
    const std::int64_t step = round_up(count, kN);
    T* to = panels + first * planes * each;
    for (std::int64_t plane = 0; plane < planes; ++plane) {
      const T* from = rows_of_plane(plane) + first;
      for (std::int64_t k = 0; k < each; ++k, from += width, to += step)
        for (std::int64_t c = 0; c < count; c += kN)
          hn::Store(load_first(from + c, count - c), d, to + c);
    }
  }
}

template <class T, Cell kCell>
void pack_backward(const RecurrentShape& s, const RecurrentWeights& w, T* panels, Share share) {
  const BackwardMap<T> map(s);
  const std::int64_t H = s.hidden, S = s.state();
  const auto rows_of = [&](const TensorView& weight, std::int64_t first_plane) {
    return [H, first_plane, width = weight.size(1), data = weight.data<T>()](std::int64_t plane) {
      return data + gate_of<kCell>(first_plane + plane) * H * width;
    };
  };
  fill_transposed(s.input, kGates<kCell>, H, rows_of(w.w_ih, 0), panels, share);
  fill_transposed(S, kStatePlanes<kCell>, H, rows_of(w.w_hh, kStatePlane<kCell>),
                  panels + map.state, share);
  if constexpr (kCell == Cell::gru_reset_before)
    fill_transposed(H, 1, H, rows_of(w.w_hh, 2), panels + map.reset, share);
  if (s.projection > 0)
    fill_transposed(
        H, 1, s.projection, [&](std::int64_t) { return w.w_hr.data<T>(); }, panels + map.projection,
        share);
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
  Rows<const T> y, dy;        // this direction's columns; dy.data may be null
  const T *h_0, *c_0;         // caller's order; null: zeros
  Rows<T> reserve;            // of ReserveMap
  Rows<T> dh, dc;             // of the state after the step at hand
  Rows<T> inner;              // gradient of the h to be projected, or of r h of reset before
  std::int64_t by_rows_from;  // live rows from which the team splits rows
  int team;
  Barrier* barrier;

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

/// The terms of a product: `each` of every plane, which begin `step` after those of the one before.
struct Terms {
  std::int64_t planes, each, step;

  Terms(std::int64_t plane_count, std::int64_t terms, std::int64_t distance)
      : planes(terms == distance ? 1 : plane_count),
        each(terms == distance ? plane_count * terms : terms),
        step(distance) {}
};

template <bool kAdd, int kVectors, class T>
HWY_INLINE void back_panel(std::int64_t rows, const Terms& terms, Rows<const T> a, const T* panel,
                           Rows<T> out) {
  HWY_ALIGN const T zeros[kBackColumns<T>] = {};
  Rows<const T> init{out.data, out.stride};
  if (!kAdd) init = {zeros, 0};
  for (std::int64_t p = 0; p < terms.planes; ++p) {
    panel_product<kVectors, 0, kVectors>(
        rows, terms.each, Rows<const T>{a.data + p * terms.step, a.stride}, panel, init, out);
    panel += terms.each * kVectors * kLanes<T>;
    init = {out.data, out.stride};
  }
}

/// out = a . panels, or added to what out holds, for some of the panels of `columns` columns: whole
/// vectors of them. In which order changes nothing (turns_panels()).
template <bool kAdd, class T>
void back_product(std::int64_t rows, const Terms& terms, std::int64_t columns, Range own,
                  Rows<const T> a, const T* panels, Rows<T> out, bool descending = false) {
  for (std::int64_t i = own.begin; i < own.end; ++i) {
    const std::int64_t first = (descending ? own.begin + own.end - 1 - i : i) * kBackColumns<T>;
    const T* const panel = panels + first * terms.planes * terms.each;
    const Rows<T> part{out.data + first, out.stride};
    switch (std::min<std::int64_t>(kBackWidth, (columns - first + kLanes<T> - 1) / kLanes<T>)) {
      case 1:
        back_panel<kAdd, 1>(rows, terms, a, panel, part);
        break;
      case 2:
        back_panel<kAdd, 2>(rows, terms, a, panel, part);
        break;
      case 3:
        back_panel<kAdd, 3>(rows, terms, a, panel, part);
        break;
      default:
        back_panel<kAdd, kBackWidth>(rows, terms, a, panel, part);
    }
  }
}

/// What one thread does of one step: rows first, first + stride, ..., the first of which is packed
/// row `base`, and a range of panels of the state and of the hidden units.
struct BackStep {
  std::int64_t rows, first, stride, base;
  Range state, hidden;
  bool meet;  // with the threads that do the rest of these rows
  bool descending;
};

template <class T, Cell kCell, bool kProjected>
void back_step(const BackwardJob<T>& job, const BackStep& s) {
  constexpr std::int64_t kN = kLanes<T>;
  const Tag<T> d;
  const BackwardMap<T>& map = job.map;
  const std::int64_t S = job.shape.state(), H = job.shape.hidden;
  const auto own = [&](Rows<T> all) {
    return Rows<T>{all.data + s.first * all.stride, all.stride * s.stride};
  };
  const Rows<T> dh = own(job.dh), dc = own(job.dc), inner = own(job.inner);
  const Rows<T> kept{job.reserve[s.base], job.reserve.stride * s.stride};
  const auto plane = [&](std::int64_t p) {
    return Rows<const T>{kept.data + p * map.units, kept.stride};
  };
  const std::int64_t begin = s.hidden.begin * kBackColumns<T>;
  const std::int64_t end = std::min(s.hidden.end * kBackColumns<T>, H);
  const auto upstream = [&](std::int64_t r, std::int64_t unit) {
    const auto back = hn::LoadU(d, dh[r] + unit);
    if (!job.dy.data) return back;
    return hn::Add(back, load_first(job.dy[s.base + r * s.stride] + unit, S - unit));
  };
  const auto meet = [&] {
    if (s.meet) job.barrier->wait();
  };

  if constexpr (kProjected) {
    const std::int64_t projected = ReserveMap<T>(job.shape).projected;
    const std::int64_t last = std::min(s.state.end * kBackColumns<T>, S);
    for (std::int64_t r = 0; r < s.rows; ++r)
      for (std::int64_t unit = s.state.begin * kBackColumns<T>; unit < last; unit += kN) {
        const auto v = upstream(r, unit);
        hn::StoreU(v, d, dh[r] + unit);
        hn::StoreU(v, d, kept[r] + projected + unit);
      }
    meet();
    back_product<false>(s.rows, Terms(1, S, S), H, s.hidden, Rows<const T>{dh.data, dh.stride},
                        job.panels + map.projection, inner, s.descending);
  }
  for (std::int64_t r = 0; r < s.rows; ++r) {
    const std::int64_t row = s.base + r * s.stride;
    for (std::int64_t unit = begin; unit < end; unit += kN) {
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
  meet();
  if constexpr (kCell == Cell::gru_reset_before) {
    back_product<false>(s.rows, Terms(1, H, H), H, s.hidden, plane(2), job.panels + map.reset,
                        inner, s.descending);
    for (std::int64_t r = 0; r < s.rows; ++r) {
      const T* const h = job.state_before(s.base + r * s.stride);
      for (std::int64_t unit = begin; unit < end; unit += kN) {
        const auto past =
            gru_reset_back(hn::LoadU(d, inner[r] + unit),
                           load_first(h ? h + unit : nullptr, H - unit), kept[r] + unit, map.units);
        hn::StoreU(hn::Add(hn::LoadU(d, dh[r] + unit), past), d, dh[r] + unit);
      }
    }
    meet();
  }
  constexpr bool kAdd = kGates<kCell> == 3;  // of a GRU, h also has a way past the gates
  back_product<kAdd>(s.rows, Terms(kStatePlanes<kCell>, H, map.units), S, s.state,
                     plane(kStatePlane<kCell>), job.panels + map.state, dh, s.descending);
}

template <class T, Cell kCell, bool kProjected>
HWY_NOINLINE void run_back(const BackwardJob<T>& job, int part) {
  const auto steps = static_cast<std::int64_t>(job.batch_sizes.size());
  const Range state{0, back_panels<T>(job.shape.state())};
  const Range hidden{0, back_panels<T>(job.shape.hidden)};
  const Range own_state = split(state.end, part, job.team);
  const Range own_hidden = split(hidden.end, part, job.team);
  bool was_by_rows = true;  // states were loaded before the threads began
  for (std::int64_t q = 0; q < steps; ++q) {
    const std::int64_t t = job.reverse ? q : steps - 1 - q;
    const std::int64_t live = job.batch_sizes[static_cast<std::size_t>(t)];
    const std::int64_t offset = job.offsets[static_cast<std::size_t>(t)];
    const bool by_rows = job.team == 1 || live >= job.by_rows_from;
    if (q > 0 && by_rows != was_by_rows) job.barrier->wait();
    was_by_rows = by_rows;
    const std::int64_t first = by_rows ? part : 0, stride = by_rows ? job.team : 1;
    const std::int64_t rows = std::max<std::int64_t>(0, (live - first + stride - 1) / stride);
    back_step<T, kCell, kProjected>(job,
                                    {.rows = rows,
                                     .first = first,
                                     .stride = stride,
                                     .base = offset + first,
                                     .state = by_rows ? state : own_state,
                                     .hidden = by_rows ? hidden : own_hidden,
                                     .meet = !by_rows,
                                     .descending = q % 2 == 1 && turns_panels(job.shape, rows)});
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

// One direction of one recurrent layer on the CPU; included once per instruction set.
//
// The input product of a chunk of steps is taken first (rows of many steps fill the register tile
// even when few sequences live), then each step adds the recurrent product and applies the cell
// while the sums are still in L1. A team of threads works on a direction in one of two ways, chosen
// anew for every chunk as the batch shrinks:
//   by rows      each thread owns every team-th row and never waits inside a chunk;
//   by units     each thread owns a range of panels, hence streams only its share of the weights,
//                and all meet at a barrier after every step.
// Neither changes a bit of the result (see panel-inl.hpp).

#if defined(PACKRNN_CPU_RECURRENT_RUN_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef PACKRNN_CPU_RECURRENT_RUN_INL
#undef PACKRNN_CPU_RECURRENT_RUN_INL
#else
#define PACKRNN_CPU_RECURRENT_RUN_INL
#endif

#include "packrnn/kernels/cpu/cells-inl.hpp"
#include "packrnn/kernels/cpu/recurrent_panels-inl.hpp"
#include "packrnn/runtime/thread_pool.hpp"

HWY_BEFORE_NAMESPACE();
namespace packrnn::kernels::HWY_NAMESPACE {

/// One direction of one call. Row r of the state buffers is the r-th longest sequence.
template <class T>
struct Job {
  RecurrentShape shape;
  PanelMap map;
  const T* panels;
  bool reverse;
  std::span<const std::int64_t> batch_sizes, offsets, sorted_indices;
  Rows<const T> x;
  Rows<T> y, cells;           // this direction's columns; cells.data may be null
  Rows<T> reserve;            // of ReserveMap; data may be null
  const T *h_0, *c_0;         // caller's order; null: zeros
  Rows<T> h[2];               // state before and after a step, in turns
  Rows<T> c;                  // LSTM
  Rows<T> hidden, z;          // unprojected h; or r h and z of a GRU that resets before
  T* gates[2];                // input products of a chunk of steps, in turns
  std::int64_t chunk_rows;    // up to which steps share a chunk
  std::int64_t gate_rows;     // most rows of a chunk
  std::int64_t by_rows_from;  // live rows from which the team splits rows
  int team;
  Barrier* barrier;

  std::int64_t step_at(std::int64_t q) const {
    const auto steps = static_cast<std::int64_t>(batch_sizes.size());
    return reverse ? steps - 1 - q : q;
  }
  std::int64_t rows_at(std::int64_t t) const { return batch_sizes[static_cast<std::size_t>(t)]; }
  std::int64_t offset(std::int64_t t) const { return offsets[static_cast<std::size_t>(t)]; }
  void wait() const {
    if (team > 1) barrier->wait();
  }
};

/// What one thread does of one step: rows first, first + stride, ... and a range of panels.
template <class T>
struct Step {
  std::int64_t rows;
  Rows<const T> gates, h;  // of this step's first own row
  Rows<T> h_next, c, hidden, z, y, cells, reserve;
  bool descending;  // order of panels

  /// Where what a backward needs of a row's unit goes; null: nowhere.
  HWY_INLINE T* kept(std::int64_t row, std::int64_t unit) const {
    return reserve.data ? reserve[row] + unit : nullptr;
  }
};

/// panel_product() with panel p of the part of the weights that begins at `part`.
template <int kW, int kFirst, int kCount, class T>
HWY_INLINE void product(const Job<T>& job, std::int64_t part, std::int64_t p, std::int64_t rows,
                        std::int64_t k_count, Rows<const T> a, Rows<const T> init, Rows<T> out) {
  with_stored(job.shape, job.panels + part, [&]<class W>(const W* panels) {
    panel_product<kW, kFirst, kCount>(rows, k_count, a,
                                      panels + p * panel_elements<kW, T, W>(k_count), init, out);
  });
}

template <class T>
HWY_INLINE Rows<T> every(Rows<T> rows, std::int64_t first, std::int64_t stride) {
  return {rows.data + first * rows.stride, rows.stride * stride};
}

/// Calls body(first, count) for groups of at most kGroupRows rows, dealt evenly.
template <class Body>
HWY_INLINE void for_groups(std::int64_t rows, Body&& body) {
  const std::int64_t groups = (rows + kGroupRows - 1) / kGroupRows;
  for (std::int64_t g = 0; g < groups; ++g) {
    const std::int64_t first = rows * g / groups;
    body(first, rows * (g + 1) / groups - first);
  }
}

/// The recurrent product and the cell, for panels [begin, end). With two phases (projection, reset
/// before) this is the first: it ends in `hidden` instead of in h_next and y.
template <class T, Cell kCell, bool kProjected>
void first_phase(const Job<T>& job, const Step<T>& s, std::int64_t begin, std::int64_t end) {
  constexpr std::int64_t kN = kLanes<T>;
  constexpr int kW = kWidth<kCell>, kG = kGates<kCell>;
  constexpr std::int64_t kColumns = kW * kN;
  const Tag<T> d;
  const std::int64_t k_count = job.shape.state();
  HWY_ALIGN T buffer[kGroupRows * kColumns];
  const Rows<T> sum{buffer, kColumns};
  const std::int64_t turn = s.descending ? -1 : 1;
  std::int64_t p = s.descending ? end - 1 : begin;
  for (std::int64_t left = end - begin; left > 0; --left, p += turn) {
    for_groups(s.rows, [&](std::int64_t first, std::int64_t count) {
      const Rows<const T> h{s.h[first], s.h.stride};
      const Rows<const T> gates{s.gates[first] + p * kColumns, s.gates.stride};
      if constexpr (kCell == Cell::gru) {  // the n column starts from b_hn, not from the input
        const auto bias_n = hn::Load(d, job.panels + job.map.bias_n + p * kN);
        for (std::int64_t r = 0; r < count; ++r) {
          hn::Store(hn::LoadU(d, gates[r]), d, sum[r]);
          hn::Store(hn::LoadU(d, gates[r] + kN), d, sum[r] + kN);
          hn::Store(bias_n, d, sum[r] + 2 * kN);
        }
        product<kW, 0, kW>(job, job.map.recurrent, p, count, k_count, h,
                           Rows<const T>{sum.data, sum.stride}, sum);
      } else if constexpr (kCell == Cell::gru_reset_before) {
        product<kW, 0, 2>(job, job.map.recurrent, p, count, k_count, h, gates, sum);
      } else {
        product<kW, 0, kW>(job, job.map.recurrent, p, count, k_count, h, gates, sum);
      }
      for (std::int64_t r = 0; r < count; ++r) {
        const std::int64_t row = first + r;
        for (int b = 0; b < kBlocks<kCell>; ++b) {
          const std::int64_t unit = (p * kBlocks<kCell> + b) * kN;
          const T* q = sum[r] + b * kG * kN;
          if constexpr (kCell == Cell::gru_reset_before) {
            gru_reset(q, s.h[row] + unit, s.z[row] + unit, s.hidden[row] + unit, s.kept(row, unit),
                      job.map.units);
            continue;
          }
          hn::Vec<Tag<T>> out;
          if constexpr (kCell == Cell::lstm) {
            out = lstm_cell(q, s.c[row] + unit, s.kept(row, unit), job.map.units);
            if (s.cells.data)
              store_first(hn::LoadU(d, s.c[row] + unit), job.shape.hidden - unit,
                          s.cells[row] + unit);
          } else if constexpr (kCell == Cell::gru) {
            out = gru_cell(q, gates[r] + 2 * kN, s.h[row] + unit, s.kept(row, unit), job.map.units);
          } else {
            out = rnn_cell<kCell == Cell::rnn_relu>(q);
            if (s.reserve.data) hn::StoreU(out, d, s.kept(row, unit));
          }
          if constexpr (kProjected) {
            hn::StoreU(out, d, s.hidden[row] + unit);
          } else {
            hn::StoreU(out, d, s.h_next[row] + unit);
            store_first(out, job.shape.hidden - unit, s.y[row] + unit);
          }
        }
      }
    });
  }
}

/// h' = W_hr hidden, for projection panels [begin, end).
template <class T>
void project(const Job<T>& job, const Step<T>& s, std::int64_t begin, std::int64_t end) {
  constexpr std::int64_t kN = kLanes<T>, kColumns = kProjectionWidth * kN;
  const Tag<T> d;
  const std::int64_t k_count = job.shape.hidden;
  HWY_ALIGN const T zeros[kColumns] = {};
  HWY_ALIGN T buffer[kGroupRows * kColumns];
  const Rows<T> sum{buffer, kColumns};
  for (std::int64_t p = begin; p < end; ++p)
    for_groups(s.rows, [&](std::int64_t first, std::int64_t count) {
      product<kProjectionWidth, 0, kProjectionWidth>(
          job, job.map.projection, p, count, k_count,
          Rows<const T>{s.hidden[first], s.hidden.stride}, Rows<const T>{zeros, 0}, sum);
      for (std::int64_t r = 0; r < count; ++r)
        for (std::int64_t v = 0; v < kProjectionWidth; ++v) {
          const std::int64_t unit = p * kColumns + v * kN, left = job.shape.projection - unit;
          if (left <= 0) break;
          const auto out = hn::Load(d, sum[r] + v * kN);
          store_first(out, left, s.h_next[first + r] + unit);
          store_first(out, left, s.y[first + r] + unit);
        }
    });
}

/// n and h' of a GRU that resets before, for panels [begin, end).
template <class T>
void update(const Job<T>& job, const Step<T>& s, std::int64_t begin, std::int64_t end) {
  constexpr std::int64_t kN = kLanes<T>, kColumns = 3 * kN;
  const Tag<T> d;
  const std::int64_t k_count = job.shape.hidden;
  HWY_ALIGN T buffer[kGroupRows * kN];
  const Rows<T> sum{buffer, kN};
  for (std::int64_t p = begin; p < end; ++p)
    for_groups(s.rows, [&](std::int64_t first, std::int64_t count) {
      product<3, 2, 1>(job, job.map.recurrent, p, count, k_count,
                       Rows<const T>{s.hidden[first], s.hidden.stride},
                       Rows<const T>{s.gates[first] + p * kColumns + 2 * kN, s.gates.stride}, sum);
      for (std::int64_t r = 0; r < count; ++r) {
        const std::int64_t row = first + r, unit = p * kN;
        const auto out =
            gru_update(sum[r], s.z[row] + unit, s.h[row] + unit, s.kept(row, unit), job.map.units);
        hn::StoreU(out, d, s.h_next[row] + unit);
        store_first(out, job.shape.hidden - unit, s.y[row] + unit);
      }
    });
}

/// gates[rows] = bias + x[rows] W_ih^T for panels [begin, end).
template <class T, Cell kCell>
void input_product(const Job<T>& job, Rows<const T> x, std::int64_t rows, T* gates,
                   std::int64_t begin, std::int64_t end) {
  constexpr int kW = kWidth<kCell>;
  constexpr std::int64_t kColumns = kW * kLanes<T>;
  for (std::int64_t p = begin; p < end; ++p)
    product<kW, 0, kW>(job, 0, p, rows, job.shape.input, x,
                       Rows<const T>{job.panels + job.map.bias + p * kColumns, 0},
                       Rows<T>{gates + p * kColumns, job.map.columns});
}

/// Copies the initial states of this thread's share of rows into both turns of the buffers: a row
/// that joins late (reverse) finds its state whichever turn it is.
template <class T>
void load_states(const Job<T>& job, int part) {
  const auto live = job.batch_sizes.empty() ? 0 : job.batch_sizes[0];
  const auto [begin, end] = split(live, part, job.team);
  // Named again because clang 14 does not capture structured bindings.
  const auto fill = [&, begin = begin, end = end](Rows<T> out, const T* from, std::int64_t width) {
    if (!out.data) return;
    for (std::int64_t r = begin; r < end; ++r) {
      std::int64_t used = 0;
      if (from) {
        const T* row = from + job.sorted_indices[static_cast<std::size_t>(r)] * width;
        std::copy_n(row, width, out[r]);
        used = width;
      }
      std::fill(out[r] + used, out[r] + out.stride, T{0});
    }
  };
  fill(job.h[0], job.h_0, job.shape.state());
  fill(job.h[1], job.h_0, job.shape.state());
  fill(job.c, job.c_0, job.shape.hidden);
}

template <class T, Cell kCell, bool kProjected>
HWY_NOINLINE void run(const Job<T>& job, int part) {
  constexpr bool kTwoPhases = kProjected || kCell == Cell::gru_reset_before;
  constexpr std::int64_t kColumns = kWidth<kCell> * kLanes<T>;
  const std::int64_t panels = job.map.columns / kColumns;
  const Range own = split(panels, part, job.team), all{0, panels};
  const std::int64_t second_panels =
      kProjected ? round_up(job.shape.projection, kProjectionWidth * kLanes<T>) /
                       (kProjectionWidth * kLanes<T>)
                 : panels;
  const Range second_own = split(second_panels, part, job.team), second_all{0, second_panels};
  const auto steps = static_cast<std::int64_t>(job.batch_sizes.size());

  load_states(job, part);
  job.wait();
  bool was_by_rows = false;
  int turn = 0;           // of the gate buffers
  std::int64_t q = 0;     // steps that are done
  std::int64_t done = 0;  // rows of the next: one of many rows takes several chunks
  for (; q < steps; turn ^= 1) {
    const std::int64_t left = job.rows_at(job.step_at(q)) - done;
    const bool whole = done == 0 && left <= job.gate_rows;
    const std::int64_t parts = (left + job.gate_rows - 1) / job.gate_rows;
    std::int64_t chunk_end = q + 1, rows = (left + parts - 1) / parts;
    while (whole && chunk_end < steps &&
           rows + job.rows_at(job.step_at(chunk_end)) <= job.chunk_rows)
      rows += job.rows_at(job.step_at(chunk_end++));
    const std::int64_t base =
        std::min(job.offset(job.step_at(q)), job.offset(job.step_at(chunk_end - 1))) + done;
    const bool by_rows = job.team > 1 && job.rows_at(job.step_at(q)) >= job.by_rows_from;

    T* gates = job.gates[turn];
    const Range share = by_rows ? split(rows, part, job.team) : Range{0, rows};
    const Range input_panels = by_rows ? all : own;
    input_product<T, kCell>(job, every(job.x, base + share.begin, 1), share.end - share.begin,
                            gates + share.begin * job.map.columns, input_panels.begin,
                            input_panels.end);
    if (by_rows || was_by_rows) job.wait();
    was_by_rows = by_rows;

    const std::int64_t first = by_rows ? part : 0, stride = by_rows ? job.team : 1;
    for (std::int64_t step = q; step < chunk_end; ++step) {
      const std::int64_t t = job.step_at(step), begin = done + first, row = job.offset(t) + begin;
      const std::int64_t end = whole ? job.rows_at(t) : done + rows;
      const Rows<T> h = every(job.h[step & 1], begin, stride);
      const std::int64_t count = std::max<std::int64_t>(0, (end - begin + stride - 1) / stride);
      const Step<T> s{.rows = count,
                      .gates = every(Rows<const T>{gates, job.map.columns}, row - base, stride),
                      .h = {h.data, h.stride},
                      .h_next = every(job.h[(step + 1) & 1], begin, stride),
                      .c = every(job.c, begin, stride),
                      .hidden = every(job.hidden, begin, stride),
                      .z = every(job.z, begin, stride),
                      .y = every(job.y, row, stride),
                      .cells = every(job.cells, row, stride),
                      .reserve = every(job.reserve, row, stride),
                      .descending = step % 2 == 1 && turns_panels(job.shape, count)};
      const Range mine = by_rows ? all : own;
      first_phase<T, kCell, kProjected>(job, s, mine.begin, mine.end);
      if constexpr (kTwoPhases) {
        if (!by_rows) job.wait();
        const Range second = by_rows ? second_all : second_own;
        if constexpr (kProjected)
          project(job, s, second.begin, second.end);
        else
          update(job, s, second.begin, second.end);
      }
      if (!by_rows) job.wait();
    }
    q = rows < left ? q : chunk_end;
    done = rows < left ? done + rows : 0;
  }
}

template <class T, Cell kCell>
void run_cell(const Job<T>& job, int part) {
  if constexpr (kCell == Cell::lstm)
    if (job.shape.projection > 0) return run<T, kCell, true>(job, part);
  run<T, kCell, false>(job, part);
}

}  // namespace packrnn::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard

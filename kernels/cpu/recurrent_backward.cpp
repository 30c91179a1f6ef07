// The way back through one recurrent layer on the CPU: all steps first
// (recurrent_backward_run-inl.hpp), then what input and weights get, which are products over all
// packed rows at once.
#include "packrnn/kernels/cpu/recurrent_backward.hpp"

#include <initializer_list>
#include <optional>

#include "packrnn/kernels/cpu/parallel_for.hpp"
#include "packrnn/kernels/cpu/recurrent.hpp"
#include "packrnn/kernels/cpu/targets.hpp"
#include "packrnn/kernels/cpu/with_real.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "packrnn/kernels/cpu/recurrent_backward.cpp"
#include <hwy/foreach_target.h>
// After foreach_target:
#include "packrnn/kernels/cpu/gradient_product-inl.hpp"
#include "packrnn/kernels/cpu/recurrent_backward_run-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace packrnn::kernels::HWY_NAMESPACE {
namespace {

void find_rows_before(const PackedLayout& layout, bool reverse, std::span<std::int64_t> before) {
  const std::int64_t steps = layout.steps();
  const auto live = [&](std::int64_t t) {
    return t >= 0 && t < steps ? layout.batch_sizes()[static_cast<std::size_t>(t)] : 0;
  };
  const auto offset = [&](std::int64_t t) { return layout.offsets()[static_cast<std::size_t>(t)]; };
  for (std::int64_t t = 0; t < steps; ++t) {
    const std::int64_t from = reverse ? t + 1 : t - 1;
    for (std::int64_t r = 0; r < live(t); ++r)
      before[static_cast<std::size_t>(offset(t) + r)] =
          r < live(from) ? offset(from) + r : ~layout.sorted_indices()[static_cast<std::size_t>(r)];
  }
}

/// to[r] = row sorted[r] of `from`, then zeros.
template <class T>
void load_sorted(std::span<const std::int64_t> sorted, const TensorView& from, std::int64_t width,
                 Rows<T> to) {
  std::int64_t r = 0;
  for (const std::int64_t n : sorted) {
    const std::int64_t used = from.defined() ? width : 0;
    if (used > 0) std::copy_n(from.data<T>() + n * width, width, to[r]);
    std::fill(to[r] + used, to[r + 1], T{0});
    ++r;
  }
}
template <class T>
void store_sorted(std::span<const std::int64_t> sorted, Rows<T> from, std::int64_t width,
                  const TensorSpan& to) {
  if (!to.defined()) return;
  std::int64_t r = 0;
  for (const std::int64_t n : sorted) std::copy_n(from[r++], width, to.data<T>() + n * width);
}

/// dx[rows] = what this direction gives, or is added to it.
template <bool kAdd, Cell kCell, class T>
HWY_NOINLINE void input_gradient(const BackwardJob<T>& job, Range rows, Rows<T> dx) {
  constexpr std::int64_t kN = kLanes<T>, kColumns = kBackColumns<T>;
  const Tag<T> d;
  // A last panel that ends within a vector goes through a buffer: dx has no room behind its rows.
  HWY_ALIGN T buffer[kGroupRows * kColumns];
  const Rows<T> last{buffer, kColumns};
  const std::int64_t I = job.shape.input;
  const std::int64_t whole = I % kN == 0 ? I : I / kColumns * kColumns, left = I - whole;
  const Terms terms(kGates<kCell>, job.shape.hidden, job.map.units);
  for (std::int64_t first = rows.begin; first < rows.end; first += kGroupRows) {
    const std::int64_t count = std::min<std::int64_t>(kGroupRows, rows.end - first);
    const Rows<const T> from{job.reserve[first], job.reserve.stride};
    const Rows<T> to{dx[first], dx.stride};
    back_product<kAdd>(count, terms, whole, {0, back_panels<T>(whole)}, from, job.panels, to);
    if (left == 0) continue;
    if constexpr (kAdd)
      for (std::int64_t r = 0; r < count; ++r)
        for (std::int64_t c = 0; c < left; c += kN)
          hn::Store(load_first(to[r] + whole + c, left - c), d, last[r] + c);
    back_product<kAdd>(count, terms, left, {0, 1}, from, job.panels + whole * job.map.input_terms,
                       last);
    for (std::int64_t r = 0; r < count; ++r)
      for (std::int64_t c = 0; c < left; c += kN)
        store_first(hn::Load(d, last[r] + c), left - c, to[r] + whole + c);
  }
}

/// This thread's share of what one direction gives to its weights.
template <class T, Cell kCell>
void weight_gradients(const BackwardJob<T>& job, Rows<const T> x,
                      const RecurrentWeightGradients& to, int part, int team, T* scratch) {
  const auto total = static_cast<std::int64_t>(job.before.size());
  const std::int64_t units = job.map.units, S = job.shape.state(), H = job.shape.hidden;
  const auto planes = [&](std::int64_t first) {
    return Rows<const T>{job.reserve.data + first * units, job.reserve.stride};
  };
  const auto share = [&](std::int64_t count) {
    return units == H ? GradientColumns(split(count * H, part, team))
                      : GradientColumns(split(H, part, team), count, units);
  };
  // The row of a gradient of `width` columns that column m of the planes from `first` on belongs
  // to.
  const auto rows_of = [&](const TensorSpan& gradient, std::int64_t first, std::int64_t width) {
    return [H, units, first, width, data = gradient.data<T>()](std::int64_t m) {
      return data + (gate_of<kCell>(first + m / units) * H + m % units) * width;
    };
  };
  const auto state_before = [&](std::int64_t k) { return job.state_before(k); };

  if (to.w_ih.defined())
    gradient_product(
        total, share(kGates<kCell>), planes(0), job.shape.input,
        [&](std::int64_t k) { return x[k]; }, rows_of(to.w_ih, 0, job.shape.input), scratch);
  if (to.w_hh.defined()) {
    gradient_product(total, share(kStatePlanes<kCell>), planes(kStatePlane<kCell>), S, state_before,
                     rows_of(to.w_hh, kStatePlane<kCell>, S), scratch);
    if constexpr (kCell == Cell::gru_reset_before) {
      const Rows<const T> reset = planes(3);
      gradient_product(
          total, share(1), planes(2), S, [&](std::int64_t k) { return reset[k]; },
          rows_of(to.w_hh, 2, S), scratch);
    }
  }
  // Those of the state have the same sums, except in a GRU that resets after.
  const auto bias_sums = [&](std::int64_t first, std::initializer_list<TensorSpan> biases) {
    for (std::int64_t gate = 0; gate < kGates<kCell>; ++gate)
      column_sums(total, split(H, part, team), planes(first + gate), [&](std::int64_t unit, T sum) {
        for (const TensorSpan& bias : biases)
          if (bias.defined()) bias.data<T>()[gate_of<kCell>(first + gate) * H + unit] += sum;
      });
  };
  if constexpr (kCell == Cell::gru) {
    if (to.b_ih.defined()) bias_sums(0, {to.b_ih});
    if (to.b_hh.defined()) bias_sums(kStatePlane<kCell>, {to.b_hh});
  } else if (to.b_ih.defined() || to.b_hh.defined()) {
    bias_sums(0, {to.b_ih, to.b_hh});
  }
  if (to.w_hr.defined()) {
    const Rows<const T> hidden = planes(4);
    T* const w_hr = to.w_hr.data<T>();
    gradient_product(
        total, split(S, part, team),
        Rows<const T>{job.reserve.data + ReserveMap<T>(job.shape).projected, job.reserve.stride}, H,
        [&](std::int64_t k) { return hidden[k]; }, [&](std::int64_t m) { return w_hr + m * H; },
        scratch);
  }
}

template <class T, Cell kCell>
void backward(Context& context, const RecurrentShape& shape, const PackedLayout& layout,
              const TensorView& x, const TensorView& y, const TensorView& dy,
              std::span<const RecurrentBackwardDirection> directions, const TensorSpan& dx) {
  const BackwardMap<T> map(shape);
  const auto count = static_cast<std::int64_t>(directions.size());
  const std::int64_t N = layout.batch(), S = shape.state(), H = shape.hidden;
  constexpr std::int64_t kWorthwhile = 256 * 1024;  // multiply-adds that pay for waking the pool
  const std::int64_t work = layout.total() * map.input_terms * (shape.input + S);
  const int team = work < kWorthwhile ? 1 : context.threads();
  const bool side_by_side = count == 2 && team % 2 == 0;
  const int each_team = side_by_side ? team / 2 : team;
  // Below this a row of a step is too little for threads to meet over.
  constexpr std::int64_t kWorthMeeting = 16 * 1024;
  const bool shares_units = map.state_terms * S >= kWorthMeeting * each_team;
  const bool crowded = context.pool().crowded();
  Barrier barriers[2] = {Barrier(each_team, crowded), Barrier(each_team, crowded)};

  Workspace::Scope scratch(context.workspace());
  const auto rows = [&](std::int64_t width) {
    const std::int64_t stride = state_stride<T>(width);
    return Rows<T>{scratch.take<T>(N * stride).data(), stride};
  };
  std::optional<BackwardJob<T>> jobs[2];
  for (std::int64_t i = 0; i < count; ++i) {
    const RecurrentBackwardDirection& d = directions[static_cast<std::size_t>(i)];
    const BackwardJob<T>& job = jobs[i].emplace(BackwardJob<T>{
        .shape = shape,
        .map = map,
        .panels = d.panels.data<T>(),
        .reverse = d.reverse,
        .batch_sizes = layout.batch_sizes(),
        .offsets = layout.offsets(),
        .sorted_indices = layout.sorted_indices(),
        .before = scratch.take<std::int64_t>(layout.total()),
        .y = {y.data<T>() + i * S, count * S},
        .dy = dy.defined() ? Rows<const T>{dy.data<T>() + i * S, count * S} : Rows<const T>{},
        .h_0 = d.h_0.defined() ? d.h_0.data<T>() : nullptr,
        .c_0 = d.c_0.defined() ? d.c_0.data<T>() : nullptr,
        .reserve = {d.reserve.data<T>(), ReserveMap<T>(shape).stride},
        .dh = rows(S),
        .dc = kCell == Cell::lstm ? rows(H) : Rows<T>{},
        .inner = shape.projection > 0 || kCell == Cell::gru_reset_before ? rows(H) : Rows<T>{},
        .by_rows_from = shares_units ? cpu::rows_per_thread(shape) * each_team : 0,
        .team = each_team,
        .barrier = &barriers[i]});
    find_rows_before(layout, d.reverse, job.before);
    load_sorted(job.sorted_indices, d.dh_n, S, job.dh);
    if (kCell == Cell::lstm) load_sorted(job.sorted_indices, d.dc_n, H, job.dc);
  }
  const std::int64_t each = gradient_product_scratch<T>(std::max({shape.input, S, H}));
  T* const products = scratch.take<T>(team * each).data();

  const auto on_team = [&](auto&& task) {
    if (team == 1) return task(0);
    context.pool().run([&](int worker) { task(worker); });
  };
  on_team([&](int worker) {
    for (std::int64_t i = 0; i < count; ++i) {
      const int part = side_by_side ? worker - static_cast<int>(i) * team / 2 : worker;
      if (part >= 0 && part < jobs[i]->team) run_cell_back<T, kCell>(*jobs[i], part);
    }
  });
  for (std::int64_t i = 0; i < count; ++i) {
    const RecurrentBackwardDirection& d = directions[static_cast<std::size_t>(i)];
    store_sorted(jobs[i]->sorted_indices, jobs[i]->dh, S, d.dh_0);
    if (kCell == Cell::lstm) store_sorted(jobs[i]->sorted_indices, jobs[i]->dc, H, d.dc_0);
  }
  if (layout.total() == 0) return;
  on_team([&](int worker) {
    if (dx.defined()) {
      const Range own = split(layout.total(), worker, team);
      const Rows<T> out{dx.data<T>(), shape.input};
      input_gradient<false, kCell>(*jobs[0], own, out);
      if (count == 2) input_gradient<true, kCell>(*jobs[1], own, out);
    }
    for (std::int64_t i = 0; i < count; ++i)
      weight_gradients<T, kCell>(*jobs[i], {x.data<T>(), shape.input},
                                 directions[static_cast<std::size_t>(i)].weights, worker, team,
                                 products + worker * each);
  });
}

// What the dispatcher sees, without templates.
std::int64_t ReserveElements(const RecurrentShape& shape, std::int64_t total) {
  return total * cpu::with_real(shape.dtype, [&]<class T>(std::type_identity<T>) {
           return ReserveMap<T>(shape).stride;
         });
}

std::int64_t BackwardPanelElements(const RecurrentShape& shape) {
  return cpu::with_real(shape.dtype,
                        [&]<class T>(std::type_identity<T>) { return BackwardMap<T>(shape).end; });
}

void PackBackward(Context& context, const RecurrentShape& shape, const RecurrentWeights& weights,
                  const TensorSpan& panels) {
  cpu::on_team(context.pool(), panels.bytes(), [&](int part, int team) {
    with_cell(shape.cell, [&]<Cell kCell>() {
      cpu::with_real(shape.dtype, [&]<class T>(std::type_identity<T>) {
        pack_backward<T, kCell>(shape, weights, panels.data<T>(), {part, team});
      });
    });
  });
}

void Backward(Context& context, const RecurrentShape& shape, const PackedLayout& layout,
              const TensorView& x, const TensorView& y, const TensorView& dy,
              std::span<const RecurrentBackwardDirection> directions, const TensorSpan& dx) {
  with_cell(shape.cell, [&]<Cell kCell>() {
    cpu::with_real(shape.dtype, [&]<class T>(std::type_identity<T>) {
      backward<T, kCell>(context, shape, layout, x, y, dy, directions, dx);
    });
  });
}

}  // namespace
}  // namespace packrnn::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace packrnn::kernels {
namespace {

HWY_EXPORT(ReserveElements);
HWY_EXPORT(BackwardPanelElements);
HWY_EXPORT(PackBackward);
HWY_EXPORT(Backward);

}  // namespace

namespace cpu {

std::int64_t recurrent_reserve_elements(const RecurrentShape& shape, std::int64_t total) {
  return HWY_DYNAMIC_DISPATCH(ReserveElements)(shape, total);
}

std::int64_t recurrent_backward_panel_elements(const RecurrentShape& shape) {
  return HWY_DYNAMIC_DISPATCH(BackwardPanelElements)(shape);
}

void pack_recurrent_backward(Context& context, const RecurrentShape& shape,
                             const RecurrentWeights& weights, const TensorSpan& panels) {
  HWY_DYNAMIC_DISPATCH(PackBackward)(context, shape, weights, panels);
}

void recurrent_backward(Context& context, const RecurrentShape& shape, const PackedLayout& layout,
                        const TensorView& x, const TensorView& y, const TensorView& dy,
                        std::span<const RecurrentBackwardDirection> directions,
                        const TensorSpan& dx) {
  HWY_DYNAMIC_DISPATCH(Backward)(context, shape, layout, x, y, dy, directions, dx);
}

}  // namespace cpu
}  // namespace packrnn::kernels
#endif  // HWY_ONCE

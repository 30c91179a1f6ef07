// The recurrence on tensor cores step by step: sums = h W_hh^T by a library product, then one
// kernel adds the input's part and does the cell, a thread per unit and row. With projection, and
// for a GRU that resets before the product, twice.
//
//   h [batch, pitch] T   the state in sorted order; rows that have not begun hold their h_0, so a
//                        sequence that joins (reverse) needs nothing special
//   sums [batch, U G]    f32, of the step
//
// tf32x3: T is float and every factor is kept in two parts, `high` a tf32 number and `low` the
// exact rest, so that high + low is the value; a product is low high + high low + high high.
//
// Bound by the launches, two per step and more of the above, and by W_hh from L2.
#include <algorithm>
#include <string>
#include <type_traits>

#include "packrnn/kernels/cuda/cells.cuh"
#include "packrnn/kernels/cuda/launch.cuh"
#include "packrnn/kernels/cuda/storage.cuh"
#include "packrnn/kernels/cuda/tensor_step.hpp"
#include "packrnn/runtime/error.hpp"

namespace packrnn::kernels::cuda {
namespace {

constexpr int kThreads = 128;
template <Cell kCell>
constexpr int kGatesOf = gates(kCell);  // gates() itself is not for device code

/// Threads along the columns, blocks along the rows.
gpu::LaunchShape shape_of(std::int64_t columns, std::int64_t rows) {
  gpu::LaunchShape shape;
  shape.grid = {static_cast<unsigned>((columns + kThreads - 1) / kThreads),
                static_cast<unsigned>(std::min<std::int64_t>(rows, 32768)), 1};
  shape.block[0] = kThreads;
  return shape;
}
__device__ __forceinline__ std::int64_t column() {
  return static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
}

/// A factor of products. `low` is null unless there are two parts.
template <class T>
struct Factor {
  T* high = nullptr;
  T* low = nullptr;
  std::int64_t pitch = 0;

  __device__ __forceinline__ float get(std::int64_t row, std::int64_t j) const {
    const float value = value_of(high[row * pitch + j]);
    return low ? value + value_of(low[row * pitch + j]) : value;
  }
  __device__ __forceinline__ void set(std::int64_t row, std::int64_t j, T element) const {
    if constexpr (std::is_same_v<T, float>) {
      if (low) {
        const float part = __uint_as_float(to_tf32(element));
        const float rest = element - part;  // exact, unless part is Inf or NaN
        low[row * pitch + j] = rest - rest == 0.0F ? rest : 0.0F;
        element = part;
      }
    }
    high[row * pitch + j] = element;
  }
};

/// One direction. See RecurrentRun for what is not explained here.
template <class T>
struct Recurrence {
  DeviceLayout layout;
  std::int32_t first_step, last_step;
  bool reverse;
  std::int64_t hidden, state, units, ldy, ldcells;
  const float *gx, *bias_n;
  const T* h_0;
  const float* c_0;
  T* h_n;
  float* c_n;
  T* y;
  float* cells;
  Factor<T> h;      // [batch, S]
  Factor<T> inner;  // [batch, H]: h before projection, or a GRU's r h
  float* c;         // [batch, U]
  float* z;         // [batch, U]: of a GRU that resets before
  float* sums;      // [batch, U G]
  float* second;    // [batch, ..]: of the second product
  std::int64_t second_pitch;

  /// Rows alive at a step: the first ones.
  __device__ std::int64_t rows(std::int32_t step) const { return layout.batch_sizes[step]; }
  /// Row of gx.
  __device__ std::int64_t input_row(std::int32_t step, std::int64_t row) const {
    return layout.offsets[step] - layout.offsets[first_step] + row;
  }
  __device__ void emit(std::int32_t step, std::int64_t row, std::int64_t j, float value) const {
    const T element = stored<T>(value);
    y[(layout.offsets[step] + row) * ldy + j] = element;
    h.set(row, j, element);
  }
};

/// The state before the range, and zeros where products read beyond it.
template <class T>
__global__ void __launch_bounds__(kThreads) begin_kernel(Recurrence<T> p) {
  const std::int64_t j = column();
  for (std::int64_t row = blockIdx.y; row < p.layout.batch; row += gridDim.y) {
    const std::int64_t caller = p.layout.sorted_indices[row];
    const std::int32_t length = p.layout.lengths[row];
    const bool begun = p.reverse ? length > p.last_step : p.first_step > 0 && length > p.first_step;
    if (j < p.h.pitch) {
      T element = stored<T>(0.0F);
      if (j < p.state && begun) {
        const std::int32_t step = p.reverse ? p.last_step : p.first_step - 1;
        element = p.y[(p.layout.offsets[step] + row) * p.ldy + j];
      } else if (j < p.state && p.h_0) {
        element = p.h_0[caller * p.state + j];
      }
      p.h.set(row, j, element);
    }
    if (p.inner.high && j < p.inner.pitch) p.inner.set(row, j, stored<T>(0.0F));
    if (p.c && j < p.units && !begun)
      p.c[row * p.units + j] = p.c_0 && j < p.hidden ? p.c_0[caller * p.hidden + j] : 0.0F;
  }
}

/// The cell, or, for a GRU that resets before the product, its first half.
template <class T, Cell kCell>
__global__ void __launch_bounds__(kThreads) cell_kernel(Recurrence<T> p, std::int32_t step) {
  constexpr int kGates = kGatesOf<kCell>;
  const std::int64_t j = column();
  if (j >= p.hidden) return;
  const std::int64_t live = p.rows(step);
  for (std::int64_t row = blockIdx.y; row < live; row += gridDim.y) {
    const float* const input = p.gx + (p.input_row(step, row) * p.units + j) * kGates;
    const float* const recurrent = p.sums + (row * p.units + j) * kGates;
    float sum[kGates];
    PACKRNN_UNROLL
    for (int g = 0; g < kGates; ++g) sum[g] = recurrent[g] + input[g];
    if constexpr (kCell == Cell::gru_reset_before) {
      float z;
      const float reset = gru_reset<FastMath>(sum, p.h.get(row, j), z);
      p.z[row * p.units + j] = z;
      p.inner.set(row, j, stored<T>(reset));
    } else {
      float h = 0.0F, input_n = 0.0F, c = 0.0F;
      if constexpr (kCell == Cell::gru) {
        sum[2] = recurrent[2] + p.bias_n[j];
        input_n = input[2];
        h = p.h.get(row, j);
      }
      if constexpr (kCell == Cell::lstm) c = p.c[row * p.units + j];
      h = cell<kCell, FastMath>(sum, input_n, h, c);
      if constexpr (kCell == Cell::lstm) {
        p.c[row * p.units + j] = c;
        if (p.cells) p.cells[(p.layout.offsets[step] + row) * p.ldcells + j] = c;
      }
      if (p.inner.high)
        p.inner.set(row, j, stored<T>(h));
      else
        p.emit(step, row, j, h);
    }
  }
}

/// The second half of a GRU that resets before the product.
template <class T>
__global__ void __launch_bounds__(kThreads) update_kernel(Recurrence<T> p, std::int32_t step) {
  const std::int64_t j = column();
  if (j >= p.hidden) return;
  const std::int64_t live = p.rows(step);
  for (std::int64_t row = blockIdx.y; row < live; row += gridDim.y) {
    const float input = p.gx[(p.input_row(step, row) * p.units + j) * 3 + 2];
    const float sum = p.second[row * p.second_pitch + j] + input;
    p.emit(step, row, j, gru_update<FastMath>(sum, p.z[row * p.units + j], p.h.get(row, j)));
  }
}

/// h' of a projected LSTM.
template <class T>
__global__ void __launch_bounds__(kThreads) project_kernel(Recurrence<T> p, std::int32_t step) {
  const std::int64_t j = column();
  if (j >= p.state) return;
  const std::int64_t live = p.rows(step);
  for (std::int64_t row = blockIdx.y; row < live; row += gridDim.y)
    p.emit(step, row, j, p.second[row * p.second_pitch + j]);
}

/// The final states of the sequences whose last step, in processing order, is in the range. Those
/// without steps are not ours.
template <class T>
__global__ void __launch_bounds__(kThreads) end_kernel(Recurrence<T> p) {
  const std::int64_t j = column();
  for (std::int64_t row = blockIdx.y; row < p.layout.batch; row += gridDim.y) {
    const std::int64_t caller = p.layout.sorted_indices[row];
    const std::int32_t length = p.layout.lengths[row];
    const bool ends =
        length > p.first_step && (p.reverse ? p.first_step == 0 : length <= p.last_step);
    if (!ends) continue;
    if (j < p.state) p.h_n[caller * p.state + j] = stored<T>(p.h.get(row, j));
    if (p.c && j < p.hidden) p.c_n[caller * p.hidden + j] = p.c[row * p.units + j];
  }
}

/// Weights in two parts.
__global__ void __launch_bounds__(kThreads)
    split_kernel(const float* source, std::int64_t rows, Factor<float> target) {
  const std::int64_t j = column();
  if (j >= target.pitch) return;
  for (std::int64_t row = blockIdx.y; row < rows; row += gridDim.y)
    target.set(row, j, source[row * target.pitch + j]);
}

constexpr std::int64_t round_up(std::int64_t value, std::int64_t to) {
  return (value + to - 1) / to * to;
}

/// Launches everything of one direction.
template <class T, Cell kCell>
class Runner {
 public:
  Runner(Context& context, const RecurrentRun& run, const DirectionRun& direction)
      : context_(context),
        run_(run),
        stream_(context.stream()),
        scratch_(context.workspace()),
        split_(std::is_same_v<T, float> && context.f32_math() == F32Math::tf32x3) {
    const RecurrentShape& s = run.shape;
    const RecurrentPanels& panels = run.panels;
    const T* const weights = static_cast<const T*>(direction.panels);
    const std::int64_t batch = std::max<std::int64_t>(1, run.layout.batch);
    const bool projected = s.projection > 0;
    w_hh_ = weight(weights + panels.w_hh, panels.units * panels.gates, panels.pitch_hh);
    if (projected) w_hr_ = weight(weights + panels.w_hr, s.projection, panels.pitch_hr);

    p_.layout = run.layout;
    p_.first_step = run.first_step;
    p_.last_step = std::min(run.last_step, run.layout.steps_capacity);
    p_.reverse = direction.reverse;
    p_.hidden = s.hidden;
    p_.state = s.state();
    p_.units = panels.units;
    p_.ldy = run.ldy;
    p_.ldcells = run.ldcells;
    p_.gx = static_cast<const float*>(direction.gx);
    p_.bias_n = reinterpret_cast<const float*>(weights + panels.bias_n);
    p_.h_0 = static_cast<const T*>(direction.h_0);
    p_.c_0 = static_cast<const float*>(direction.c_0);
    p_.h_n = static_cast<T*>(direction.h_n);
    p_.c_n = static_cast<float*>(direction.c_n);
    p_.y = static_cast<T*>(direction.y);
    p_.cells = static_cast<float*>(direction.cells);
    p_.h = factor(batch, panels.pitch_hh);
    if (kCell == Cell::lstm) p_.c = static_cast<float*>(direction.c_state);
    p_.sums = scratch_.template take<float>(batch * p_.units * panels.gates).data();
    if (kCell == Cell::gru_reset_before) {
      p_.inner = factor(batch, panels.pitch_hh);
      p_.z = scratch_.template take<float>(batch * p_.units).data();
      p_.second_pitch = p_.units;
    } else if (projected) {
      p_.inner = factor(batch, panels.pitch_hr);
      p_.second_pitch = round_up(p_.state, 8);  // rows of products like to be aligned
    }
    if (p_.second_pitch > 0)
      p_.second = scratch_.template take<float>(batch * p_.second_pitch).data();
  }

  void run() {
    const std::int64_t batch = run_.layout.batch;
    if (batch == 0) return;
    const std::int64_t widest = std::max({p_.h.pitch, p_.inner.pitch, p_.units});
    launch(stream_, PACKRNN_KERNEL(begin_kernel<T>), shape_of(widest, batch), p_);
    const auto known = static_cast<std::int32_t>(run_.batch_sizes.size());
    const std::int32_t last = known > 0 ? std::min(p_.last_step, known) : p_.last_step;
    for (std::int32_t i = p_.first_step; i < last; ++i) {
      const std::int32_t t = p_.reverse ? p_.first_step + last - 1 - i : i;
      step(t, known > 0 ? run_.batch_sizes[static_cast<std::size_t>(t)] : batch);
    }
    launch(stream_, PACKRNN_KERNEL(end_kernel<T>), shape_of(widest, batch), p_);
  }

 private:
  void step(std::int32_t t, std::int64_t rows) {
    const std::int64_t gates = run_.panels.gates;
    multiply(rows, p_.units * gates, p_.h, w_hh_, p_.sums, p_.units * gates);
    launch(stream_, PACKRNN_KERNEL(cell_kernel<T, kCell>), shape_of(p_.hidden, rows), p_, t);
    if constexpr (kCell == Cell::gru_reset_before) {
      // Row u G + 2 of the weights is W_hn of unit u: every third row.
      Factor<T> w_hn = w_hh_;
      w_hn.high += 2 * w_hh_.pitch;
      if (w_hn.low) w_hn.low += 2 * w_hh_.pitch;
      w_hn.pitch *= gates;
      multiply(rows, p_.units, p_.inner, w_hn, p_.second, p_.second_pitch);
      launch(stream_, PACKRNN_KERNEL(update_kernel<T>), shape_of(p_.hidden, rows), p_, t);
    } else if (p_.inner.high) {
      multiply(rows, p_.state, p_.inner, w_hr_, p_.second, p_.second_pitch);
      launch(stream_, PACKRNN_KERNEL(project_kernel<T>), shape_of(p_.state, rows), p_, t);
    }
  }

  /// d [m, n] = a b^T over all of a's pitch, whose padding is zero.
  void multiply(std::int64_t m, std::int64_t n, const Factor<T>& a, const Factor<T>& b, float* d,
                std::int64_t ldd) {
    gpu::Product product{.m = m,
                         .n = n,
                         .k = a.pitch,
                         .in = run_.shape.dtype,
                         .out = Dtype::f32,
                         .lda = a.pitch,
                         .ldb = b.pitch,
                         .ldd = ldd,
                         .accumulate = false};
    const gpu::Products products = context_.products();
    if (split_) {  // the small ones first
      gpu::multiply(products, product, a.low, b.high, nullptr, d);
      product.accumulate = true;
      gpu::multiply(products, product, a.high, b.low, nullptr, d);
    }
    gpu::multiply(products, product, a.high, b.high, nullptr, d);
  }

  Factor<T> factor(std::int64_t rows, std::int64_t pitch) {
    Factor<T> f;
    f.pitch = pitch;
    f.high = scratch_.template take<T>(rows * pitch).data();
    if (split_) f.low = scratch_.template take<T>(rows * pitch).data();
    return f;
  }

  Factor<T> weight(const T* source, std::int64_t rows, std::int64_t pitch) {
    Factor<T> f;
    f.high = const_cast<T*>(source);  // only read
    f.pitch = pitch;
    if constexpr (std::is_same_v<T, float>) {
      if (split_) {
        f = factor(rows, pitch);
        launch(stream_, PACKRNN_KERNEL(split_kernel), shape_of(pitch, rows), source, rows, f);
      }
    }
    return f;
  }

  Context& context_;
  const RecurrentRun& run_;
  gpu::Stream stream_;
  Workspace::Scope scratch_;
  bool split_;
  Factor<T> w_hh_, w_hr_;
  Recurrence<T> p_{};
};

template <class T>
void forward(Context& context, const RecurrentRun& run) {
  for (int d = 0; d < run.directions; ++d) {
    const DirectionRun& direction = run.direction[static_cast<std::size_t>(d)];
    switch (run.shape.cell) {
      case Cell::lstm:
        Runner<T, Cell::lstm>(context, run, direction).run();
        break;
      case Cell::gru:
        Runner<T, Cell::gru>(context, run, direction).run();
        break;
      case Cell::gru_reset_before:
        Runner<T, Cell::gru_reset_before>(context, run, direction).run();
        break;
      case Cell::rnn_tanh:
        Runner<T, Cell::rnn_tanh>(context, run, direction).run();
        break;
      case Cell::rnn_relu:
        Runner<T, Cell::rnn_relu>(context, run, direction).run();
        break;
    }
  }
}

}  // namespace

void tensor_step_forward(Context& context, const RecurrentRun& run) {
  switch (run.shape.dtype) {
    case Dtype::bf16:
      return forward<Bf16>(context, run);
    case Dtype::f16:
      return forward<F16>(context, run);
    case Dtype::f32:
      if (context.f32_math() != F32Math::exact) return forward<float>(context, run);
      [[fallthrough]];
    default:
      throw Unsupported(std::string(name_of(run.shape.dtype)) + " does not run on tensor cores");
  }
}

}  // namespace packrnn::kernels::cuda

// What the forward's steps had in their registers, for all tokens at once: h before each step is
// known, so the recurrent products are one product, added to the inputs' as the forward did: in
// chains, one goes on where the other ended. Activations are those of the forward's arithmetic.
//
// The pointwise kernels take a thread per unit of a row; all are bound by memory.
#include <algorithm>

#include "packrnn/kernels/cuda/activations.cuh"
#include "packrnn/kernels/cuda/launch.cuh"
#include "packrnn/kernels/cuda/layer_product.hpp"
#include "packrnn/kernels/cuda/recurrent_gates.hpp"
#include "packrnn/kernels/cuda/rows.cuh"
#include "packrnn/kernels/cuda/storage.cuh"

namespace packrnn::kernels::cuda {
namespace {

constexpr int kWarp = 32;

/// h before each step: what the step before, in processing order, gave as y, or the initial state.
/// A warp takes a row, so that its step is looked up once.
template <class T>
__global__ void __launch_bounds__(kRowThreads) collect_kernel(GatesRun run) {
  const std::int64_t width = run.shape.state();
  const DeviceLayout& layout = run.layout;
  const T* const h_0 = static_cast<const T*>(run.h_0);
  const std::int64_t used = rows_of(layout);
  for (std::int64_t packed = first_item() / kWarp; packed < run.rows;
       packed += item_stride() / kWarp) {
    const T* from = nullptr;  // null: zeros
    if (packed < used) {
      const std::int32_t step = step_of(layout, packed);
      const std::int32_t earlier = run.reverse ? step + 1 : step - 1;
      const std::int64_t row = packed - layout.offsets[step];
      if (earlier >= 0 && earlier < layout.steps_capacity && row < layout.batch_sizes[earlier])
        from = static_cast<const T*>(run.y) + (layout.offsets[earlier] + row) * run.ldy;
      else if (h_0 != nullptr)
        from = h_0 + layout.sorted_indices[row] * width;
    }
    T* const before = static_cast<T*>(run.before) + packed * width;
    for (std::int64_t j = threadIdx.x % kWarp; j < width; j += kWarp)
      before[j] = from != nullptr ? from[j] : T{};
  }
}

/// LSTM: sums become gates where they are.
template <class A, class Math>
__global__ void __launch_bounds__(kRowThreads) lstm_gates_kernel(A* gates, std::int64_t count) {
  for (std::int64_t i = first_item(); i < count; i += item_stride()) {
    A* const at = gates + i * 4;
    at[0] = Math::sigmoid(at[0]);
    at[1] = Math::sigmoid(at[1]);
    at[2] = Math::tanh(at[2]);
    at[3] = Math::sigmoid(at[3]);
  }
}

/// Where a GRU's recurrent sums begin: r and z at their input products, n at b_hn; or, where it
/// resets before, n anywhere, for its sum is another.
template <class A>
__global__ void __launch_bounds__(kRowThreads)
    gru_begin_kernel(const A* gx, const A* bias_n, std::int64_t units, A* sums,
                     std::int64_t count) {
  for (std::int64_t i = first_item(); i < count; i += item_stride()) {
    sums[i * 3] = gx[i * 3];
    sums[i * 3 + 1] = gx[i * 3 + 1];
    sums[i * 3 + 2] = bias_n[i % units];
  }
}

template <class A, class Math>
__global__ void __launch_bounds__(kRowThreads)
    gru_gates_kernel(const A* gx, const A* sums, A* gates, std::int64_t count) {
  for (std::int64_t i = first_item(); i < count; i += item_stride()) {
    const A r = Math::sigmoid(sums[i * 3]), state_n = sums[i * 3 + 2];
    A* const to = gates + i * 4;
    to[0] = r;
    to[1] = Math::sigmoid(sums[i * 3 + 1]);
    to[2] = Math::tanh(fma(r, state_n, gx[i * 3 + 2]));
    to[3] = state_n;
  }
}

/// Reset before, first half: r, z, r h, and where the sum of n begins.
template <class T, class Math>
__global__ void __launch_bounds__(kRowThreads)
    reset_gates_kernel(const Sum<T>* gx, const Sum<T>* sums, const T* before, std::int64_t hidden,
                       std::int64_t units, Sum<T>* gates, T* reset, Sum<T>* sums_n,
                       std::int64_t count) {
  using A = Sum<T>;
  for (std::int64_t i = first_item(); i < count; i += item_stride()) {
    const A r = Math::sigmoid(sums[i * 3]);
    gates[i * 4] = r;
    gates[i * 4 + 1] = Math::sigmoid(sums[i * 3 + 1]);
    gates[i * 4 + 3] = A(0);
    sums_n[i] = gx[i * 3 + 2];
    const std::int64_t row = i / units, unit = i - row * units;
    if (unit < hidden)
      reset[row * hidden + unit] = stored<T>(r * value_of(before[row * hidden + unit]));
  }
}

/// Reset before, second half: n.
template <class A, class Math>
__global__ void __launch_bounds__(kRowThreads)
    update_gates_kernel(const A* sums_n, A* gates, std::int64_t count) {
  for (std::int64_t i = first_item(); i < count; i += item_stride())
    gates[i * 4 + 2] = Math::tanh(sums_n[i]);
}

template <class T>
__global__ void __launch_bounds__(kRowThreads)
    hidden_kernel(GatesRun run, const Sum<T>* cells, std::int64_t units, T* hidden) {
  using A = Sum<T>;
  const std::int64_t H = run.shape.hidden, used = rows_of(run.layout) * H;
  const A* const gates = static_cast<const A*>(run.gates);
  for (std::int64_t i = first_item(); i < run.rows * H; i += item_stride()) {
    const std::int64_t row = i / H, unit = i - row * H;
    const A o = gates[(row * units + unit) * 4 + 3];
    hidden[i] = i < used ? stored<T>(o * ExactMath::tanh(cells[i])) : T{};
  }
}

/// The gates of packed rows [first, first + rows).
template <class T, class Math>
class Range {
 public:
  using A = Sum<T>;

  Range(Context& context, const GatesRun& run, std::int64_t first, std::int64_t rows)
      : context_(context),
        s_(run.shape),
        panels_(RecurrentPanels::of(s_)),
        weights_(static_cast<const T*>(run.panels)),
        x_(static_cast<const T*>(run.x) + first * s_.input),
        before_(static_cast<const T*>(run.before) + first * s_.state()),
        reset_(static_cast<T*>(run.reset) + first * s_.state()),
        gates_(static_cast<A*>(run.gates) + first * panels_.units * 4),
        rows_(rows),
        count_(rows * panels_.units),
        shape_(strided_shape(context.stream(), count_)) {}

  void run() {
    if (s_.cell == Cell::lstm) return lstm();
    Workspace::Scope scratch(context_.workspace());
    A* const gx = scratch.take<A>(count_ * 3).data();
    A* const sums = scratch.take<A>(count_ * 3).data();
    const gpu::Stream stream = context_.stream();
    input_product(context_, s_, weights_, x_, rows_, gx);
    const A* const bias_n = reinterpret_cast<const A*>(weights_ + panels_.bias_n);
    launch(stream, PACKRNN_KERNEL(gru_begin_kernel<A>), shape_, gx, bias_n, panels_.units, sums,
           count_);
    add_recurrent(before_, 0, panels_.pitch_hh, 3, sums);
    if (s_.cell == Cell::gru)
      return launch(stream, PACKRNN_KERNEL(gru_gates_kernel<A, Math>), shape_, gx, sums, gates_,
                    count_);
    A* const sums_n = scratch.take<A>(count_).data();
    launch(stream, PACKRNN_KERNEL(reset_gates_kernel<T, Math>), shape_, gx, sums, before_,
           s_.hidden, panels_.units, gates_, reset_, sums_n, count_);
    // Row u G + 2 of the weights is W_hn of unit u: every third row.
    add_recurrent(reset_, 2 * panels_.pitch_hh, 3 * panels_.pitch_hh, 1, sums_n);
    launch(stream, PACKRNN_KERNEL(update_gates_kernel<A, Math>), shape_, sums_n, gates_, count_);
  }

 private:
  void lstm() {
    input_product(context_, s_, weights_, x_, rows_, gates_);
    add_recurrent(before_, 0, panels_.pitch_hh, 4, gates_);
    launch(context_.stream(), PACKRNN_KERNEL(lstm_gates_kernel<A, Math>), shape_, gates_, count_);
  }

  /// sums [rows, U * per_unit] += h times rows of W_hh from `offset` on.
  void add_recurrent(const T* h, std::int64_t offset, std::int64_t pitch, std::int64_t per_unit,
                     A* sums) {
    const std::int64_t outputs = panels_.units * per_unit;
    layer_product(context_, {.dtype = s_.dtype,
                             .rows = rows_,
                             .outputs = outputs,
                             .k = s_.state(),
                             .x = h,
                             .w = weights_ + panels_.w_hh + offset,
                             .y = sums,
                             .ldx = s_.state(),
                             .ldw = pitch,
                             .ldy = outputs,
                             .accumulate = true});
  }

  Context& context_;
  RecurrentShape s_;
  RecurrentPanels panels_;
  const T *weights_, *x_, *before_;
  T* reset_;
  A* gates_;
  std::int64_t rows_, count_;
  gpu::LaunchShape shape_;
};

template <class T, class Math>
void in_ranges(Context& context, const GatesRun& run, std::int64_t scratch_bytes) {
  if (gates(run.shape.cell) == 1) return;
  const std::int64_t row_bytes =
      RecurrentPanels::of(run.shape).units * 7 * std::int64_t{sizeof(Sum<T>)};
  const std::int64_t most = run.shape.cell == Cell::lstm
                                ? run.rows
                                : std::max<std::int64_t>(1, scratch_bytes / row_bytes);
  for (std::int64_t first = 0; first < run.rows; first += most)
    Range<T, Math>(context, run, first, std::min(most, run.rows - first)).run();
}

}  // namespace

void recompute_gates(Context& context, const GatesRun& run, std::int64_t scratch_bytes) {
  with_floating(run.shape.dtype, [&]<class T>(std::type_identity<T>) {
    launch(context.stream(), PACKRNN_KERNEL(collect_kernel<T>),
           strided_shape(context.stream(), run.rows * kWarp), run);
    if constexpr (sizeof(T) == 2) {
      in_ranges<T, FastMath>(context, run, scratch_bytes);
    } else {
      if constexpr (std::is_same_v<T, float>)
        if (context.f32_math() != F32Math::exact)
          return in_ranges<T, FastMath>(context, run, scratch_bytes);
      in_ranges<T, ExactMath>(context, run, scratch_bytes);
    }
  });
}

void hidden_states(gpu::Stream stream, const GatesRun& run, const void* cells, void* hidden) {
  const gpu::LaunchShape shape = strided_shape(stream, run.rows * run.shape.hidden);
  with_floating(run.shape.dtype, [&]<class T>(std::type_identity<T>) {
    launch(stream, PACKRNN_KERNEL(hidden_kernel<T>), shape, run, static_cast<const Sum<T>*>(cells),
           RecurrentPanels::of(run.shape).units, static_cast<T*>(hidden));
  });
}

}  // namespace packrnn::kernels::cuda

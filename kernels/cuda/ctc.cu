// Connectionist temporal classification; cpu/ctc.cpp explains states, alpha and beta. A block per
// sequence, longest first, a thread per state: a step waits for the one before it, so the time is
// that of the longest sequence, about a microsecond a step. alpha and beta lie in global memory,
// most of it in the caches, so that there is no limit to the number of labels.
#include <type_traits>

#include "packrnn/kernels/cuda/ctc.hpp"
#include "packrnn/kernels/cuda/fault.cuh"
#include "packrnn/kernels/cuda/launch.cuh"
#include "packrnn/kernels/cuda/log_sum_exp.cuh"
#include "packrnn/kernels/cuda/with_floating.hpp"

namespace packrnn::kernels::cuda {
namespace {

constexpr double kNever = -kInfinity;

// log(exp(a) + exp(b)); a NaN stays one.
__device__ double log_add(double a, double b) {
  if (a == kNever) return b;
  if (b == kNever) return a;
  const double high = a > b ? a : b, low = a > b ? b : a;
  return high + log1p(exp(low - high));
}

// The k-th longest sequence.
template <class T>
struct Alignment {
  const T* logits;
  const double* log_sum_exps;
  const std::int64_t* offsets;
  const std::int64_t* labels;
  std::int64_t k, n, first_label, label_count, classes, blank;
  std::int32_t steps;

  __device__ Alignment(const CtcBatch& batch, const double* log_sum_exp, std::int64_t sorted)
      : logits(static_cast<const T*>(batch.logits)),
        log_sum_exps(log_sum_exp),
        offsets(batch.layout.offsets),
        k(sorted),
        n(batch.layout.sorted_indices[sorted]),
        first_label(batch.begins[n]),
        label_count(batch.begins[n + 1] - first_label),
        classes(batch.classes),
        blank(batch.blank),
        steps(batch.layout.lengths[sorted]) {
    labels = batch.labels + first_label;
  }

  __device__ std::int64_t states() const { return 2 * label_count + 1; }
  __device__ std::int64_t row(std::int32_t step) const { return offsets[step] + k; }
  __device__ std::int64_t label(std::int64_t state) const {
    return state % 2 == 0 ? blank : labels[state / 2];
  }
  __device__ bool may_skip_to(std::int64_t state) const {
    return state >= 3 && state % 2 == 1 && labels[state / 2] != labels[state / 2 - 1];
  }
  __device__ double log_probability(std::int32_t step, std::int64_t state) const {
    const std::int64_t r = row(step);
    return convert_element<double>(logits[r * classes + label(state)]) - log_sum_exps[r];
  }

  // Whether all labels are classes and none the blank; by all threads of the block.
  __device__ bool legal(DeviceFault* fault) const {
    double wrong = 0;
    for (std::int64_t i = threadIdx.x; i < label_count; i += kRowThreads)
      if (const std::int64_t y = labels[i]; y < 0 || y >= classes || y == blank) {
        report(fault, FaultCode::target_label, first_label + i, y, classes - 1, blank);
        wrong = 1;
      }
    return fold(kRowThreads, wrong, Plus{}) == 0;
  }

  // alpha of step 0, and of `step` from that of the step before, for the thread's states.
  __device__ void begin(double* alpha) const {
    for (std::int64_t s = threadIdx.x; s < states(); s += kRowThreads)
      alpha[s] = s < 2 ? log_probability(0, s) : kNever;
  }
  __device__ void advance(std::int32_t step, const double* before, double* alpha) const {
    for (std::int64_t s = threadIdx.x; s < states(); s += kRowThreads) {
      double sum = before[s];
      if (s >= 1) sum = log_add(sum, before[s - 1]);
      if (may_skip_to(s)) sum = log_add(sum, before[s - 2]);
      alpha[s] = sum + log_probability(step, s);
    }
  }

  // beta of the last step, and from what the step behind gave: its beta with its probabilities.
  __device__ double end(std::int64_t s) const { return s >= states() - 2 ? 0 : kNever; }
  __device__ double retreat(const double* behind, std::int64_t s) const {
    double sum = behind[s];
    if (s + 1 < states()) sum = log_add(sum, behind[s + 1]);
    if (s + 2 < states() && may_skip_to(s + 2)) sum = log_add(sum, behind[s + 2]);
    return sum;
  }

  // The log of the sum of all paths, from the last step's alpha.
  __device__ double total(const double* alpha) const {
    const std::int64_t last = states() - 1;
    return last == 0 ? alpha[0] : log_add(alpha[last], alpha[last - 1]);
  }
};

template <class T>
__global__ void __launch_bounds__(kRowThreads)
    log_sum_exp_kernel(const T* logits, std::int64_t rows, std::int64_t classes, int team_size,
                       double* result) {
  const Team team = team_of(team_size);
  for (std::int64_t first = team.begin; first < rows; first += team.stride) {
    const std::int64_t m = first + team.number;
    const double whole = log_sum_exp(team, logits + m * classes, m < rows ? classes : 0);
    if (m < rows && team.member == 0) result[m] = whole;
  }
}

// scratch [blocks, 2, states]. Told of two blocks per multiprocessor, as the next kernel: left
// alone, ptxas saves registers by spilling some.
template <class T>
__global__ void __launch_bounds__(kRowThreads, 2)
    ctc_kernel(CtcBatch batch, const double* log_sum_exps, double* scratch, double* losses) {
  for (std::int64_t k = blockIdx.x; k < batch.layout.batch; k += gridDim.x) {
    const Alignment<T> alignment(batch, log_sum_exps, k);
    double loss = kNaN;
    if (alignment.legal(batch.fault)) {
      double* alpha = scratch + 2 * blockIdx.x * batch.states;
      double* next = alpha + batch.states;
      if (alignment.steps > 0) alignment.begin(alpha);
      __syncthreads();
      for (std::int32_t t = 1; t < alignment.steps; ++t) {
        alignment.advance(t, alpha, next);
        __syncthreads();  // the step is complete, and the one before it free
        double* const done = alpha;
        alpha = next;
        next = done;
      }
      if (alignment.steps > 0)
        loss = -alignment.total(alpha);
      else
        loss = alignment.states() == 1 ? 0 : kInfinity;
    }
    if (threadIdx.x == 0) losses[alignment.n] = loss;
    __syncthreads();  // all have read alpha
  }
}

struct CtcScratch {
  double* alphas;       // [rows, states]: of each row of the batch
  double* betas;        // [blocks, 2, states]
  double* shares;       // [blocks, classes]
  std::int32_t* links;  // [blocks, states]: two for each label
};

// links[2 i] says whether label i is the first of its class, links[2 i + 1] which one is the next,
// or -1.
template <class T>
__device__ void link(const Alignment<T>& alignment, std::int32_t* links) {
  for (std::int64_t i = threadIdx.x; i < alignment.label_count; i += kRowThreads) {
    std::int64_t before = i - 1, next = i + 1;
    while (before >= 0 && alignment.labels[before] != alignment.labels[i]) --before;
    while (next < alignment.label_count && alignment.labels[next] != alignment.labels[i]) ++next;
    links[2 * i] = before < 0 ? 1 : 0;
    links[2 * i + 1] = next < alignment.label_count ? static_cast<std::int32_t>(next) : -1;
  }
}

// share[c]: of all paths, those that name class c now. `shares` is zero for what is no label.
template <class T>
__device__ void share_out(const Alignment<T>& alignment, const double* of_states,
                          const std::int32_t* links, double* shares) {
  double blank = 0;
  for (std::int64_t s = 2 * threadIdx.x; s < alignment.states(); s += 2 * kRowThreads)
    blank += of_states[s];
  blank = fold(kRowThreads, blank, Plus{});
  if (threadIdx.x == 0) shares[alignment.blank] = blank;
  for (std::int64_t i = threadIdx.x; i < alignment.label_count; i += kRowThreads) {
    if (links[2 * i] == 0) continue;
    double sum = 0;
    for (std::int64_t j = i; j >= 0; j = links[2 * j + 1]) sum += of_states[2 * j + 1];
    shares[alignment.labels[i]] = sum;
  }
}

template <class T>
__device__ void fill_row(T* row, std::int64_t classes, double value) {
  for (std::int64_t c = threadIdx.x; c < classes; c += kRowThreads)
    row[c] = convert_element<T>(value);
}

template <class T>
__global__ void __launch_bounds__(kRowThreads, 2)
    ctc_backward_kernel(CtcBatch batch, const double* log_sum_exps, const double* losses,
                        const double* scales, CtcScratch scratch, T* gradient) {
  const std::int64_t classes = batch.classes;
  double* const shares = scratch.shares + blockIdx.x * classes;
  std::int32_t* const links = scratch.links + blockIdx.x * batch.states;
  for (std::int64_t k = blockIdx.x; k < batch.layout.batch; k += gridDim.x) {
    const Alignment<T> alignment(batch, log_sum_exps, k);
    const double loss = losses[alignment.n], scale = scales[alignment.n];
    const bool legal = alignment.legal(batch.fault);
    if (!legal || scale == 0 || loss == kInfinity) {
      for (std::int32_t t = 0; t < alignment.steps; ++t)
        fill_row(gradient + alignment.row(t) * classes, classes, legal || scale == 0 ? 0 : kNaN);
      continue;
    }
    const auto alpha_of = [&](std::int32_t t) {
      return scratch.alphas + alignment.row(t) * batch.states;
    };
    link(alignment, links);
    for (std::int64_t c = threadIdx.x; c < classes; c += kRowThreads) shares[c] = 0;
    if (alignment.steps > 0) alignment.begin(alpha_of(0));
    __syncthreads();
    for (std::int32_t t = 1; t < alignment.steps; ++t) {
      alignment.advance(t, alpha_of(t - 1), alpha_of(t));
      __syncthreads();  // the step is complete
    }
    double* behind = scratch.betas + 2 * blockIdx.x * batch.states;
    double* now = behind + batch.states;
    for (std::int32_t t = alignment.steps - 1; t >= 0; --t) {
      double* const of_states = alpha_of(t);
      for (std::int64_t s = threadIdx.x; s < alignment.states(); s += kRowThreads) {
        const double beta =
            t == alignment.steps - 1 ? alignment.end(s) : alignment.retreat(behind, s);
        of_states[s] = exp(of_states[s] + beta + loss);
        now[s] = beta + alignment.log_probability(t, s);
      }
      __syncthreads();  // all states are there, and the shares of the step behind were read
      share_out(alignment, of_states, links, shares);
      __syncthreads();
      const std::int64_t row = alignment.row(t);
      const T* const from = alignment.logits + row * classes;
      for (std::int64_t c = threadIdx.x; c < classes; c += kRowThreads) {
        const double p = exp(convert_element<double>(from[c]) - log_sum_exps[row]);
        gradient[row * classes + c] = convert_element<T>(scale * (p - shares[c]));
      }
      double* const done = behind;
      behind = now;
      now = done;
    }
    __syncthreads();  // links and shares are free
  }
  // Rows that a layout made on the device has left over.
  for (std::int64_t row = rows_of(batch.layout) + blockIdx.x; row < batch.layout.rows_capacity;
       row += gridDim.x)
    fill_row(gradient + row * classes, classes, 0);
}

gpu::LaunchShape shape_of(gpu::Stream stream, const CtcBatch& batch) {
  return team_shape(stream, batch.layout.batch, kRowThreads);
}

}  // namespace

void ctc(Context& context, const CtcBatch& batch, double* log_sum_exp, double* losses) {
  const gpu::Stream stream = context.stream();
  const gpu::LaunchShape shape = shape_of(stream, batch);
  const std::int64_t rows = batch.layout.rows_capacity;
  const int team = team_for(batch.classes);
  Workspace::Scope scope(context.workspace());
  double* const scratch = scope.take<double>(shape.grid[0] * 2 * batch.states).data();
  with_floating(batch.dtype, [&]<class T>(std::type_identity<T>) {
    launch(stream, PACKRNN_KERNEL(log_sum_exp_kernel<T>), team_shape(stream, rows, team),
           static_cast<const T*>(batch.logits), rows, batch.classes, team, log_sum_exp);
    launch(stream, PACKRNN_KERNEL(ctc_kernel<T>), shape, batch, log_sum_exp, scratch, losses);
  });
}

void ctc_backward(Context& context, const CtcBatch& batch, const double* log_sum_exp,
                  const double* losses, const double* scales, void* gradient) {
  const gpu::LaunchShape shape = shape_of(context.stream(), batch);
  const std::int64_t blocks = shape.grid[0];
  Workspace::Scope scope(context.workspace());
  const CtcScratch scratch{
      scope.take<double>(batch.layout.rows_capacity * batch.states).data(),
      scope.take<double>(blocks * 2 * batch.states).data(),
      scope.take<double>(blocks * batch.classes).data(),
      scope.take<std::int32_t>(blocks * batch.states).data(),
  };
  with_floating(batch.dtype, [&]<class T>(std::type_identity<T>) {
    launch(context.stream(), PACKRNN_KERNEL(ctc_backward_kernel<T>), shape, batch, log_sum_exp,
           losses, scales, scratch, static_cast<T*>(gradient));
  });
}

}  // namespace packrnn::kernels::cuda

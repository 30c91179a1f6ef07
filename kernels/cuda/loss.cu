// Losses of rows: a team of threads per row, which reads it two times forward and once backward.
// Bound by memory where the GPU has units for f64, in which the exponentials are; else by those.
#include <type_traits>

#include "packrnn/kernels/cuda/fault.cuh"
#include "packrnn/kernels/cuda/launch.cuh"
#include "packrnn/kernels/cuda/log_sum_exp.cuh"
#include "packrnn/kernels/cuda/loss.hpp"
#include "packrnn/kernels/cuda/with_floating.hpp"

namespace packrnn::kernels::cuda {
namespace {

__device__ double weighted(double weight, double value) { return weight == 0 ? 0 : weight * value; }

__device__ std::int64_t bits_of(double value) {
  return static_cast<std::int64_t>(__double_as_longlong(value));
}

// ---- cross entropy ------------------------------------------------------------------------------

__device__ double class_weight(const CrossEntropyRows& a, std::int64_t c) {
  return a.class_weights == nullptr ? 1.0 : a.class_weights[c];
}

__device__ bool is_class(const CrossEntropyRows& a, std::int64_t y) {
  return y >= 0 && y < a.classes;
}

template <class T>
__global__ void __launch_bounds__(kRowThreads)
    cross_entropy_kernel(CrossEntropyRows a, int team_size, double* log_sum_exps, double* losses,
                         double* weights) {
  const Team team = team_of(team_size);
  if (a.class_weights != nullptr && blockIdx.x == 0)
    for (std::int64_t c = threadIdx.x; c < a.classes; c += kRowThreads)
      if (const double w = a.class_weights[c]; !(w >= 0 && w < kInfinity))
        report(a.fault, FaultCode::class_weight, c, bits_of(w));
  for (std::int64_t first = team.begin; first < a.rows; first += team.stride) {
    const std::int64_t m = first + team.number;
    const bool there = m < a.rows;
    const std::int64_t classes = there ? a.classes : 0;
    const T* const row = static_cast<const T*>(a.logits) + (there ? m * a.classes : 0);
    const std::int64_t y = there ? a.targets[m] : a.ignore_index;
    const bool counts = y != a.ignore_index;
    const double whole = log_sum_exp(team, row, classes);
    double others = 0;
    if (counts && a.other_part > 0)
      for (std::int64_t c = team.member; c < classes; c += team.size)
        others +=
            weighted(a.other_part * class_weight(a, c), whole - convert_element<double>(row[c]));
    others = fold(team.size, others, Plus{});
    if (!there || team.member != 0) continue;
    log_sum_exps[m] = whole;
    double loss = 0, weight = 0;
    if (counts && is_class(a, y)) {
      weight = class_weight(a, y);
      loss = weighted(a.target_part * weight, whole - convert_element<double>(row[y])) + others;
    } else if (counts) {
      report(a.fault, FaultCode::target_class, m, y, a.classes - 1, a.ignore_index);
      weight = loss = kNaN;
    }
    losses[m] = loss;
    if (weights != nullptr) weights[m] = weight;
  }
}

// Told of two blocks per multiprocessor: left alone, ptxas saves registers by spilling some.
template <class T>
__global__ void __launch_bounds__(kRowThreads, 2)
    cross_entropy_backward_kernel(CrossEntropyRows a, int team_size, const double* log_sum_exps,
                                  const double* scales, T* gradient) {
  const Team team = team_of(team_size);
  double all = a.other_part > 0 && a.class_weights == nullptr
                   ? a.other_part * static_cast<double>(a.classes)
                   : 0.0;
  if (a.other_part > 0 && a.class_weights != nullptr) {
    for (std::int64_t c = team.member; c < a.classes; c += team.size)
      all += a.other_part * a.class_weights[c];
    all = fold(team.size, all, Plus{});
  }
  for (std::int64_t m = team.begin + team.number; m < a.rows; m += team.stride) {
    const T* const row = static_cast<const T*>(a.logits) + m * a.classes;
    T* const to = gradient + m * a.classes;
    const std::int64_t y = a.targets[m];
    const double scale = scales[m], whole = log_sum_exps[m];
    double own = 0, terms = 0;
    if (y != a.ignore_index) {
      own = is_class(a, y) ? a.target_part * class_weight(a, y) : kNaN;
      terms = own + all;
    }
    if (scale == 0 || terms == 0) {
      for (std::int64_t c = team.member; c < a.classes; c += team.size) to[c] = T{};
      continue;
    }
    for (std::int64_t c = team.member; c < a.classes; c += team.size) {
      const double p = exp(convert_element<double>(row[c]) - whole);
      const double wanted = a.other_part * class_weight(a, c) + (c == y ? own : 0);
      to[c] = convert_element<T>(scale * (p * terms - wanted));
    }
  }
}

// ---- losses of elements -------------------------------------------------------------------------

__device__ double weight_at(const RepeatedWeights& weights, std::int64_t i) {
  return weights.values == nullptr ? 1.0 : weights.values[i % weights.count];
}

// log(1 + exp(x)) and its derivative, without an exponential that overflows.
__device__ double softplus(double x) { return log1p(exp(-fabs(x))) + fmax(x, 0.0); }
__device__ double logistic(double x) {
  const double small = exp(-fabs(x));
  return (x < 0 ? small : 1) / (1 + small);
}

struct SquaredError {
  __device__ static bool legal(double) { return true; }
  __device__ static double loss(double, double x, double y) { return (x - y) * (x - y); }
  __device__ static double derivative(double, double x, double y) { return 2 * (x - y); }
};

// Both terms of the loss are positive: nothing cancels.
struct BinaryCrossEntropy {
  __device__ static bool legal(double y) { return y >= 0 && y <= 1; }
  __device__ static double loss(double pos_weight, double x, double y) {
    return weighted(1 - y, softplus(x)) + weighted(pos_weight * y, softplus(-x));
  }
  __device__ static double derivative(double pos_weight, double x, double y) {
    return (1 - y) * logistic(x) - pos_weight * y * logistic(-x);
  }
};

template <class T, class Element>
__global__ void __launch_bounds__(kRowThreads)
    element_losses_kernel(ElementRows a, int team_size, double* losses) {
  const Team team = team_of(team_size);
  for (std::int64_t first = team.begin; first < a.rows; first += team.stride) {
    const std::int64_t m = first + team.number;
    const std::int64_t end = m < a.rows ? (m + 1) * a.part : 0;
    double sum = 0;
    for (std::int64_t i = m * a.part + team.member; i < end; i += team.size) {
      double y = convert_element<double>(static_cast<const T*>(a.target)[i]);
      if (!Element::legal(y)) {
        report(a.fault, FaultCode::target_chance, i, bits_of(y));
        y = kNaN;
      }
      const double x = convert_element<double>(static_cast<const T*>(a.input)[i]);
      sum += weighted(weight_at(a.weight, i), Element::loss(weight_at(a.pos_weight, i), x, y));
    }
    sum = fold(team.size, sum, Plus{});
    if (m < a.rows && team.member == 0) losses[m] = sum;
  }
}

template <class T, class Element>
__global__ void __launch_bounds__(kRowThreads)
    element_losses_backward_kernel(ElementRows a, int team_size, const double* scales,
                                   T* gradient) {
  const Team team = team_of(team_size);
  for (std::int64_t m = team.begin + team.number; m < a.rows; m += team.stride) {
    const double scale = scales[m];
    for (std::int64_t i = m * a.part + team.member; i < (m + 1) * a.part; i += team.size) {
      double y = convert_element<double>(static_cast<const T*>(a.target)[i]);
      if (!Element::legal(y)) y = kNaN;
      const double x = convert_element<double>(static_cast<const T*>(a.input)[i]);
      gradient[i] = convert_element<T>(weighted(
          scale * weight_at(a.weight, i), Element::derivative(weight_at(a.pos_weight, i), x, y)));
    }
  }
}

// ---- where rows are largest ---------------------------------------------------------------------

struct Best {
  double value;
  std::int64_t index;  // -1: of nothing
};

__device__ Best swapped(const Best& best, int lanes) {
  return {__shfl_xor_sync(0xFFFFFFFFU, best.value, lanes),
          __shfl_xor_sync(0xFFFFFFFFU, best.index, lanes)};
}

// A NaN is larger than all numbers, and the first of equals is better.
struct Better {
  __device__ static bool larger(double a, double b) { return b == b && (a > b || a != a); }
  __device__ Best operator()(const Best& a, const Best& b) const {
    if (a.index < 0 || b.index < 0) return a.index < 0 ? b : a;
    if (larger(a.value, b.value)) return a;
    if (larger(b.value, a.value)) return b;
    return a.index < b.index ? a : b;
  }
};

template <class T>
__global__ void __launch_bounds__(kRowThreads)
    argmax_kernel(const T* rows, std::int64_t count, std::int64_t classes, int team_size,
                  std::int64_t* result) {
  const Team team = team_of(team_size);
  for (std::int64_t first = team.begin; first < count; first += team.stride) {
    const std::int64_t m = first + team.number;
    Best best{0, -1};
    for (std::int64_t c = team.member; m < count && c < classes; c += team.size)
      best = Better{}(best, {convert_element<double>(rows[m * classes + c]), c});
    best = fold(team.size, best, Better{});
    if (m < count && team.member == 0) result[m] = best.index;
  }
}

__global__ void __launch_bounds__(kRowThreads)
    widen_kernel(const std::int32_t* indices, std::int64_t count, std::int64_t* result) {
  for (std::int64_t i = first_item(); i < count; i += item_stride()) result[i] = indices[i];
}

// ---- launches -----------------------------------------------------------------------------------

template <class Body>
void with_element(const ElementRows& rows, const Body& body) {
  with_floating(rows.dtype, [&]<class T>(std::type_identity<T> type) {
    if (rows.loss == ElementLoss::squared_error)
      body(type, SquaredError{});
    else
      body(type, BinaryCrossEntropy{});
  });
}

}  // namespace

void cross_entropy(gpu::Stream stream, const CrossEntropyRows& rows, double* log_sum_exp,
                   double* losses, double* weights) {
  const int team = team_for(rows.classes);
  with_floating(rows.dtype, [&]<class T>(std::type_identity<T>) {
    launch(stream, PACKRNN_KERNEL(cross_entropy_kernel<T>), team_shape(stream, rows.rows, team),
           rows, team, log_sum_exp, losses, weights);
  });
}

void cross_entropy_backward(gpu::Stream stream, const CrossEntropyRows& rows,
                            const double* log_sum_exp, const double* scales, void* gradient) {
  const int team = team_for(rows.classes);
  const gpu::LaunchShape shape = team_shape(stream, rows.rows, team);
  with_floating(rows.dtype, [&]<class T>(std::type_identity<T>) {
    auto* const to = static_cast<T*>(gradient);
    launch(stream, PACKRNN_KERNEL(cross_entropy_backward_kernel<T>), shape, rows, team, log_sum_exp,
           scales, to);
  });
}

void element_losses(gpu::Stream stream, const ElementRows& rows, double* losses) {
  const int team = team_for(rows.part);
  with_element(rows, [&]<class T, class Element>(std::type_identity<T>, Element) {
    launch(stream, PACKRNN_KERNEL(element_losses_kernel<T, Element>),
           team_shape(stream, rows.rows, team), rows, team, losses);
  });
}

void element_losses_backward(gpu::Stream stream, const ElementRows& rows, const double* scales,
                             void* gradient) {
  const int team = team_for(rows.part);
  with_element(rows, [&]<class T, class Element>(std::type_identity<T>, Element) {
    launch(stream, PACKRNN_KERNEL(element_losses_backward_kernel<T, Element>),
           team_shape(stream, rows.rows, team), rows, team, scales, static_cast<T*>(gradient));
  });
}

void argmax(gpu::Stream stream, Dtype dtype, const void* rows, std::int64_t count,
            std::int64_t classes, std::int64_t* result) {
  const int team = team_for(classes);
  with_floating(dtype, [&]<class T>(std::type_identity<T>) {
    launch(stream, PACKRNN_KERNEL(argmax_kernel<T>), team_shape(stream, count, team),
           static_cast<const T*>(rows), count, classes, team, result);
  });
}

void widen_indices(gpu::Stream stream, const std::int32_t* indices, std::int64_t count,
                   std::int64_t* result) {
  launch(stream, PACKRNN_KERNEL(widen_kernel), strided_shape(stream, count), indices, count,
         result);
}

}  // namespace packrnn::kernels::cuda

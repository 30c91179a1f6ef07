// Sums over a row run in kLanes interleaved parts, which the compiler makes vectors of. A row's
// statistics are not stored: the backward has the row at hand and finds them again, with the same
// bits. Gradients of weight and bias are summed in double, per block of rows and then over blocks;
// the blocks depend on M alone.
#include "packrnn/kernels/cpu/layer_norm.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "packrnn/kernels/cpu/parallel_for.hpp"
#include "packrnn/kernels/cpu/with_real.hpp"

namespace packrnn::kernels::cpu {
namespace {

constexpr std::int64_t kLanes = 8;

/// The sum of value(i) over [0, count), in one fixed order.
template <class Value>
double sum(std::int64_t count, Value&& value) {
  std::array<double, kLanes> parts{};
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (std::int64_t lane = 0; lane < kLanes; ++lane)
      parts[static_cast<std::size_t>(lane)] += value(i + lane);
  double total = 0.0;
  for (; i < count; ++i) total += value(i);
  for (const double part : parts) total += part;
  return total;
}

struct Statistics {
  double mean;
  double scale;  // 1 / sqrt(variance + eps)
};

template <class T>
Statistics statistics(const T* x, std::int64_t features, double eps) {
  const auto count = static_cast<double>(features);
  const double mean =
      sum(features, [&](std::int64_t i) { return static_cast<double>(x[i]); }) / count;
  const double variance = sum(features,
                              [&](std::int64_t i) {
                                const double d = static_cast<double>(x[i]) - mean;
                                return d * d;
                              }) /
                          count;
  return {mean, 1.0 / std::sqrt(variance + eps)};
}

template <class T>
void forward_row(const T* x, const T* weight, const T* bias, std::int64_t features, double eps,
                 T* y) {
  const Statistics s = statistics(x, features, eps);
  for (std::int64_t i = 0; i < features; ++i) {
    const double scaled =
        (static_cast<double>(x[i]) - s.mean) * s.scale * static_cast<double>(weight[i]);
    y[i] = static_cast<T>(scaled + (bias ? static_cast<double>(bias[i]) : 0.0));
  }
}

/// dx where it is wanted; adds to sums of weight [F] and of bias [F], which are one array.
template <class T>
void backward_row(const T* x, const T* weight, const T* dy, std::int64_t features, double eps,
                  T* dx, double* sums) {
  const Statistics s = statistics(x, features, eps);
  const auto normal = [&](std::int64_t i) {
    return (static_cast<double>(x[i]) - s.mean) * s.scale;
  };
  const auto inner = [&](std::int64_t i) {
    return static_cast<double>(dy[i]) * static_cast<double>(weight[i]);
  };
  for (std::int64_t i = 0; i < features; ++i) {
    sums[i] += static_cast<double>(dy[i]) * normal(i);
    sums[features + i] += static_cast<double>(dy[i]);
  }
  if (dx == nullptr) return;
  const auto count = static_cast<double>(features);
  const double mean = sum(features, inner) / count;
  const double slope = sum(features, [&](std::int64_t i) { return inner(i) * normal(i); }) / count;
  for (std::int64_t i = 0; i < features; ++i)
    dx[i] = static_cast<T>(s.scale * (inner(i) - mean - normal(i) * slope));
}

}  // namespace

void layer_norm(Context& context, const TensorView& x, const TensorView& weight,
                const TensorView& bias, double eps, const TensorSpan& y) {
  const std::int64_t features = x.size(1);
  with_real(x.dtype(), [&]<class T>(std::type_identity<T>) {
    const T* const from = x.data<T>();
    const T* const w = weight.data<T>();
    const T* const b = bias.defined() ? bias.data<T>() : nullptr;
    T* const to = y.data<T>();
    parallel_for(context.pool(), x.size(0), 4 * features * std::int64_t{sizeof(T)},
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t r = begin; r < end; ++r)
                     forward_row(from + r * features, w, b, features, eps, to + r * features);
                 });
  });
}

void layer_norm_backward(Context& context, const TensorView& x, const TensorView& weight,
                         double eps, const TensorView& dy, const TensorSpan& dx,
                         const TensorSpan& dweight, const TensorSpan& dbias) {
  constexpr std::int64_t kLeastRows = 32, kMostBlocks = 256;
  const std::int64_t rows = x.size(0), features = x.size(1);
  const std::int64_t block = std::max(kLeastRows, (rows + kMostBlocks - 1) / kMostBlocks);
  const std::int64_t blocks = (rows + block - 1) / block;
  Workspace::Scope scope(context.workspace());
  const auto sums = scope.take<double>(blocks * 2 * features);
  std::ranges::fill(sums, 0.0);
  with_real(x.dtype(), [&]<class T>(std::type_identity<T>) {
    const T* const from = x.data<T>();
    const T* const w = weight.data<T>();
    const T* const upstream = dy.data<T>();
    T* const to = dx.defined() ? dx.data<T>() : nullptr;
    parallel_for(context.pool(), blocks, 6 * block * features * std::int64_t{sizeof(T)},
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t r = begin * block; r < std::min(end * block, rows); ++r)
                     backward_row(from + r * features, w, upstream + r * features, features, eps,
                                  to ? to + r * features : nullptr,
                                  sums.data() + r / block * 2 * features);
                 });
    const auto add_blocks = [&](const TensorSpan& gradient, std::int64_t first) {
      if (!gradient.defined()) return;
      T* const target = gradient.data<T>();
      for (std::int64_t i = 0; i < features; ++i) {
        double total = 0.0;
        for (std::int64_t b = 0; b < blocks; ++b)
          total += sums[static_cast<std::size_t>(b * 2 * features + first + i)];
        target[i] += static_cast<T>(total);
      }
    };
    add_blocks(dweight, 0);
    add_blocks(dbias, features);
  });
}

}  // namespace packrnn::kernels::cpu

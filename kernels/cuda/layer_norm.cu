// A warp has a row: each lane sums every 32nd element in ascending order, then the lanes are added
// up pairwise. All sums are in double. Bound by memory: a row is read once, and again from the
// cache.
//
// The backward finds each row's statistics first. Gradients of weight and bias are sums of columns:
// the rows are split into parts, as many as give about kBlocks blocks work; a block sums 32 columns
// of a part, each warp every kWarps-th row, and the parts are added in ascending order. Parts
// depend on the shapes alone.
#include <algorithm>

#include "packrnn/kernels/cuda/launch.cuh"
#include "packrnn/kernels/cuda/layer_norm.hpp"
#include "packrnn/kernels/cuda/rows.cuh"
#include "packrnn/kernels/cuda/storage.cuh"

namespace packrnn::kernels::cuda {
namespace {

constexpr int kWarps = kRowThreads / 32;
constexpr std::int64_t kBlocks = 256, kLeastRows = 8 * kWarps;
constexpr unsigned kAll = 0xFFFFFFFFU;

struct Statistics {
  double mean;
  double scale;  // 1 / sqrt(variance + eps)
};

__device__ double sum_of_lanes(double value) {
  PACKRNN_UNROLL
  for (int lanes = 16; lanes > 0; lanes /= 2) value += __shfl_xor_sync(kAll, value, lanes);
  return value;
}

/// The sum of value(i) over [0, count), by a whole warp; on every lane.
template <class Value>
__device__ double sum(std::int64_t count, Value value) {
  double own = 0;
  for (std::int64_t i = static_cast<int>(threadIdx.x) % 32; i < count; i += 32) own += value(i);
  return sum_of_lanes(own);
}

template <class T>
__device__ Statistics statistics_of(const T* x, std::int64_t features, double eps) {
  const auto count = static_cast<double>(features);
  const double mean =
      sum(features, [&](std::int64_t i) { return static_cast<double>(value_of(x[i])); }) / count;
  const double variance = sum(features,
                              [&](std::int64_t i) {
                                const double d = static_cast<double>(value_of(x[i])) - mean;
                                return d * d;
                              }) /
                          count;
  return {mean, 1.0 / sqrt(variance + eps)};
}

template <class T>
__global__ void __launch_bounds__(kRowThreads)
    layer_norm_kernel(const T* x, const T* weight, const T* bias, std::int64_t rows,
                      std::int64_t features, double eps, T* y) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (std::int64_t row = first_item() / 32; row < rows; row += item_stride() / 32) {
    const T* const from = x + row * features;
    T* const to = y + row * features;
    const Statistics s = statistics_of(from, features, eps);
    for (std::int64_t i = lane; i < features; i += 32) {
      const double scaled = (static_cast<double>(value_of(from[i])) - s.mean) * s.scale *
                            static_cast<double>(value_of(weight[i]));
      const double shift = bias != nullptr ? static_cast<double>(value_of(bias[i])) : 0.0;
      to[i] = stored<T>(static_cast<Sum<T>>(scaled + shift));
    }
  }
}

/// Statistics [rows] for the kernels below.
template <class T>
__global__ void __launch_bounds__(kRowThreads)
    statistics_kernel(const T* x, std::int64_t rows, std::int64_t features, double eps,
                      Statistics* statistics) {
  for (std::int64_t row = first_item() / 32; row < rows; row += item_stride() / 32) {
    const Statistics s = statistics_of(x + row * features, features, eps);
    if (threadIdx.x % 32 == 0) statistics[row] = s;
  }
}

/// One part of 32 columns: parts [count, 2, features] are sums of weight's and bias's gradients.
template <class T>
__global__ void __launch_bounds__(kRowThreads)
    sum_gradients_kernel(const T* x, const T* dy, const Statistics* statistics, std::int64_t rows,
                         std::int64_t features, std::int64_t part_rows, double* parts) {
  PACKRNN_SHARED(double, shared, [kWarps][2][32]);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * 32 + lane;
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.y) * part_rows;
  const std::int64_t end = min(begin + part_rows, rows);
  double weight = 0, bias = 0;
  if (column < features)
    for (std::int64_t row = begin + warp; row < end; row += kWarps) {
      const Statistics s = statistics[row];
      const std::int64_t at = row * features + column;
      const auto upstream = static_cast<double>(value_of(dy[at]));
      weight += upstream * ((static_cast<double>(value_of(x[at])) - s.mean) * s.scale);
      bias += upstream;
    }
  shared[warp][0][lane] = weight;
  shared[warp][1][lane] = bias;
  __syncthreads();  // all warps' sums are there
  if (warp >= 2 || column >= features) return;
  double sum = 0;
  PACKRNN_UNROLL
  for (int w = 0; w < kWarps; ++w) sum += shared[w][warp][lane];
  parts[(blockIdx.y * 2 + warp) * features + column] = sum;
}

/// Adds the parts, in ascending order, to the gradients that are wanted.
template <class A>
__global__ void __launch_bounds__(kRowThreads)
    add_gradients_kernel(const double* parts, std::int64_t count, std::int64_t features, A* dweight,
                         A* dbias) {
  for (std::int64_t i = first_item(); i < 2 * features; i += item_stride()) {
    A* const to = i < features ? dweight : dbias;
    if (to == nullptr) continue;
    double sum = 0;
    for (std::int64_t part = 0; part < count; ++part) sum += parts[part * 2 * features + i];
    to[i < features ? i : i - features] += static_cast<A>(sum);
  }
}

/// dx may be dy.
template <class T>
__global__ void __launch_bounds__(kRowThreads)
    input_gradient_kernel(const T* x, const T* weight, const T* dy, const Statistics* statistics,
                          std::int64_t rows, std::int64_t features, T* dx) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto count = static_cast<double>(features);
  for (std::int64_t row = first_item() / 32; row < rows; row += item_stride() / 32) {
    const Statistics s = statistics[row];
    const T* const from = x + row * features;
    const T* const upstream = dy + row * features;
    const auto normal = [&](std::int64_t i) {
      return (static_cast<double>(value_of(from[i])) - s.mean) * s.scale;
    };
    const auto inner = [&](std::int64_t i) {
      return static_cast<double>(value_of(upstream[i])) * static_cast<double>(value_of(weight[i]));
    };
    const double mean = sum(features, inner) / count;
    const double slope =
        sum(features, [&](std::int64_t i) { return inner(i) * normal(i); }) / count;
    for (std::int64_t i = lane; i < features; i += 32)
      dx[row * features + i] =
          stored<T>(static_cast<Sum<T>>(s.scale * (inner(i) - mean - normal(i) * slope)));
  }
}

gpu::LaunchShape shape_of_rows(gpu::Stream stream, std::int64_t rows) {
  return strided_shape(stream, rows * 32);
}

}  // namespace

void layer_norm(Context& context, const TensorView& x, const TensorView& weight,
                const TensorView& bias, double eps, const TensorSpan& y) {
  with_floating(x.dtype(), [&]<class T>(std::type_identity<T>) {
    launch(context.stream(), PACKRNN_KERNEL(layer_norm_kernel<T>),
           shape_of_rows(context.stream(), x.size(0)), static_cast<const T*>(x.raw()),
           static_cast<const T*>(weight.raw()),
           static_cast<const T*>(bias.defined() ? bias.raw() : nullptr), x.size(0), x.size(1), eps,
           static_cast<T*>(y.raw()));
  });
}

void layer_norm_backward(Context& context, const TensorView& x, const TensorView& weight,
                         double eps, const TensorView& dy, const TensorSpan& dx,
                         const TensorSpan& dweight, const TensorSpan& dbias) {
  const gpu::Stream stream = context.stream();
  const std::int64_t rows = x.size(0), features = x.size(1);
  const std::int64_t runs = (features + 31) / 32;
  const std::int64_t wanted = std::max<std::int64_t>(1, kBlocks / runs);
  const std::int64_t part_rows = std::max(kLeastRows, (rows + wanted - 1) / wanted);
  const std::int64_t count = (rows + part_rows - 1) / part_rows;
  Workspace::Scope scratch(context.workspace());
  Statistics* const statistics = scratch.take<Statistics>(rows).data();
  double* const parts = scratch.take<double>(count * 2 * features).data();
  with_floating(x.dtype(), [&]<class T>(std::type_identity<T>) {
    const auto* const from = static_cast<const T*>(x.raw());
    const auto* const upstream = static_cast<const T*>(dy.raw());
    launch(stream, PACKRNN_KERNEL(statistics_kernel<T>), shape_of_rows(stream, rows), from, rows,
           features, eps, statistics);
    if (dweight.defined() || dbias.defined()) {
      using A = Sum<T>;
      gpu::LaunchShape shape;
      shape.grid = {static_cast<unsigned>(runs), static_cast<unsigned>(count), 1};
      shape.block[0] = kRowThreads;
      launch(stream, PACKRNN_KERNEL(sum_gradients_kernel<T>), shape, from, upstream, statistics,
             rows, features, part_rows, parts);
      launch(stream, PACKRNN_KERNEL(add_gradients_kernel<A>), strided_shape(stream, 2 * features),
             parts, count, features, static_cast<A*>(dweight.defined() ? dweight.raw() : nullptr),
             static_cast<A*>(dbias.defined() ? dbias.raw() : nullptr));
    }
    if (dx.defined())
      launch(stream, PACKRNN_KERNEL(input_gradient_kernel<T>), shape_of_rows(stream, rows), from,
             static_cast<const T*>(weight.raw()), upstream, statistics, rows, features,
             static_cast<T*>(dx.raw()));
  });
}

}  // namespace packrnn::kernels::cuda

// Reductions of losses: a few doubles for each row. Sequences are summed in time order by a thread
// each, as in reduce.cu, everything else as in sum.cuh.
#include <type_traits>

#include "packrnn/kernels/cuda/launch.cuh"
#include "packrnn/kernels/cuda/loss_reduction.hpp"
#include "packrnn/kernels/cuda/rows.cuh"
#include "packrnn/kernels/cuda/sum.cuh"

namespace packrnn::kernels::cuda {
namespace {

__device__ double inverse(double weight) { return weight > 0 ? 1 / weight : 0; }

__device__ double scaled(double scale, double loss) { return scale != 0 ? scale * loss : 0; }

// ---- scales -------------------------------------------------------------------------------------

struct WeightOf {
  const double* weights;
  __device__ double operator()(std::int64_t row) const { return weights[row]; }
};
// Of a layout whose rows the host may not know the number of.
struct WeightInUse {
  const double* weights;
  DeviceLayout layout;
  __device__ double operator()(std::int64_t row) const {
    return row < rows_of(layout) ? weights[row] : 0;
  }
};
struct HasWeight {
  const double* totals;
  __device__ double operator()(std::int64_t k) const { return totals[k] > 0 ? 1 : 0; }
};
struct Inverse {
  __device__ double operator()(double sum) const { return inverse(sum); }
};

// totals [batch] of the sequences in sorted order.
__global__ void __launch_bounds__(kRowThreads)
    sequence_totals_kernel(DeviceLayout layout, const double* weights, double* totals) {
  for (std::int64_t k = first_item(); k < layout.batch; k += item_stride()) {
    double total = 0;
    for (std::int32_t t = 0; t < layout.lengths[k]; ++t) total += weights[layout.offsets[t] + k];
    totals[k] = total;
  }
}

// One scale for all rows in use: *factor, or 1 where that is null. `used` is null for all.
__global__ void __launch_bounds__(kRowThreads)
    same_scales_kernel(const double* factor, const std::int64_t* used, std::int64_t rows,
                       double* scales) {
  const double scale = factor == nullptr ? 1 : *factor;
  for (std::int64_t row = first_item(); row < rows; row += item_stride())
    scales[row] = used == nullptr || row < *used ? scale : 0;
}

// factor may be null.
__global__ void __launch_bounds__(kRowThreads)
    sequence_scales_kernel(DeviceLayout layout, const double* totals, const double* factor,
                           double* scales) {
  for (std::int64_t row = first_item(); row < layout.rows_capacity; row += item_stride()) {
    double scale = 0;
    if (row < rows_of(layout)) {
      scale = inverse(totals[row - layout.offsets[step_of(layout, row)]]);
      if (factor != nullptr) scale *= *factor;
    }
    scales[row] = scale;
  }
}

__global__ void __launch_bounds__(kRowThreads)
    leave_out_infinite_kernel(const double* losses, std::int64_t rows, double* scales) {
  for (std::int64_t row = first_item(); row < rows; row += item_stride())
    if (isinf(losses[row])) scales[row] = 0;
}

// ---- sums and their gradients -------------------------------------------------------------------

struct ScaledLoss {
  const double *losses, *scales;
  __device__ double operator()(std::int64_t row) const { return scaled(scales[row], losses[row]); }
};

template <class R>
__global__ void __launch_bounds__(kRowThreads)
    each_row_kernel(ScaledLoss loss, std::int64_t rows, R* result) {
  for (std::int64_t row = first_item(); row < rows; row += item_stride())
    result[row] = static_cast<R>(loss(row));
}

template <class R>
__global__ void __launch_bounds__(kRowThreads)
    each_sequence_kernel(DeviceLayout layout, ScaledLoss loss, R* result) {
  for (std::int64_t k = first_item(); k < layout.batch; k += item_stride()) {
    double sum = 0;
    for (std::int32_t t = 0; t < layout.lengths[k]; ++t) sum += loss(layout.offsets[t] + k);
    result[layout.sorted_indices[k]] = static_cast<R>(sum);
  }
}

template <class R>
__global__ void __launch_bounds__(kRowThreads)
    row_gradients_kernel(bool each, const R* gradient, const double* scales, std::int64_t rows,
                         double* row_gradients) {
  for (std::int64_t row = first_item(); row < rows; row += item_stride())
    row_gradients[row] = scaled(scales[row], static_cast<double>(gradient[each ? row : 0]));
}

template <class R>
__global__ void __launch_bounds__(kRowThreads)
    sequence_gradients_kernel(DeviceLayout layout, const R* gradient, const double* scales,
                              double* row_gradients) {
  for (std::int64_t row = first_item(); row < layout.rows_capacity; row += item_stride()) {
    double result = 0;
    if (row < rows_of(layout)) {
      const std::int32_t t = step_of(layout, row);
      const std::int32_t n = layout.sorted_indices[row - layout.offsets[t]];
      result = scaled(scales[row], static_cast<double>(gradient[n]));
    }
    row_gradients[row] = result;
  }
}

// body(std::type_identity<R>) for f32 or f64.
template <class Body>
void with_result(Dtype dtype, const Body& body) {
  if (dtype == Dtype::f32)
    body(std::type_identity<float>());
  else
    body(std::type_identity<double>());
}

void sequence_scales(Context& context, Average average, const double* weights,
                     const DeviceLayout& layout, double* scales) {
  const gpu::Stream stream = context.stream();
  Workspace::Scope scope(context.workspace());
  double* const totals = scope.take<double>(layout.batch).data();
  double* const factor = average == Average::sequences ? scope.take<double>(1).data() : nullptr;
  launch(stream, PACKRNN_KERNEL(sequence_totals_kernel), strided_shape(stream, layout.batch),
         layout, weights, totals);
  if (factor != nullptr) sum_terms(context, HasWeight{totals}, layout.batch, Inverse{}, factor);
  launch(stream, PACKRNN_KERNEL(sequence_scales_kernel),
         strided_shape(stream, layout.rows_capacity), layout, totals, factor, scales);
}

}  // namespace

void loss_scales(Context& context, Average average, const double* weights, std::int64_t rows,
                 const DeviceLayout* layout, double* scales) {
  if (average == Average::sequence || average == Average::sequences)
    return sequence_scales(context, average, weights, *layout, scales);
  Workspace::Scope scope(context.workspace());
  double* factor = nullptr;
  if (average == Average::rows) {
    factor = scope.take<double>(1).data();
    if (layout != nullptr)
      sum_terms(context, WeightInUse{weights, *layout}, rows, Inverse{}, factor);
    else
      sum_terms(context, WeightOf{weights}, rows, Inverse{}, factor);
  }
  const std::int64_t* const used =
      layout != nullptr ? layout->offsets + layout->steps_capacity : nullptr;
  launch(context.stream(), PACKRNN_KERNEL(same_scales_kernel),
         strided_shape(context.stream(), rows), factor, used, rows, scales);
}

void leave_out_infinite(Context& context, const double* losses, std::int64_t rows, double* scales) {
  launch(context.stream(), PACKRNN_KERNEL(leave_out_infinite_kernel),
         strided_shape(context.stream(), rows), losses, rows, scales);
}

void collect_losses(Context& context, Collect collect, const DeviceLayout* layout,
                    const double* losses, const double* scales, std::int64_t rows, Dtype dtype,
                    void* result) {
  const gpu::Stream stream = context.stream();
  const ScaledLoss loss{losses, scales};
  with_result(dtype, [&]<class R>(std::type_identity<R>) {
    auto* const to = static_cast<R*>(result);
    if (collect == Collect::rows)
      launch(stream, PACKRNN_KERNEL(each_row_kernel<R>), strided_shape(stream, rows), loss, rows,
             to);
    else if (collect == Collect::sequences)
      launch(stream, PACKRNN_KERNEL(each_sequence_kernel<R>), strided_shape(stream, layout->batch),
             *layout, loss, to);
    else
      sum_terms(context, loss, rows, AsIs{}, to);
  });
}

void collect_losses_backward(Context& context, Collect collect, const DeviceLayout* layout,
                             Dtype dtype, const void* gradient, const double* scales,
                             std::int64_t rows, double* row_gradients) {
  const gpu::LaunchShape shape = strided_shape(context.stream(), rows);
  with_result(dtype, [&]<class R>(std::type_identity<R>) {
    const auto* const from = static_cast<const R*>(gradient);
    if (collect == Collect::sequences)
      launch(context.stream(), PACKRNN_KERNEL(sequence_gradients_kernel<R>), shape, *layout, from,
             scales, row_gradients);
    else
      launch(context.stream(), PACKRNN_KERNEL(row_gradients_kernel<R>), shape,
             collect == Collect::rows, from, scales, rows, row_gradients);
  });
}

}  // namespace packrnn::kernels::cuda

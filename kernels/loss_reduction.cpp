#include "packrnn/kernels/loss_reduction.hpp"

#include "packrnn/kernels/check.hpp"
#include "packrnn/kernels/cpu/loss_reduction.hpp"
#include "packrnn/kernels/cuda/loss_reduction.hpp"

namespace packrnn::kernels {
namespace {

bool on_gpu(const Context& context) { return context.device().type == DeviceType::cuda; }

const double* doubles(const TensorView& tensor) { return static_cast<const double*>(tensor.raw()); }
double* doubles(const TensorSpan& tensor) { return static_cast<double*>(tensor.raw()); }

// f64 [M].
void check_rows(const Context& context, std::string_view name, const TensorView& rows) {
  expects(rows.defined() && rows.shape().rank() == 1, "{} has shape {}, expected [M]", name,
          rows.shape());
  check(name, rows, rows.shape(), Dtype::f64, context.device());
}

void check_layout(const PackedLayout* layout, bool needed, std::int64_t rows) {
  if (layout != nullptr)
    expects(layout->total() == rows, "the layout has {} rows, expected {}", layout->total(), rows);
  expects(layout != nullptr || !needed, "there is no layout to say where sequences are");
}

void check_result(const Context& context, std::string_view name, Collect collect,
                  const PackedLayout* layout, std::int64_t rows, const TensorView& result) {
  check_layout(layout, collect == Collect::sequences, rows);
  expects(result.defined() && (result.dtype() == Dtype::f32 || result.dtype() == Dtype::f64),
          "{} is {}, expected f32 or f64", name, result.dtype());
  const std::int64_t elements = collect == Collect::rows  ? rows
                                : collect == Collect::all ? 1
                                                          : layout->batch();
  expects(result.elements() == elements, "{} has {} elements, expected {}", name, result.elements(),
          elements);
  check_place(name, result, context.device());
}

// The layout's tables on the GPU; null for none.
const DeviceLayout* tables(Context& context, const PackedLayout* layout) {
  return layout == nullptr ? nullptr : &layout->on(context);
}

}  // namespace

void loss_scales(Context& context, Average average, const TensorView& weights,
                 const PackedLayout* layout, const TensorSpan& scales) {
  check_rows(context, "weights", weights);
  check("scales", scales, weights.shape(), Dtype::f64, context.device());
  check_layout(layout, average == Average::sequence || average == Average::sequences,
               weights.elements());
  if (on_gpu(context))
    return cuda::loss_scales(context, average, doubles(weights), weights.elements(),
                             tables(context, layout), doubles(scales));
  cpu::loss_scales(average, weights.values<double>(), layout, scales.values<double>());
}

void leave_out_infinite(Context& context, const TensorView& losses, const TensorSpan& scales) {
  check_rows(context, "losses", losses);
  check("scales", scales, losses.shape(), Dtype::f64, context.device());
  if (on_gpu(context))
    return cuda::leave_out_infinite(context, doubles(losses), losses.elements(), doubles(scales));
  cpu::leave_out_infinite(losses.values<double>(), scales.values<double>());
}

void collect_losses(Context& context, Collect collect, const PackedLayout* layout,
                    const TensorView& losses, const TensorView& scales, const TensorSpan& result) {
  check_rows(context, "losses", losses);
  check("scales", scales, losses.shape(), Dtype::f64, context.device());
  check_result(context, "result", collect, layout, losses.elements(), result);
  if (on_gpu(context))
    return cuda::collect_losses(context, collect, tables(context, layout), doubles(losses),
                                doubles(scales), losses.elements(), result.dtype(), result.raw());
  Tensor sums = Tensor::empty(result.shape(), Dtype::f64);
  cpu::collect_losses(collect, layout, losses.values<double>(), scales.values<double>(),
                      sums.values<double>());
  convert_into(sums, result);
}

void collect_losses_backward(Context& context, Collect collect, const PackedLayout* layout,
                             const TensorView& gradient, const TensorView& scales,
                             const TensorSpan& row_gradients) {
  check_rows(context, "scales", scales);
  check("row_gradients", row_gradients, scales.shape(), Dtype::f64, context.device());
  check_result(context, "gradient", collect, layout, scales.elements(), gradient);
  if (on_gpu(context))
    return cuda::collect_losses_backward(context, collect, tables(context, layout),
                                         gradient.dtype(), gradient.raw(), doubles(scales),
                                         scales.elements(), doubles(row_gradients));
  cpu::collect_losses_backward(collect, layout, convert(gradient, Dtype::f64).values<double>(),
                               scales.values<double>(), row_gradients.values<double>());
}

}  // namespace packrnn::kernels

#include "packrnn/kernels/linear.hpp"

#include <algorithm>
#include <cstring>

#include "packrnn/kernels/check.hpp"
#include "packrnn/kernels/cpu/linear.hpp"
#include "packrnn/kernels/cuda/elementwise.hpp"
#include "packrnn/kernels/cuda/gradient_product.hpp"
#include "packrnn/kernels/cuda/linear.hpp"
#include "packrnn/kernels/recurrent.hpp"
#include "packrnn/runtime/element.hpp"

namespace packrnn::kernels {
namespace {

/// On the CPU: the engine's own panels, then the bias.
std::int64_t cpu_bias(std::int64_t outputs, std::int64_t k, Dtype dtype) {
  const auto aligned = static_cast<std::int64_t>(kAlignment / size_of(dtype));
  return (cpu::linear_panel_elements(outputs, k, dtype) + aligned - 1) / aligned * aligned;
}

/// Assigns the bias behind the CPU engine's panels; undefined: zeros.
void fill_bias(std::int64_t outputs, std::int64_t k, const TensorView& bias,
               const TensorSpan& panels) {
  const std::size_t size = size_of(panels.dtype());
  std::byte* const to = static_cast<std::byte*>(panels.raw()) +
                        static_cast<std::size_t>(cpu_bias(outputs, k, panels.dtype())) * size;
  const std::size_t bytes = static_cast<std::size_t>(outputs) * size;
  if (bias.defined())
    std::memcpy(to, bias.raw(), bytes);
  else
    std::memset(to, 0, bytes);
}

Tensor transposed(const TensorView& weight) {
  const std::int64_t rows = weight.size(0), columns = weight.size(1);
  Tensor result = Tensor::empty({columns, rows}, weight.dtype());
  with_dtype(weight.dtype(), [&]<class T>(std::type_identity<T>) {
    const T* const from = weight.data<T>();
    T* const to = result.span().data<T>();
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < columns; ++c) to[c * rows + r] = from[r * columns + c];
  });
  return result;
}

/// Where weights may lie: in the host's memory or on the context's device.
Device place_of(const TensorView& weight, const Context& context) {
  return weight.device() == Device::cpu() ? Device::cpu() : context.device();
}

void linear_on_gpu(Context& context, const TensorView& x, const TensorView& panels,
                   const TensorSpan& y) {
  const std::int64_t rows = x.size(0), k = x.size(1), outputs = y.size(1);
  if (rows == 0 || outputs == 0) return;
  const cuda::LinearPanels p = cuda::LinearPanels::of(outputs, k, x.dtype());
  const auto* const w = static_cast<const std::byte*>(panels.raw());
  const std::byte* const bias = w + static_cast<std::size_t>(p.bias) * size_of(x.dtype());
  if (x.dtype() == Dtype::f32 || x.dtype() == Dtype::f64) {
    cuda::chain_product(context.stream(), {.dtype = x.dtype(),
                                           .rows = rows,
                                           .outputs = outputs,
                                           .k = k,
                                           .x = x.raw(),
                                           .w = w,
                                           .bias = bias,
                                           .y = y.raw(),
                                           .ldx = k,
                                           .ldw = p.pitch,
                                           .ldy = outputs});
    return;
  }
  // Sums and bias are f32: rounded to the dtype at last, some rows at a time.
  constexpr std::int64_t kSums = std::int64_t{16} << 20;
  const std::int64_t most = std::max<std::int64_t>(1, kSums / outputs);
  const auto size = static_cast<std::int64_t>(size_of(x.dtype()));
  Workspace::Scope scratch(context.workspace());
  float* const sums = scratch.take<float>(std::min(rows, most) * outputs).data();
  for (std::int64_t first = 0; first < rows; first += most) {
    const gpu::Product product{.m = std::min(most, rows - first),
                               .n = outputs,
                               .k = k,
                               .in = x.dtype(),
                               .out = Dtype::f32,
                               .lda = k,
                               .ldb = p.pitch,
                               .ldd = outputs,
                               .accumulate = false};
    gpu::multiply(context.products(), product,
                  static_cast<const std::byte*>(x.raw()) + first * k * size, w,
                  reinterpret_cast<const float*>(bias), sums);
    cuda::convert(context.stream(), sums, Dtype::f32, product.m * outputs,
                  static_cast<std::byte*>(y.raw()) + first * outputs * size, x.dtype());
  }
}

void weight_gradient_on_gpu(Context& context, const TensorView& x, const TensorView& dy,
                            const TensorSpan& dw, const TensorSpan& db) {
  const std::int64_t rows = x.size(0), k = x.size(1), outputs = dy.size(1);
  if (dw.defined())
    cuda::gradient_product(context, {.dtype = x.dtype(),
                                     .rows = rows,
                                     .m = outputs,
                                     .n = k,
                                     .a = dy.raw(),
                                     .b = x.raw(),
                                     .sums = dw.raw(),
                                     .lda = outputs,
                                     .ldb = k,
                                     .ldsums = k});
  if (db.defined())
    cuda::column_sums(context, {.dtype = x.dtype(),
                                .rows = rows,
                                .columns = outputs,
                                .values = dy.raw(),
                                .sums = db.raw(),
                                .ld = outputs});
}

}  // namespace

std::int64_t linear_panel_elements(Device device, std::int64_t outputs, std::int64_t k,
                                   Dtype dtype) {
  check_computable("linear", dtype, device);
  expects(outputs >= 0 && k >= 0, "linear: outputs {} and k {} must not be negative", outputs, k);
  if (device.type == DeviceType::cuda) return cuda::LinearPanels::of(outputs, k, dtype).elements;
  return cpu_bias(outputs, k, dtype) + outputs;
}

void pack_linear(Context& context, const TensorView& weight, const TensorView& bias,
                 const TensorSpan& panels) {
  expects(weight.defined() && weight.shape().rank() == 2, "weight: shape {}, expected [O, K]",
          weight.shape());
  const std::int64_t outputs = weight.size(0), k = weight.size(1);
  const Dtype dtype = weight.dtype();
  const std::int64_t elements = linear_panel_elements(context.device(), outputs, k, dtype);
  const Device place = place_of(weight, context);
  check("weight", weight, {outputs, k}, dtype, place);
  check_optional("bias", bias, {outputs}, dtype, place);
  check_panels(panels, elements, dtype, context.device());
  if (place.type == DeviceType::cuda)
    return cuda::fill_panels(context.stream(), weight, bias, false, panels.raw());
  if (context.device().type == DeviceType::cuda) {
    Tensor filled = Tensor::empty({elements}, dtype);
    cuda::fill_panels(weight, bias, filled.span().raw());
    context.copy(filled, panels);
    return;
  }
  cpu::pack_linear(weight, {panels.raw(), {cpu::linear_panel_elements(outputs, k, dtype)}, dtype});
  fill_bias(outputs, k, bias, panels);
}

void pack_linear_backward(Context& context, const TensorView& weight, const TensorSpan& panels) {
  expects(weight.defined() && weight.shape().rank() == 2, "weight: shape {}, expected [O, K]",
          weight.shape());
  const std::int64_t outputs = weight.size(0), k = weight.size(1);
  const Dtype dtype = weight.dtype();
  const std::int64_t elements = linear_panel_elements(context.device(), k, outputs, dtype);
  const Device place = place_of(weight, context);
  check("weight", weight, {outputs, k}, dtype, place);
  check_panels(panels, elements, dtype, context.device());
  if (place.type == DeviceType::cuda)
    return cuda::fill_panels(context.stream(), weight, {}, true, panels.raw());
  if (context.device().type == DeviceType::cuda)
    return pack_linear(context, transposed(weight), {}, panels);
  cpu::pack_linear_backward(weight,
                            {panels.raw(), {cpu::linear_panel_elements(k, outputs, dtype)}, dtype});
  fill_bias(k, outputs, {}, panels);
}

void linear(Context& context, const TensorView& x, const TensorView& panels, const TensorSpan& y) {
  expects(x.defined() && x.shape().rank() == 2, "x: shape {}, expected [M, K]", x.shape());
  expects(y.defined() && y.shape().rank() == 2, "y: shape {}, expected [M, O]", y.shape());
  const Device device = context.device();
  const std::int64_t outputs = y.size(1), k = x.size(1);
  const std::int64_t elements = linear_panel_elements(device, outputs, k, x.dtype());
  check("x", x, x.shape(), x.dtype(), device);
  check("y", y, {x.size(0), outputs}, x.dtype(), device);
  check_panels(panels, elements, x.dtype(), device);
  if (device.type == DeviceType::cuda) return linear_on_gpu(context, x, panels, y);
  const auto* const bias =
      static_cast<const std::byte*>(panels.raw()) +
      static_cast<std::size_t>(cpu_bias(outputs, k, x.dtype())) * size_of(x.dtype());
  cpu::linear(context, x,
              {panels.raw(), {cpu::linear_panel_elements(outputs, k, x.dtype())}, x.dtype()},
              {bias, {outputs}, x.dtype()}, y);
}

void linear_weight_gradient(Context& context, const TensorView& x, const TensorView& dy,
                            const TensorSpan& dw, const TensorSpan& db) {
  expects(x.defined() && x.shape().rank() == 2, "x: shape {}, expected [M, K]", x.shape());
  expects(dy.defined() && dy.shape().rank() == 2, "dy: shape {}, expected [M, O]", dy.shape());
  const Device device = context.device();
  const std::int64_t outputs = dy.size(1), k = x.size(1);
  check_computable("linear_weight_gradient", x.dtype(), device);
  check("x", x, x.shape(), x.dtype(), device);
  check("dy", dy, {x.size(0), outputs}, x.dtype(), device);
  const Dtype sums = cell_dtype(x.dtype());
  check_optional("dw", dw, {outputs, k}, sums, device);
  check_optional("db", db, {outputs}, sums, device);
  if (device.type == DeviceType::cuda) return weight_gradient_on_gpu(context, x, dy, dw, db);
  cpu::linear_weight_gradient(context, x, dy, dw, db);
}

}  // namespace packrnn::kernels

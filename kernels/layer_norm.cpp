#include "packrnn/kernels/layer_norm.hpp"

#include "packrnn/kernels/check.hpp"
#include "packrnn/kernels/cpu/layer_norm.hpp"
#include "packrnn/kernels/cuda/layer_norm.hpp"
#include "packrnn/kernels/recurrent.hpp"

namespace packrnn::kernels {
namespace {

void check_rows(const Context& context, const TensorView& x, const TensorView& weight, double eps) {
  expects(x.defined() && x.shape().rank() == 2, "x: shape {}, expected [M, F]", x.shape());
  const Device device = context.device();
  check_computable("layer_norm", x.dtype(), device);
  check("x", x, x.shape(), x.dtype(), device);
  check("weight", weight, {x.size(1)}, x.dtype(), device);
  expects(eps >= 0.0, "eps is {}, expected 0 or more", eps);
}

}  // namespace

void layer_norm(Context& context, const TensorView& x, const TensorView& weight,
                const TensorView& bias, double eps, const TensorSpan& y) {
  check_rows(context, x, weight, eps);
  const Device device = context.device();
  check_optional("bias", bias, {x.size(1)}, x.dtype(), device);
  check("y", y, x.shape(), x.dtype(), device);
  if (x.elements() == 0) return;
  if (device.type == DeviceType::cuda) return cuda::layer_norm(context, x, weight, bias, eps, y);
  cpu::layer_norm(context, x, weight, bias, eps, y);
}

void layer_norm_backward(Context& context, const TensorView& x, const TensorView& weight,
                         double eps, const TensorView& dy, const TensorSpan& dx,
                         const TensorSpan& dweight, const TensorSpan& dbias) {
  check_rows(context, x, weight, eps);
  const Device device = context.device();
  const Dtype sums = cell_dtype(x.dtype());
  check("dy", dy, x.shape(), x.dtype(), device);
  check_optional("dx", dx, x.shape(), x.dtype(), device);
  check_optional("dweight", dweight, {x.size(1)}, sums, device);
  check_optional("dbias", dbias, {x.size(1)}, sums, device);
  if (x.elements() == 0) return;
  if (device.type == DeviceType::cuda)
    return cuda::layer_norm_backward(context, x, weight, eps, dy, dx, dweight, dbias);
  cpu::layer_norm_backward(context, x, weight, eps, dy, dx, dweight, dbias);
}

}  // namespace packrnn::kernels

#include "packrnn/kernels/linear.hpp"

#include "packrnn/kernels/check.hpp"
#include "packrnn/kernels/cpu/linear.hpp"

namespace packrnn::kernels {

std::int64_t linear_panel_elements(std::int64_t outputs, std::int64_t k, Dtype dtype) {
  check_computable("linear", dtype);
  expects(outputs >= 0 && k >= 0, "linear: outputs {} and k {} must not be negative", outputs, k);
  return cpu::linear_panel_elements(outputs, k, dtype);
}

void pack_linear(const TensorView& weight, const TensorSpan& panels) {
  expects(weight.defined() && weight.shape().rank() == 2, "weight: shape {}, expected [O, K]",
          weight.shape());
  const std::int64_t elements =
      linear_panel_elements(weight.size(0), weight.size(1), weight.dtype());
  check_panels(panels, elements, weight.dtype());
  cpu::pack_linear(weight, panels);
}

void linear(Context& context, const TensorView& x, const TensorView& panels, const TensorView& bias,
            const TensorSpan& y) {
  expects(x.defined() && x.shape().rank() == 2, "x: shape {}, expected [M, K]", x.shape());
  expects(y.defined() && y.shape().rank() == 2, "y: shape {}, expected [M, O]", y.shape());
  const std::int64_t elements = linear_panel_elements(y.size(1), x.size(1), x.dtype());
  check("y", y, {x.size(0), y.size(1)}, x.dtype());
  check_panels(panels, elements, x.dtype());
  check_optional("bias", bias, {y.size(1)}, x.dtype());
  cpu::linear(context, x, panels, bias, y);
}

}  // namespace packrnn::kernels

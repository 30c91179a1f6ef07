// The CPU body of kernels/linear.hpp; arguments are already checked.
#pragma once

#include "packrnn/kernels/linear.hpp"

namespace packrnn::kernels::cpu {

std::int64_t linear_panel_elements(std::int64_t outputs, std::int64_t k, Dtype dtype);
void pack_linear(const TensorView& weight, const TensorSpan& panels);
void linear(Context& context, const TensorView& x, const TensorView& panels, const TensorView& bias,
            const TensorSpan& y);
/// `panels` [linear_panel_elements(K, O)] of weight [O, K].
void pack_linear_backward(const TensorView& weight, const TensorSpan& panels);
void linear_weight_gradient(Context& context, const TensorView& x, const TensorView& dy,
                            const TensorSpan& dw, const TensorSpan& db);

}  // namespace packrnn::kernels::cpu

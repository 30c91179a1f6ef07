// GPU bodies of kernels/layer_norm.hpp: arguments are checked, and there are elements. Private.
#pragma once

#include "packrnn/kernels/layer_norm.hpp"

namespace packrnn::kernels::cuda {

void layer_norm(Context& context, const TensorView& x, const TensorView& weight,
                const TensorView& bias, double eps, const TensorSpan& y);
void layer_norm_backward(Context& context, const TensorView& x, const TensorView& weight,
                         double eps, const TensorView& dy, const TensorSpan& dx,
                         const TensorSpan& dweight, const TensorSpan& dbias);

}  // namespace packrnn::kernels::cuda

// y = x W^T + b over any number of rows, with weights packed once into the order in which the
// kernel reads them. The sum over K runs in one fixed order per output element, so a row has the
// same bits whatever rows stand beside it and however many threads work (contract C1).
#pragma once

#include "packrnn/runtime/context.hpp"
#include "packrnn/runtime/tensor.hpp"

namespace packrnn::kernels {

/// Elements (of the weight's dtype) that pack_linear() fills for a weight [O, K] on this machine.
std::int64_t linear_panel_elements(std::int64_t outputs, std::int64_t k, Dtype dtype);

/// Assigns the packed form of weight [O, K] (f32 or f64; others throw Unsupported) to `panels`
/// [linear_panel_elements]. The form is of this machine and process: never store it.
void pack_linear(const TensorView& weight, const TensorSpan& panels);

/// Assigns y [M, O] = x [M, K] W^T + bias [O] (undefined bias: none). `panels` from pack_linear()
/// of a weight [O, K]; all of one dtype. y may not overlap x.
void linear(Context& context, const TensorView& x, const TensorView& panels, const TensorView& bias,
            const TensorSpan& y);

}  // namespace packrnn::kernels

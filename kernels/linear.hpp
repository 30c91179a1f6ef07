// y = x W^T + b over any number of rows, with weights packed once into the order in which the
// device's kernel reads them. The sum over K runs in one fixed order per output element, so a row
// has the same bits whatever rows stand beside it and however many threads work (contract C1). In
// f32 and f64 that order is one chain of fused multiply-adds from the bias on, over ascending k, on
// the CPU and on a GPU alike.
#pragma once

#include "packrnn/runtime/context.hpp"
#include "packrnn/runtime/tensor.hpp"

namespace packrnn::kernels {

/// Elements (of the weight's dtype) that pack_linear() fills for a weight [O, K] on this device.
/// f32 and f64; on a GPU also f16 and bf16, whose sums and bias are f32. Others throw Unsupported.
std::int64_t linear_panel_elements(Device device, std::int64_t outputs, std::int64_t k,
                                   Dtype dtype);

/// Assigns the packed form of weight [O, K] and bias [O] (undefined: none), both in the host's
/// memory or both on the context's device, to `panels` [linear_panel_elements] there. On a GPU the
/// host does not wait for the latter. The form is of this machine and process: never store it.
void pack_linear(Context& context, const TensorView& weight, const TensorView& bias,
                 const TensorSpan& panels);

/// Assigns y [M, O] = x [M, K] W^T + bias. `panels` from pack_linear() of a weight [O, K]; all of
/// one dtype and on the context's device. y may not overlap x. The host does not wait for a GPU.
void linear(Context& context, const TensorView& x, const TensorView& panels, const TensorSpan& y);

/// Assigns `panels` [linear_panel_elements(device, K, O, dtype)], with which linear() makes
/// dx [M, K] = dy W out of dy [M, O]: the packed form of the transpose of weight [O, K], without
/// bias.
void pack_linear_backward(Context& context, const TensorView& weight, const TensorSpan& panels);

/// Adds dy^T x to dw [O, K] and the column sums of dy to db [O], from x [M, K] and dy [M, O]. An
/// undefined one is not wanted. Sums over M run in blocks in an order that follows from the shapes:
/// the same bits on any number of threads; on a GPU those of another order. dw and db are f32 where
/// x is 16-bit. The host does not wait for a GPU.
void linear_weight_gradient(Context& context, const TensorView& x, const TensorView& dy,
                            const TensorSpan& dw, const TensorSpan& db);

}  // namespace packrnn::kernels

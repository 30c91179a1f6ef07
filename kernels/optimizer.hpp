// The arithmetic of optimizers over flat arrays of parameters' values and of their gradients, on
// the CPU and on a GPU. Elementwise, and then with the same bits on both, except for the norm,
// whose order of summation is fixed: the same bits on any number of threads (contract C1), or on
// any GPU.
//
// Steps are taken in f32 or f64, the same in all arguments but `rounded`. Parameters of 16 bits
// have a copy in f32 (the master) that takes the steps as `values`, and are themselves `rounded`:
// f16 or bf16, of the values' shape, assigned the new values, rounded to nearest once. An element
// that is not the rounded value before the step was assigned by somebody else, and takes the
// value's place. Nothing waits for a GPU. All throw InvalidArgument on a shape, dtype or device
// that does not fit, and Unsupported for other dtypes. No two arguments may overlap.
#pragma once

#include <cstdint>

#include "packrnn/runtime/context.hpp"
#include "packrnn/runtime/tensor.hpp"

namespace packrnn::kernels {

/// Decay of weights: coupled (L2), g + decay * x takes the place of the gradient g; decoupled
/// (Loshchilov, Hutter: "Decoupled weight decay regularization", ICLR 2019), x is first multiplied
/// by 1 - learning_rate * decay.
struct WeightDecay {
  double decay = 0.0;
  bool decoupled = false;
};

struct SgdStep {
  double learning_rate = 0.0;
  double momentum = 0.0;
  bool nesterov = false;
  WeightDecay decay = {};
};

/// Velocity b' = momentum b + g; values x' = x - learning_rate b' or, with nesterov (Sutskever et
/// al.: "On the importance of initialization and momentum in deep learning", ICML 2013, in
/// PyTorch's form), x - learning_rate (g + momentum b'). The velocity is zero at first, and may be
/// left out when momentum is 0.
void sgd(Context& context, const SgdStep& step, const TensorSpan& values,
         const TensorView& gradients, const TensorSpan& velocity, const TensorSpan& rounded = {});

struct AdamStep {
  double learning_rate = 0.0;
  double beta1 = 0.0, beta2 = 0.0, eps = 0.0;
  WeightDecay decay = {};
  std::int64_t number = 1;  // of this step; the first is 1
};

/// Kingma, Ba: "Adam: a method for stochastic optimization", ICLR 2015. Moments
/// m' = beta1 m + (1 - beta1) g and v' = beta2 v + (1 - beta2) g^2, zero at first; values
/// x' = x - learning_rate / (1 - beta1^number) m' / (sqrt(v' / (1 - beta2^number)) + eps).
void adam(Context& context, const AdamStep& step, const TensorSpan& values,
          const TensorView& gradients, const TensorSpan& first, const TensorSpan& second,
          const TensorSpan& rounded = {});

/// Assigns result f64, one element: the sum of squares, in double. Not finite if an element is not.
/// (A f64 beyond 1e154 overflows too.) f32 or f64; on a GPU also f16 and bf16, as in the following.
void squared_norm(Context& context, const TensorView& values, const TensorSpan& result);

/// values *= factor.
void scale(Context& context, double factor, const TensorSpan& values);

/// Limits values to [-bound, bound]; NaN stays NaN. The bound is not negative.
void clamp(Context& context, double bound, const TensorSpan& values);

}  // namespace packrnn::kernels

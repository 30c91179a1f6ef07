// Functions of one element and their gradients (map.cuh), in f32 and f64 with the bits of the CPU.
#include <type_traits>

#include "packrnn/kernels/cuda/activation.hpp"
#include "packrnn/kernels/cuda/activations.cuh"
#include "packrnn/kernels/cuda/map.cuh"

namespace packrnn::kernels::cuda {
namespace {

// The gradients take the result y.

struct Relu {
  template <class A>
  __device__ A operator()(A x, A) const {
    return at_least(A(0), x);
  }
};
struct ReluBackward {
  // Not a product: 0 times Inf would be NaN.
  template <class A>
  __device__ A operator()(A y, A dy) const {
    return y <= A(0) ? A(0) : dy;
  }
};

struct Tanh {
  template <class A>
  __device__ A operator()(A x, A) const {
    return ExactMath::tanh(x);
  }
};
struct TanhBackward {
  template <class A>
  __device__ A operator()(A y, A dy) const {
    return dy * (A(1) - y * y);
  }
};

struct Sigmoid {
  template <class A>
  __device__ A operator()(A x, A) const {
    return ExactMath::sigmoid(x);
  }
};
struct SigmoidBackward {
  template <class A>
  __device__ A operator()(A y, A dy) const {
    return dy * (y * (A(1) - y));
  }
};

template <class R, class T, class S>
void map(gpu::Stream stream, Activation activation, Dtype dtype, const void* a, const void* b,
         std::int64_t count, void* to, R relu, T tanh, S sigmoid) {
  with_floating(dtype, [&]<class Element>(std::type_identity<Element>) {
    switch (activation) {
      case Activation::relu:
        return map_elements<Element>(stream, a, b, count, relu, to);
      case Activation::tanh:
        return map_elements<Element>(stream, a, b, count, tanh, to);
      case Activation::sigmoid:
        return map_elements<Element>(stream, a, b, count, sigmoid, to);
    }
  });
}

}  // namespace

void activate(gpu::Stream stream, Activation activation, Dtype dtype, const void* x,
              std::int64_t count, void* y) {
  map(stream, activation, dtype, x, x, count, y, Relu{}, Tanh{}, Sigmoid{});
}

void activate_backward(gpu::Stream stream, Activation activation, Dtype dtype, const void* y,
                       const void* dy, std::int64_t count, void* dx) {
  map(stream, activation, dtype, y, dy, count, dx, ReluBackward{}, TanhBackward{},
      SigmoidBackward{});
}

}  // namespace packrnn::kernels::cuda

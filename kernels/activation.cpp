#include "packrnn/kernels/activation.hpp"

#include "packrnn/kernels/check.hpp"
#include "packrnn/kernels/cpu/activation.hpp"
#include "packrnn/kernels/cpu/parallel_for.hpp"
#include "packrnn/kernels/cpu/with_real.hpp"
#include "packrnn/kernels/cuda/activation.hpp"

namespace packrnn::kernels {
namespace {

template <Activation kActivation, class T>
T gradient(T y, T dy) {
  // Not a product: 0 times Inf would be NaN.
  if constexpr (kActivation == Activation::relu) return y <= T{0} ? T{0} : dy;
  if constexpr (kActivation == Activation::tanh) return dy * (T{1} - y * y);
  if constexpr (kActivation == Activation::sigmoid) return dy * (y * (T{1} - y));
}

template <Activation kActivation, class T>
void backward(ThreadPool& pool, const TensorView& y, const TensorView& dy, const TensorSpan& dx) {
  const T* const result = y.data<T>();
  const T* const from = dy.data<T>();
  T* const to = dx.data<T>();
  cpu::parallel_for(pool, y.elements(), 3 * std::int64_t{sizeof(T)},
                    [&](std::int64_t begin, std::int64_t end) {
                      for (std::int64_t i = begin; i < end; ++i)
                        to[i] = gradient<kActivation>(result[i], from[i]);
                    });
}

}  // namespace

void activate(Context& context, Activation activation, const TensorView& x, const TensorSpan& y) {
  expects(x.defined(), "x is not defined");
  check_computable("activate", x.dtype(), context.device());
  check("x", x, x.shape(), x.dtype(), context.device());
  check("y", y, x.shape(), x.dtype(), context.device());
  if (context.device().type == DeviceType::cuda)
    return cuda::activate(context.stream(), activation, x.dtype(), x.raw(), x.elements(), y.raw());
  cpu::activate(context.pool(), activation, x, y);
}

void activate_backward(Context& context, Activation activation, const TensorView& y,
                       const TensorView& dy, const TensorSpan& dx) {
  expects(y.defined(), "y is not defined");
  check_computable("activate_backward", y.dtype(), context.device());
  check("y", y, y.shape(), y.dtype(), context.device());
  check("dy", dy, y.shape(), y.dtype(), context.device());
  check("dx", dx, y.shape(), y.dtype(), context.device());
  if (context.device().type == DeviceType::cuda)
    return cuda::activate_backward(context.stream(), activation, y.dtype(), y.raw(), dy.raw(),
                                   y.elements(), dx.raw());
  cpu::with_real(y.dtype(), [&]<class T>(std::type_identity<T>) {
    switch (activation) {
      case Activation::relu:
        return backward<Activation::relu, T>(context.pool(), y, dy, dx);
      case Activation::tanh:
        return backward<Activation::tanh, T>(context.pool(), y, dy, dx);
      case Activation::sigmoid:
        return backward<Activation::sigmoid, T>(context.pool(), y, dy, dx);
    }
  });
}

}  // namespace packrnn::kernels

#include "packrnn/kernels/optimizer.hpp"

#include "packrnn/kernels/check.hpp"
#include "packrnn/kernels/cpu/optimizer.hpp"
#include "packrnn/kernels/cpu/with_real.hpp"

namespace packrnn::kernels {
namespace {

void check_values(const Context& context, const TensorView& values) {
  if (context.device() != Device::cpu()) throw Unsupported("optimizer: not on a GPU yet");
  expects(values.defined(), "values are not defined");
  check_computable("optimizer", values.dtype());
  check_place("values", values, context.device());
}

}  // namespace

void sgd(Context& context, const SgdStep& step, const TensorSpan& values,
         const TensorView& gradients, const TensorSpan& velocity) {
  check_values(context, values);
  check("gradients", gradients, values.shape(), values.dtype());
  if (step.momentum != 0.0) check("velocity", velocity, values.shape(), values.dtype());
  cpu::with_real(values.dtype(), [&]<class T>(std::type_identity<T>) {
    cpu::sgd<T>(context.pool(), step, values.values<T>(), gradients.values<T>(),
                step.momentum != 0.0 ? velocity.values<T>() : std::span<T>());
  });
}

void adam(Context& context, const AdamStep& step, const TensorSpan& values,
          const TensorView& gradients, const TensorSpan& first, const TensorSpan& second) {
  check_values(context, values);
  check("gradients", gradients, values.shape(), values.dtype());
  check("first", first, values.shape(), values.dtype());
  check("second", second, values.shape(), values.dtype());
  expects(step.number >= 1, "step number {}, expected 1 or more", step.number);
  cpu::with_real(values.dtype(), [&]<class T>(std::type_identity<T>) {
    cpu::adam<T>(context.pool(), step, values.values<T>(), gradients.values<T>(), first.values<T>(),
                 second.values<T>());
  });
}

double squared_norm(Context& context, const TensorView& values) {
  check_values(context, values);
  return cpu::with_real(values.dtype(), [&]<class T>(std::type_identity<T>) {
    return cpu::squared_norm<T>(context, values.values<T>());
  });
}

void scale(Context& context, double factor, const TensorSpan& values) {
  check_values(context, values);
  cpu::with_real(values.dtype(), [&]<class T>(std::type_identity<T>) {
    cpu::scale<T>(context.pool(), factor, values.values<T>());
  });
}

void clamp(Context& context, double bound, const TensorSpan& values) {
  check_values(context, values);
  expects(bound >= 0.0, "bound is {}, expected 0 or more", bound);
  cpu::with_real(values.dtype(), [&]<class T>(std::type_identity<T>) {
    cpu::clamp<T>(context.pool(), bound, values.values<T>());
  });
}

}  // namespace packrnn::kernels

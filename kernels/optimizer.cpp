#include "packrnn/kernels/optimizer.hpp"

#include <span>
#include <type_traits>

#include "packrnn/kernels/check.hpp"
#include "packrnn/kernels/cpu/optimizer.hpp"
#include "packrnn/kernels/cpu/with_real.hpp"
#include "packrnn/kernels/cuda/optimizer.hpp"

namespace packrnn::kernels {
namespace {

bool on_gpu(const Context& context) { return context.device().type == DeviceType::cuda; }

void check_values(const Context& context, const TensorView& values) {
  expects(values.defined(), "values are not defined");
  check_computable("optimizer", values.dtype(), context.device());
  check_place("values", values, context.device());
}

// Of a step.
void check_stepped(const Context& context, const TensorView& values, const TensorView& rounded) {
  expects(values.defined(), "values are not defined");
  expects(values.dtype() == Dtype::f32 || values.dtype() == Dtype::f64,
          "values are {}, and steps are taken in f32 or f64; 16-bit parameters are `rounded`",
          values.dtype());
  check_place("values", values, context.device());
  if (!rounded.defined()) return;
  expects(rounded.dtype() == Dtype::f16 || rounded.dtype() == Dtype::bf16,
          "rounded is {}, expected f16 or bf16", rounded.dtype());
  check("rounded", rounded, values.shape(), rounded.dtype(), context.device());
}

void check_like(std::string_view name, const TensorView& other, const TensorView& values) {
  check(name, other, values.shape(), values.dtype(), values.device());
}

cuda::SteppedValues stepped(const TensorSpan& values, const TensorView& gradients,
                            const TensorSpan& rounded) {
  return {values.elements(), values.dtype(), values.raw(),
          gradients.raw(),   rounded.raw(),  rounded.dtype()};
}

// Takes a step on the CPU: step(std::type_identity<T>) changes the values, of T.
template <class Step>
void on_cpu(Context& context, const TensorSpan& values, const TensorSpan& rounded,
            const Step& step) {
  cpu::with_real(values.dtype(), [&]<class T>(std::type_identity<T> type) {
    if (!rounded.defined()) return step(type);
    const auto around = [&]<class R>(std::type_identity<R>) {
      cpu::follow<T, R>(context.pool(), rounded.values<R>(), values.values<T>());
      step(type);
      cpu::round<T, R>(context.pool(), values.values<T>(), rounded.values<R>());
    };
    if (rounded.dtype() == Dtype::f16)
      around(std::type_identity<Half>());
    else
      around(std::type_identity<BFloat16>());
  });
}

}  // namespace

void sgd(Context& context, const SgdStep& step, const TensorSpan& values,
         const TensorView& gradients, const TensorSpan& velocity, const TensorSpan& rounded) {
  check_stepped(context, values, rounded);
  check_like("gradients", gradients, values);
  const bool has_velocity = step.momentum != 0.0;
  if (has_velocity) check_like("velocity", velocity, values);
  if (on_gpu(context))
    return cuda::sgd(context.stream(), step, stepped(values, gradients, rounded),
                     has_velocity ? velocity.raw() : nullptr);
  on_cpu(context, values, rounded, [&]<class T>(std::type_identity<T>) {
    cpu::sgd<T>(context.pool(), step, values.values<T>(), gradients.values<T>(),
                has_velocity ? velocity.values<T>() : std::span<T>());
  });
}

void adam(Context& context, const AdamStep& step, const TensorSpan& values,
          const TensorView& gradients, const TensorSpan& first, const TensorSpan& second,
          const TensorSpan& rounded) {
  check_stepped(context, values, rounded);
  check_like("gradients", gradients, values);
  check_like("first", first, values);
  check_like("second", second, values);
  expects(step.number >= 1, "step number {}, expected 1 or more", step.number);
  if (on_gpu(context))
    return cuda::adam(context.stream(), step, stepped(values, gradients, rounded), first.raw(),
                      second.raw());
  on_cpu(context, values, rounded, [&]<class T>(std::type_identity<T>) {
    cpu::adam<T>(context.pool(), step, values.values<T>(), gradients.values<T>(), first.values<T>(),
                 second.values<T>());
  });
}

void squared_norm(Context& context, const TensorView& values, const TensorSpan& result) {
  check_values(context, values);
  expects(result.elements() == 1, "result has {} elements, expected one", result.elements());
  check("result", result, result.shape(), Dtype::f64, context.device());
  if (on_gpu(context))
    return cuda::squared_norm(context, values.dtype(), values.raw(), values.elements(),
                              static_cast<double*>(result.raw()));
  cpu::with_real(values.dtype(), [&]<class T>(std::type_identity<T>) {
    result.values<double>()[0] = cpu::squared_norm<T>(context, values.values<T>());
  });
}

void scale(Context& context, double factor, const TensorSpan& values) {
  check_values(context, values);
  if (on_gpu(context))
    return cuda::scale(context.stream(), factor, values.dtype(), values.elements(), values.raw());
  cpu::with_real(values.dtype(), [&]<class T>(std::type_identity<T>) {
    cpu::scale<T>(context.pool(), factor, values.values<T>());
  });
}

void clamp(Context& context, double bound, const TensorSpan& values) {
  check_values(context, values);
  expects(bound >= 0.0, "bound is {}, expected 0 or more", bound);
  if (on_gpu(context))
    return cuda::clamp(context.stream(), bound, values.dtype(), values.elements(), values.raw());
  cpu::with_real(values.dtype(), [&]<class T>(std::type_identity<T>) {
    cpu::clamp<T>(context.pool(), bound, values.values<T>());
  });
}

}  // namespace packrnn::kernels

#include "packrnn/kernels/reduce.hpp"

#include <type_traits>

#include "packrnn/kernels/check.hpp"
#include "packrnn/kernels/cpu/reduce.hpp"
#include "packrnn/kernels/cpu/with_real.hpp"
#include "packrnn/kernels/cuda/reduce.hpp"
#include "packrnn/runtime/element.hpp"

namespace packrnn::kernels {

void reduce_sequences(Context& context, Reduction reduction, const TensorView& packed,
                      const PackedLayout& layout, double empty_value, const TensorSpan& target) {
  expects(packed.defined() && packed.shape().rank() >= 1, "packed is {}, expected [total, ...]",
          packed.defined() ? "a scalar" : "not defined");
  expects(is_floating(packed.dtype()), "packed has dtype {}, expected a floating dtype",
          packed.dtype());
  const Shape row = packed.shape().from(1);
  check("packed", packed, row.prepend(layout.total()), packed.dtype(), context.device());
  check("target", target, row.prepend(layout.batch()), packed.dtype(), context.device());
  if (target.elements() == 0) return;

  if (context.device().type == DeviceType::cuda)
    return cuda::reduce(context.stream(), reduction, layout.on(context), packed.dtype(),
                        packed.raw(), row.elements(), empty_value, target.raw());
  with_dtype(packed.dtype(), [&]<class T>(std::type_identity<T>) {
    if constexpr (!std::is_integral_v<T>)  // refused above
      cpu::reduce(context.pool(), reduction, packed.values<T>(), layout, row.elements(),
                  empty_value, target.values<T>());
  });
}

void reduce_sequences_backward(Context& context, Reduction reduction, const TensorView& packed,
                               const PackedLayout& layout, const TensorView& gradient,
                               const TensorSpan& target) {
  expects(target.defined() && target.shape().rank() >= 1, "target is {}, expected [total, ...]",
          target.defined() ? "a scalar" : "not defined");
  const Device device = context.device();
  check_computable("reduce_sequences_backward", target.dtype(), device);
  const Shape row = target.shape().from(1);
  check("target", target, row.prepend(layout.total()), target.dtype(), device);
  check("gradient", gradient, row.prepend(layout.batch()), target.dtype(), device);
  if (reduction == Reduction::max) check("packed", packed, target.shape(), target.dtype(), device);
  if (target.elements() == 0) return;
  if (device.type == DeviceType::cuda)
    return cuda::reduce_backward(context.stream(), reduction, layout.on(context), target.dtype(),
                                 packed.raw(), row.elements(), gradient.raw(), target.raw());
  cpu::with_real(target.dtype(), [&]<class T>(std::type_identity<T>) {
    cpu::reduce_backward(context.pool(), reduction,
                         reduction == Reduction::max ? packed.data<T>() : nullptr, layout,
                         row.elements(), gradient.data<T>(), target.data<T>());
  });
}

}  // namespace packrnn::kernels

#include "packrnn/kernels/reduce.hpp"

#include <type_traits>

#include "packrnn/kernels/check.hpp"
#include "packrnn/kernels/cpu/reduce.hpp"
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

}  // namespace packrnn::kernels

#include "packrnn/kernels/reduce.hpp"

#include <type_traits>

#include "packrnn/kernels/checks.hpp"
#include "packrnn/kernels/cpu/reduce.hpp"
#include "packrnn/runtime/element.hpp"

namespace packrnn::kernels {

void reduce_sequences(Context& context, Reduction reduction, const TensorView& packed,
                      const PackedLayout& layout, double empty_value, const TensorSpan& target) {
  expects_here(context, "packed", packed);
  expects_here(context, "target", target);
  expects(is_floating(packed.dtype()), "packed has dtype {}, expected a floating dtype",
          packed.dtype());
  expects_dtype("target", target, packed.dtype());
  expects_rank("packed", packed, 1);
  const Shape row = packed.shape().from(1);
  expects_shape("packed", packed, row.prepend(layout.total()));
  expects_shape("target", target, row.prepend(layout.batch()));
  if (target.elements() == 0) return;

  with_dtype(packed.dtype(), [&]<class T>(std::type_identity<T>) {
    if constexpr (!std::is_integral_v<T>)  // refused above
      cpu::reduce(context.pool(), reduction, packed.values<T>(), layout, row.elements(),
                  empty_value, target.values<T>());
  });
}

}  // namespace packrnn::kernels

#include "packrnn/kernels/scatter.hpp"

#include <limits>

#include "packrnn/kernels/check.hpp"
#include "packrnn/kernels/cpu/scatter.hpp"
#include "packrnn/kernels/cpu/with_real.hpp"
#include "packrnn/kernels/cuda/scatter.hpp"

namespace packrnn::kernels {

void scatter_add_rows(Context& context, const TensorView& rows, const TensorView& indices,
                      const TensorSpan& target, std::int64_t skip) {
  expects(target.defined() && target.shape().rank() >= 1, "target: shape {}, expected [R, ...]",
          target.shape());
  expects(indices.defined(), "indices are not defined");
  expects(rows.defined(), "rows are not defined");
  const Device device = context.device();
  check_computable("scatter_add_rows", target.dtype(), device);
  check_computable("scatter_add_rows", rows.dtype(), device);
  check("target", target, target.shape(), target.dtype(), device);
  Shape expected = target.shape().from(1);
  for (int d = indices.shape().rank() - 1; d >= 0; --d)
    expected = expected.prepend(indices.size(d));
  const bool widens = size_of(rows.dtype()) == 2 && target.dtype() == Dtype::f32;
  check("rows", rows, expected, widens ? rows.dtype() : target.dtype(), device);
  check_place("indices", indices, device);
  expects(indices.dtype() == Dtype::i32 || indices.dtype() == Dtype::i64,
          "indices have dtype {}, expected i32 or i64", indices.dtype());

  const std::int64_t width = target.shape().from(1).elements();
  if (device.type == DeviceType::cuda) {
    const std::int64_t most = std::numeric_limits<std::int32_t>::max();
    expects(indices.elements() < most && target.size(0) < most,
            "{} indices of {} rows, but a GPU sorts less than 2^31 of each", indices.elements(),
            target.size(0));
    return cuda::scatter_add(context, {.dtype = rows.dtype(),
                                       .target_dtype = target.dtype(),
                                       .total = indices.elements(),
                                       .count = target.size(0),
                                       .width = width,
                                       .rows = rows.raw(),
                                       .indices = indices.raw(),
                                       .wide = indices.dtype() == Dtype::i64,
                                       .skip = skip,
                                       .target = target.raw()});
  }
  const auto run = [&]<class Index>(std::span<const Index> values) {
    for (std::size_t i = 0; i < values.size(); ++i)
      expects(values[i] == skip || (values[i] >= 0 && values[i] < target.size(0)),
              "indices[{}] is {}, expected 0 to {}", i, values[i], target.size(0) - 1);
    cpu::with_real(target.dtype(), [&]<class T>(std::type_identity<T>) {
      cpu::scatter_add(context, rows.data<T>(), values, skip, width, target.size(0),
                       target.data<T>());
    });
  };
  if (indices.dtype() == Dtype::i32)
    run(indices.values<std::int32_t>());
  else
    run(indices.values<std::int64_t>());
}

}  // namespace packrnn::kernels

#include "packrnn/kernels/scatter.hpp"

#include "packrnn/kernels/check.hpp"
#include "packrnn/kernels/cpu/scatter.hpp"
#include "packrnn/kernels/cpu/with_real.hpp"

namespace packrnn::kernels {

void scatter_add_rows(Context& context, const TensorView& rows, const TensorView& indices,
                      const TensorSpan& target, std::int64_t skip) {
  expects(target.defined() && target.shape().rank() >= 1, "target: shape {}, expected [R, ...]",
          target.shape());
  expects(indices.defined(), "indices are not defined");
  const Device device = context.device();
  check_computable("scatter_add_rows", target.dtype(), device);
  check("target", target, target.shape(), target.dtype(), device);
  Shape expected = target.shape().from(1);
  for (int d = indices.shape().rank() - 1; d >= 0; --d)
    expected = expected.prepend(indices.size(d));
  check("rows", rows, expected, target.dtype(), device);
  check_place("indices", indices, device);
  expects(indices.dtype() == Dtype::i32 || indices.dtype() == Dtype::i64,
          "indices have dtype {}, expected i32 or i64", indices.dtype());
  if (device.type == DeviceType::cuda) throw Unsupported("scatter_add_rows: not on a GPU yet");

  const std::int64_t width = target.shape().from(1).elements();
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

#include "packrnn/kernels/dropout.hpp"

#include "packrnn/kernels/check.hpp"
#include "packrnn/kernels/cpu/dropout.hpp"
#include "packrnn/kernels/cuda/dropout.hpp"
#include "packrnn/runtime/philox.hpp"

namespace packrnn::kernels {
namespace {

std::uint32_t low(std::uint64_t value) { return static_cast<std::uint32_t>(value); }
std::uint32_t high(std::uint64_t value) { return static_cast<std::uint32_t>(value >> 32); }

}  // namespace

void dropout(Context& context, const PackedLayout& layout, const DropoutKey& key, double p,
             const TensorSpan& rows) {
  expects(p >= 0.0 && p <= 1.0, "p: {} is not a probability", p);
  expects(rows.defined() && rows.shape().rank() == 2, "rows: shape {}, expected [total, F]",
          rows.shape());
  const Device device = context.device();
  check_computable("dropout", rows.dtype(), device);
  check("rows", rows, {layout.total(), rows.size(1)}, rows.dtype(), device);
  expects(layout.steps() <= std::int64_t{1} << 32, "dropout: {} steps, at most 2^32 are legal",
          layout.steps());
  if (p == 0.0 || rows.elements() == 0) return;

  const PhiloxCounter stream =
      philox4x32_10({low(key.draw), high(key.draw), key.layer, 0}, {low(key.seed), high(key.seed)});
  const PhiloxKey row_key{stream[0], stream[1]};
  if (device.type == DeviceType::cuda)
    cuda::dropout(context.stream(), layout.on(context), row_key, p, rows.dtype(), rows.size(1),
                  rows.raw());
  else
    cpu::dropout(context, layout, row_key, p, rows);
}

}  // namespace packrnn::kernels

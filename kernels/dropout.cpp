#include "packrnn/kernels/dropout.hpp"

#include "packrnn/kernels/check.hpp"
#include "packrnn/kernels/cpu/dropout.hpp"

namespace packrnn::kernels {

void dropout(Context& context, const PackedLayout& layout, const DropoutKey& key, double p,
             const TensorSpan& rows) {
  expects(p >= 0.0 && p <= 1.0, "p: {} is not a probability", p);
  expects(rows.defined() && rows.shape().rank() == 2, "rows: shape {}, expected [total, F]",
          rows.shape());
  check_computable("dropout", rows.dtype());
  check("rows", rows, {layout.total(), rows.size(1)}, rows.dtype());
  expects(layout.steps() <= std::int64_t{1} << 32, "dropout: {} steps, at most 2^32 are legal",
          layout.steps());
  if (p > 0.0) cpu::dropout(context, layout, key, p, rows);
}

}  // namespace packrnn::kernels

#include "packrnn/kernels/layout.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "packrnn/kernels/check.hpp"
#include "packrnn/kernels/cuda/layout.hpp"
#include "packrnn/runtime/device_layout.hpp"

namespace packrnn::kernels {
namespace {

PackedLayoutPtr on_host(const TensorView& lengths, const LayoutCapacity& capacity,
                        std::int64_t rows) {
  LayoutOptions options{.enforce_sorted = capacity.enforce_sorted,
                        .padded_length = capacity.padded_length,
                        .sequence_ids = {}};
  if (capacity.sequence_ids.defined()) {
    const auto ids = capacity.sequence_ids.values<std::int64_t>();
    options.sequence_ids.assign(ids.begin(), ids.end());
  }
  PackedLayoutPtr layout = PackedLayout::make(lengths, std::move(options));
  expects(layout->total() <= rows, "lengths sum to {}, expected at most {}, the capacity in rows",
          layout->total(), rows);
  return layout;
}

}  // namespace

PackedLayoutPtr make_layout(Context& context, const TensorView& lengths,
                            const LayoutCapacity& capacity) {
  expects(lengths.defined() && lengths.shape().rank() == 1, "lengths: shape {}, expected [N]",
          lengths.shape());
  expects(lengths.dtype() == Dtype::i32 || lengths.dtype() == Dtype::i64,
          "lengths have dtype {}, expected i32 or i64", lengths.dtype());
  const std::int64_t batch = lengths.size(0), steps = capacity.padded_length;
  check("lengths", lengths, {batch}, lengths.dtype(), context.device());
  check_optional("sequence_ids", capacity.sequence_ids, {batch}, Dtype::i64, context.device());
  constexpr std::int64_t kMost = PackedLayout::kMaxExtent;
  expects(batch <= kMost, "lengths has {} entries, but at most {} are possible", batch, kMost);
  expects(steps >= 0 && steps <= kMost, "padded_length is {}, expected 0 to {}", steps, kMost);
  expects(capacity.rows >= -1, "rows is {}, expected -1 (N * T) or the capacity", capacity.rows);
  const std::int64_t rows =
      capacity.rows == -1 ? batch * steps : std::min(capacity.rows, batch * steps);
  if (context.device().type == DeviceType::cpu) return on_host(lengths, capacity, rows);

  Tensor memory = context.empty({DeviceLayout::words(batch, steps)}, Dtype::i64);
  const cuda::LayoutJob job{
      .lengths = lengths.raw(),
      .given_ids = static_cast<const std::int64_t*>(capacity.sequence_ids.raw()),
      .wide = lengths.dtype() == Dtype::i64,
      .enforce_sorted = capacity.enforce_sorted,
      .tables = DeviceLayout::in(memory.span().raw(), batch, steps, rows),
      .fault = context.fault()};
  Workspace::Scope scope(context.workspace());
  cuda::make_layout(context.stream(), job,
                    scope.take<std::uint32_t>(cuda::layout_scratch(job.tables.batch)).data());
  return PackedLayout::of_tables(context, std::move(memory), job.tables);
}

}  // namespace packrnn::kernels

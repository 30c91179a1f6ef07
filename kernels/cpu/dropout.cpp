#include "packrnn/kernels/cpu/dropout.hpp"

#include <algorithm>

namespace packrnn::kernels::cpu {
namespace {

std::uint32_t low(std::uint64_t value) { return static_cast<std::uint32_t>(value); }
std::uint32_t high(std::uint64_t value) { return static_cast<std::uint32_t>(value >> 32); }

template <class T>
void run(Context& context, const PackedLayout& layout, PhiloxKey key, double p,
         const TensorSpan& rows) {
  const std::int64_t width = rows.size(1);
  const T scale = p < 1.0 ? static_cast<T>(1.0 / (1.0 - p)) : T{0};
  T* data = rows.data<T>();

  const auto drop_row = [&](T* row, std::int64_t step, std::uint64_t id) {
    for (std::int64_t u = 0; u < width; u += 4) {
      const PhiloxCounter bits =
          philox4x32_10({low(static_cast<std::uint64_t>(u / 4)),
                         low(static_cast<std::uint64_t>(step)), low(id), high(id)},
                        key);
      for (std::int64_t i = 0; i < std::min<std::int64_t>(4, width - u); ++i)
        row[u + i] = uniform01(bits[static_cast<std::size_t>(i)]) < static_cast<float>(p)
                         ? T{0}
                         : row[u + i] * scale;
    }
  };
  context.pool().run([&](int worker) {
    const auto [begin, end] = split(layout.steps(), worker, context.threads());
    for (std::int64_t t = begin; t < end; ++t) {
      const auto step = static_cast<std::size_t>(t);
      for (std::int64_t k = 0; k < layout.batch_sizes()[step]; ++k) {
        const auto sequence =
            static_cast<std::size_t>(layout.sorted_indices()[static_cast<std::size_t>(k)]);
        drop_row(data + (layout.offsets()[step] + k) * width, t,
                 static_cast<std::uint64_t>(layout.sequence_ids()[sequence]));
      }
    }
  });
}

}  // namespace

void dropout(Context& context, const PackedLayout& layout, PhiloxKey key, double p,
             const TensorSpan& rows) {
  if (rows.dtype() == Dtype::f32)
    run<float>(context, layout, key, p, rows);
  else
    run<double>(context, layout, key, p, rows);
}

}  // namespace packrnn::kernels::cpu

#include "bench/verify.hpp"

#include <fmt/format.h>

#include <cstring>

namespace packrnn::bench {
namespace {

template <class T>
struct Rows {
  const PackedLayout& layout;
  std::span<const T> values;  // [total, width]
  std::size_t width;

  const T* at(std::int64_t sequence, std::int64_t step) const {
    return values.data() + static_cast<std::size_t>(layout.row(sequence, step)) * width;
  }
};

template <class T>
void expect_equal(const T* packed, const T* other, std::size_t width, std::int64_t sequence,
                  std::int64_t step, const char* how) {
  if (std::memcmp(packed, other, width * sizeof(T)) == 0) return;
  std::size_t unit = 0;
  while (std::memcmp(packed + unit, other + unit, sizeof(T)) == 0) ++unit;
  throw Mismatch(fmt::format("sequence {}, step {}, unit {}: {:.9g} packed, but {:.9g} {}",
                             sequence, step, unit, packed[unit], other[unit], how));
}

template <class T>
void verify_padded(Context& context, const Recurrent& layer, const Batch& batch,
                   const Rows<T>& rows) {
  const DenseOutput dense = layer.forward(context, batch.padded);
  const T* values = dense.output.values<T>().data();  // [T, N, width]
  const std::int64_t batch_size = rows.layout.batch();
  for (std::int64_t n = 0; n < batch_size; ++n)
    for (std::int64_t t = 0; t < rows.layout.lengths()[static_cast<std::size_t>(n)]; ++t)
      expect_equal(rows.at(n, t),
                   values + static_cast<std::size_t>(t * batch_size + n) * rows.width, rows.width,
                   n, t, "padded");
}

template <class T>
void verify_alone(Context& context, const Recurrent& layer, const Batch& batch,
                  const Rows<T>& rows) {
  const std::vector<Tensor> sequences = unpack_sequence(context, batch.packed);
  const auto sorted = rows.layout.sorted_indices();
  for (const std::size_t place : {std::size_t{0}, sorted.size() / 2, sorted.size() - 1}) {
    const std::int64_t n = sorted[place];
    const Tensor& sequence = sequences[static_cast<std::size_t>(n)];
    if (sequence.size(0) == 0) continue;
    const DenseOutput alone = layer.forward(context, sequence.view());
    const T* values = alone.output.values<T>().data();  // [length, width]
    for (std::int64_t t = 0; t < sequence.size(0); ++t)
      expect_equal(rows.at(n, t), values + static_cast<std::size_t>(t) * rows.width, rows.width, n,
                   t, "alone");
  }
}

template <class T>
void verify_as(Context& context, const Recurrent& layer, const Workload& workload) {
  for (const Batch& batch : workload.batches) {
    const PackedOutput packed = layer.forward(context, batch.packed);
    const Rows<T> rows{packed.output.layout(), packed.output.data().template values<T>(),
                       static_cast<std::size_t>(layer.directions() * layer.state_size())};
    if (layer.directions() == 1)
      verify_padded(context, layer, batch, rows);
    else
      verify_alone(context, layer, batch, rows);
  }
}

}  // namespace

void verify(Context& context, const Recurrent& layer, const Workload& workload) {
  if (layer.config().dtype == Dtype::f64)
    verify_as<double>(context, layer, workload);
  else
    verify_as<float>(context, layer, workload);
}

}  // namespace packrnn::bench

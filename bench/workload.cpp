#include "bench/workload.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <packrnn/runtime/error.hpp>
#include <packrnn/runtime/random.hpp>
#include <utility>

namespace packrnn::bench {
namespace {

/// Random values, then padding of every sequence by way of the packed form.
Batch random_batch(Context& context, const BatchLengths& lengths, std::int64_t features,
                   Generator& generator) {
  PackedLayoutPtr layout = PackedLayout::make(lengths);
  if (layout->total() == 0)
    throw InvalidArgument(fmt::format("a batch of {} empty sequences has no padded form to compare",
                                      layout->batch()));
  Tensor values = Tensor::empty({layout->total(), features}, Dtype::f32);
  fill_uniform(generator, values, -1.0, 1.0);
  Batch batch;
  batch.packed = PackedSequence(std::move(values), std::move(layout));
  batch.padded = pad_packed_sequence(context, batch.packed);
  return batch;
}

Batch batch_of(Context& context, const std::vector<const Recording*>& recordings) {
  std::vector<TensorView> sequences;
  for (const Recording* recording : recordings)
    sequences.emplace_back(recording->frames.data(),
                           Shape{recording->length, JapaneseVowels::kFeatures});
  return {pad_sequence(context, sequences), pack_sequence(context, sequences)};
}

/// Fisher and Yates, with random numbers that are the same on every machine and library.
template <class T>
void shuffle(std::vector<T>& values, std::uint64_t seed) {
  const PhiloxKey key{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)};
  for (std::size_t i = values.size(); i > 1; --i) {
    const PhiloxCounter bits = philox4x32_10({static_cast<std::uint32_t>(i), 0, 0, 1}, key);
    const std::uint64_t below_i = std::uint64_t{bits[0]} * i >> 32;
    std::swap(values[i - 1], values[below_i]);
  }
}

}  // namespace

Workload make_workload(Context& context, const Mix& mix, std::int64_t batch, std::int64_t count,
                       std::int64_t features, std::uint64_t seed) {
  Workload workload{mix.name, features > 0 ? features : mix.features, {}};
  Generator generator(seed);
  for (const BatchLengths& lengths : draw(mix, batch, count, seed))
    workload.batches.push_back(random_batch(context, lengths, workload.features, generator));
  return workload;
}

Workload make_workload(Context& context, const JapaneseVowels& data, std::int64_t batch,
                       std::uint64_t seed) {
  std::vector<const Recording*> order;
  for (const auto* set : {&data.train, &data.test})
    for (const Recording& recording : *set) order.push_back(&recording);
  shuffle(order, seed);

  Workload workload{"JapaneseVowels", JapaneseVowels::kFeatures, {}};
  for (auto begin = order.begin(); begin != order.end();) {
    const auto end = begin + std::min<std::ptrdiff_t>(batch, order.end() - begin);
    workload.batches.push_back(batch_of(context, {begin, end}));
    begin = end;
  }
  return workload;
}

Size size_of(const Workload& workload) {
  Size size;
  for (const Batch& batch : workload.batches) {
    const PackedLayout& layout = batch.packed.layout();
    ++size.batches;
    size.sequences = std::max(size.sequences, layout.batch());
    size.steps = std::max(size.steps, layout.steps());
    size.tokens += layout.total();
    size.volume += layout.batch() * layout.steps();
  }
  return size;
}

}  // namespace packrnn::bench

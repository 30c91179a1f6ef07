#include "bench/workload.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <packrnn/runtime/error.hpp>
#include <packrnn/runtime/random.hpp>
#include <span>
#include <utility>

namespace packrnn::bench {
namespace {

/// Random values, then padding of every sequence by way of the packed form.
Batch random_batch(Context& context, const BatchLengths& lengths, std::int64_t features,
                   Dtype dtype, Generator& generator) {
  PackedLayoutPtr layout = PackedLayout::make(lengths);
  if (layout->total() == 0)
    throw InvalidArgument(fmt::format("a batch of {} empty sequences has no padded form to compare",
                                      layout->batch()));
  Tensor values = Tensor::empty({layout->total(), features}, dtype);
  fill_uniform(generator, values, -1.0, 1.0);
  Batch batch;
  batch.packed = PackedSequence(std::move(values), std::move(layout));
  batch.padded = pad_packed_sequence(context, batch.packed);
  return batch;
}

Batch batch_of(Context& context, const std::vector<const Recording*>& recordings, Dtype dtype) {
  std::vector<Tensor> converted;
  std::vector<TensorView> sequences;
  for (const Recording* recording : recordings) {
    const Shape shape{recording->length, JapaneseVowels::kFeatures};
    if (dtype == Dtype::f64)
      converted.push_back(Tensor::from(
          std::vector<double>(recording->frames.begin(), recording->frames.end()), shape));
    sequences.push_back(dtype == Dtype::f64 ? converted.back().view()
                                            : TensorView(recording->frames.data(), shape));
  }
  return {pad_sequence(context, sequences), pack_sequence(context, sequences)};
}

/// One sequence of a batch.
struct Place {
  const Batch* batch;
  std::int64_t index, length;
};

/// [T, N, I] of sequences sorted from the longest.
Tensor padded_batch(std::span<const Place> places) {
  const TensorView& any = places[0].batch->padded;
  const std::int64_t steps = places[0].length, count = std::ssize(places), features = any.size(2);
  Tensor padded = Tensor::zeros({steps, count, features}, any.dtype());
  const std::size_t bytes = static_cast<std::size_t>(features) * size_of(any.dtype());
  auto* to = static_cast<std::byte*>(padded.span().raw());
  for (std::int64_t t = 0; t < steps; ++t)
    for (const Place& place : places) {
      const Tensor& from = place.batch->padded;
      if (t < place.length)
        std::memcpy(to,
                    static_cast<const std::byte*>(from.view().raw()) +
                        static_cast<std::size_t>(t * from.size(1) + place.index) * bytes,
                    bytes);
      to += bytes;
    }
  return padded;
}

std::vector<Tensor> bucketed(const std::vector<Batch>& batches, std::int64_t batch) {
  if (batches.size() < 2) return {};
  std::vector<Place> places;
  for (const Batch& b : batches)
    for (std::int64_t n = 0; n < b.packed.layout().batch(); ++n)
      if (const std::int64_t length = b.packed.lengths()[static_cast<std::size_t>(n)]; length > 0)
        places.push_back({&b, n, length});
  std::ranges::stable_sort(places, std::greater<>(), &Place::length);
  std::vector<Tensor> all;
  for (std::size_t first = 0; first < places.size(); first += static_cast<std::size_t>(batch))
    all.push_back(padded_batch(std::span(places).subspan(
        first, std::min(static_cast<std::size_t>(batch), places.size() - first))));
  return all;
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

Workload make_workload(Context& context, const Mix& mix, std::int64_t count, std::int64_t features,
                       const BatchOptions& options) {
  Workload workload{mix.name, features > 0 ? features : mix.features, {}, {}};
  Generator generator(options.seed);
  for (const BatchLengths& lengths : draw(mix, options.batch, count, options.seed))
    workload.batches.push_back(
        random_batch(context, lengths, workload.features, options.dtype, generator));
  workload.bucketed = bucketed(workload.batches, options.batch);
  return workload;
}

Workload make_workload(Context& context, const JapaneseVowels& data, const BatchOptions& options) {
  std::vector<const Recording*> order;
  for (const auto* set : {&data.train, &data.test})
    for (const Recording& recording : *set) order.push_back(&recording);
  shuffle(order, options.seed);

  Workload workload{"JapaneseVowels", JapaneseVowels::kFeatures, {}, {}};
  for (auto begin = order.begin(); begin != order.end();) {
    const auto end = begin + std::min<std::ptrdiff_t>(options.batch, order.end() - begin);
    workload.batches.push_back(batch_of(context, {begin, end}, options.dtype));
    begin = end;
  }
  workload.bucketed = bucketed(workload.batches, options.batch);
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
  for (const Tensor& padded : workload.bucketed)
    size.bucketed_volume += padded.size(0) * padded.size(1);
  return size;
}

}  // namespace packrnn::bench

#include "packrnn/runtime/packed_layout.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <list>
#include <mutex>
#include <new>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "packrnn/runtime/context.hpp"
#include "packrnn/runtime/device_layout.hpp"
#include "packrnn/runtime/expects.hpp"
#include "packrnn/runtime/gpu.hpp"

namespace packrnn {
namespace {

using Indices = std::vector<std::int64_t>;

std::size_t index(std::int64_t i) noexcept { return static_cast<std::size_t>(i); }

void check_not_negative(std::span<const std::int64_t> lengths) {
  for (std::size_t n = 0; n < lengths.size(); ++n)
    expects(lengths[n] >= 0, "lengths[{}] is {}, but must not be negative", n, lengths[n]);
}

template <class T>
Indices from_floating(std::span<const T> values) {
  Indices lengths(values.size());
  for (std::size_t n = 0; n < values.size(); ++n) {
    const auto value = static_cast<double>(values[n]);
    // Beyond 2^53 doubles are not consecutive: such a "length" is an accident.
    expects(std::trunc(value) == value && std::abs(value) <= 0x1p53,
            "lengths[{}] is {}, but must be a whole number up to 2^53", n, value);
    lengths[n] = static_cast<std::int64_t>(value);
  }
  return lengths;
}

Indices read_lengths(const TensorView& values) {
  expects(values.defined(), "lengths is not defined");
  expects(values.shape().rank() == 1, "lengths has shape {}, but must be [N]", values.shape());
  expects(
      values.device().type == DeviceType::cpu,
      "lengths is on {}, but must be on the host; kernels::make_layout() takes lengths on a device",
      values.device());
  switch (values.dtype()) {
    case Dtype::i64: {
      const auto v = values.values<std::int64_t>();
      return {v.begin(), v.end()};
    }
    case Dtype::i32: {
      const auto v = values.values<std::int32_t>();
      return {v.begin(), v.end()};
    }
    case Dtype::f32:
      return from_floating(values.values<float>());
    case Dtype::f64:
      return from_floating(values.values<double>());
    case Dtype::f16:
    case Dtype::bf16:
      break;
  }
  throw InvalidArgument(
      fmt::format("lengths is {}, but must be i64, i32, f32 or f64", values.dtype()));
}

/// The longest length, after every check that needs no memory.
std::int64_t check_lengths(std::span<const std::int64_t> lengths, const LayoutOptions& options) {
  const auto batch = static_cast<std::int64_t>(lengths.size());
  expects(batch <= PackedLayout::kMaxExtent, "{} lengths were given, but at most {} are possible",
          batch, PackedLayout::kMaxExtent);
  const auto longest_at = std::max_element(lengths.begin(), lengths.end());
  const std::int64_t longest = batch == 0 ? 0 : *longest_at;
  const auto where = longest_at - lengths.begin();
  if (options.enforce_sorted) {
    const auto rise = std::is_sorted_until(lengths.begin(), lengths.end(), std::greater<>{});
    const auto n = rise - lengths.begin();
    expects(
        rise == lengths.end(),
        "lengths[{}] is {} and lengths[{}] is {}, but enforce_sorted asks for decreasing order; "
        "without it, any order is accepted",
        n - 1, n > 0 ? lengths[index(n - 1)] : 0, n, rise == lengths.end() ? 0 : *rise);
  }
  expects(options.padded_length >= -1, "padded_length is {}, but must be -1 or not negative",
          options.padded_length);
  expects(options.padded_length == -1 || options.padded_length >= longest,
          "padded_length is {}, but lengths[{}] is {}: it must be at least the longest length",
          options.padded_length, where, longest);
  expects(longest <= PackedLayout::kMaxExtent,
          "lengths[{}] is {}, but at most {} steps are possible", where, longest,
          PackedLayout::kMaxExtent);
  const auto ids = options.sequence_ids.size();
  expects(ids == 0 || ids == lengths.size(), "sequence_ids has {} entries for {} sequences", ids,
          lengths.size());
  return longest;
}

/// Tables that DeviceLayout::in() placed in host memory; they are read-only for everybody else.
template <class T>
void fill_table(const T* table, std::span<const std::int64_t> values) {
  std::ranges::transform(values, const_cast<T*>(table),
                         [](std::int64_t value) { return static_cast<T>(value); });
}

Indices iota(std::int64_t count) {
  Indices indices(index(count));
  std::iota(indices.begin(), indices.end(), 0);
  return indices;
}

/// The stable order by decreasing length.
Indices order_of(std::span<const std::int64_t> lengths, std::int64_t longest) {
  const auto batch = static_cast<std::int64_t>(lengths.size());
  if (std::is_sorted(lengths.begin(), lengths.end(), std::greater<>{})) return iota(batch);
  if (longest > 16 * batch) {  // counters would cost more memory traffic than comparisons
    Indices order = iota(batch);
    std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
      return lengths[index(a)] > lengths[index(b)];
    });
    return order;
  }
  Indices next(index(longest) + 1);  // place of the next sequence of each length
  for (const std::int64_t length : lengths) ++next[index(length)];
  std::int64_t place = 0;
  for (std::int64_t length = longest; length >= 0; --length)
    place += std::exchange(next[index(length)], place);
  Indices order(lengths.size());
  for (std::int64_t n = 0; n < batch; ++n) order[index(next[index(lengths[index(n)])]++)] = n;
  return order;
}

Indices inverse_of(const Indices& order) {
  Indices inverse(order.size());
  for (std::size_t place = 0; place < order.size(); ++place)
    inverse[index(order[place])] = static_cast<std::int64_t>(place);
  return inverse;
}

Indices offsets_of(std::span<const std::int64_t> batch_sizes) {
  Indices offsets(batch_sizes.size() + 1);
  std::partial_sum(batch_sizes.begin(), batch_sizes.end(), offsets.begin() + 1);
  return offsets;
}

bool is_identity(const Indices& order) {
  return std::is_sorted(order.begin(), order.end());  // of a permutation
}

void check_batch_sizes(std::span<const std::int64_t> batch_sizes, std::int64_t rows) {
  const auto steps = static_cast<std::int64_t>(batch_sizes.size());
  expects(steps > 0, "batch_sizes is empty, but must have one entry per step");
  expects(steps <= PackedLayout::kMaxExtent,
          "batch_sizes has {} entries, but at most {} steps are possible", steps,
          PackedLayout::kMaxExtent);
  std::int64_t sum = 0;
  for (std::int64_t t = 0; t < steps; ++t) {
    const std::int64_t size = batch_sizes[index(t)];
    expects(size >= 1, "batch_sizes[{}] is {}, but must be at least 1", t, size);
    expects(size <= PackedLayout::kMaxExtent,
            "batch_sizes[{}] is {}, but at most {} sequences are possible", t, size,
            PackedLayout::kMaxExtent);
    expects(t == 0 || size <= batch_sizes[index(std::max<std::int64_t>(t, 1) - 1)],
            "batch_sizes[{}] is {}, more than {} at the step before; batch_sizes must not grow", t,
            size, batch_sizes[index(std::max<std::int64_t>(t, 1) - 1)]);
    sum += size;  // cannot overflow: at most kMaxExtent terms of at most kMaxExtent
  }
  expects(sum == rows, "batch_sizes add up to {}, but there are {} packed rows", sum, rows);
}

void check_permutation(std::span<const std::int64_t> order, std::int64_t batch) {
  expects(static_cast<std::int64_t>(order.size()) == batch,
          "sorted_indices has {} entries for {} sequences", order.size(), batch);
  std::vector<bool> seen(order.size());
  for (std::size_t place = 0; place < order.size(); ++place) {
    const std::int64_t n = order[place];
    expects(n >= 0 && n < batch, "sorted_indices[{}] is {}, but must be 0 to {}", place, n,
            batch - 1);
    expects(!seen[index(n)], "sorted_indices[{}] is {}, which stands there twice", place, n);
    seen[index(n)] = true;
  }
}

/// Runs `make`, whose only failure is a lack of memory, and says so in our own terms.
template <class Make>
PackedLayoutPtr with_memory(std::int64_t batch, std::int64_t steps, Make make) {
  static_assert(sizeof(std::size_t) == 8, "kMaxExtent entries must be countable in bytes");
  try {
    return make();
  } catch (const std::bad_alloc&) {
    throw OutOfMemory(
        fmt::format("out of memory: cannot describe {} sequences of up to {} steps ({:.1f} MiB)",
                    batch, steps, static_cast<double>(8 * (4 * batch + 2 * steps)) / 0x1p20));
  }
}

}  // namespace

Lengths::Lengths(std::initializer_list<std::int64_t> values)
    : Lengths(std::span<const std::int64_t>(values.begin(), values.size())) {}
Lengths::Lengths(std::span<const std::int64_t> values)
    : Lengths(Indices(values.begin(), values.end())) {}
Lengths::Lengths(const std::vector<int>& values) : Lengths(Indices(values.begin(), values.end())) {}
Lengths::Lengths(const TensorView& values) : Lengths(read_lengths(values)) {}
Lengths::Lengths(std::vector<std::int64_t> values) : values_(std::move(values)) {
  check_not_negative(values_);
}

/// The tables in the memory of one context's device.
struct PackedLayout::OnDevice {
  gpu::Stream stream = nullptr;  // stays this one's as long as `memory` lives
  bool captured = false;         // uploaded by launches of a graph, so of use only in its capture
  Tensor memory;
  DeviceLayout tables;
};

struct PackedLayout::Devices {
  std::mutex mutex;
  std::list<OnDevice> all;  // does not move what callers refer to
};

PackedLayout::PackedLayout() : devices_(std::make_unique<Devices>()) {}
PackedLayout::~PackedLayout() = default;

void PackedLayout::throw_unknown(const char* what) {
  throw Unsupported(
      fmt::format("the {} of this layout were asked for, but they are on the device only: the "
                  "layout was made from lengths there, and the host would have to wait for them",
                  what));
}

void PackedLayout::set_sizes() {
  batch_ = static_cast<std::int64_t>(lengths_.size());
  steps_ = static_cast<std::int64_t>(batch_sizes_.size());
  total_ = offsets_.back();
}

const DeviceLayout& PackedLayout::on(Context& context) const {
  expects(context.device().type == DeviceType::cuda,
          "tables on a device were asked of a context on {}", context.device());
  gpu::Stream stream = context.stream();
  const std::lock_guard lock(devices_->mutex);
  for (const OnDevice& one : devices_->all)
    if (one.stream == stream && !one.captured) return one.tables;
  expects(known_, "the layout was made from lengths on another context's device, but is used on {}",
          context.device());

  Tensor host = Tensor::empty({DeviceLayout::words(batch_, steps_)}, Dtype::i64);
  const DeviceLayout tables = DeviceLayout::in(host.span().raw(), batch_, steps_, total_);
  fill_table(tables.offsets, offsets_);
  fill_table(tables.sequence_ids, sequence_ids_);
  std::ranges::transform(
      sorted_indices_, const_cast<std::int32_t*>(tables.lengths),
      [&](std::int64_t n) { return static_cast<std::int32_t>(lengths_[index(n)]); });
  fill_table(tables.sorted_indices, sorted_indices_);
  fill_table(tables.unsorted_indices, unsorted_indices_);
  fill_table(tables.batch_sizes, batch_sizes_);
  fill_table(tables.steps, {&steps_, 1});

  OnDevice fresh{stream, gpu::capturing(stream), context.to_device(host), {}};
  fresh.tables = DeviceLayout::in(fresh.memory.span().raw(), batch_, steps_, total_);
  return devices_->all.emplace_back(std::move(fresh)).tables;
}

PackedLayoutPtr PackedLayout::of_tables(const Context& context, Tensor memory,
                                        const DeviceLayout& tables) {
  std::shared_ptr<PackedLayout> layout(new PackedLayout);
  layout->known_ = layout->sorted_ = false;
  layout->batch_ = tables.batch;
  layout->steps_ = layout->padded_length_ = tables.steps_capacity;
  layout->total_ = tables.rows_capacity;
  layout->devices_->all.push_back({context.stream(), false, std::move(memory), tables});
  return layout;
}

PackedLayoutPtr PackedLayout::make(const Lengths& lengths, LayoutOptions options) {
  const std::span<const std::int64_t> given = lengths.values();
  const std::int64_t longest = check_lengths(given, options);
  const std::int64_t batch = lengths.count();
  return with_memory(batch, longest, [&] {
    std::shared_ptr<PackedLayout> layout(new PackedLayout);
    layout->lengths_.assign(given.begin(), given.end());
    layout->sorted_indices_ = order_of(given, longest);
    layout->unsorted_indices_ = inverse_of(layout->sorted_indices_);
    layout->sorted_ = is_identity(layout->sorted_indices_);
    layout->batch_sizes_.resize(index(longest));
    std::int64_t live = batch;
    for (std::int64_t step = 0; step < longest; ++step) {
      while (given[index(layout->sorted_indices_[index(live - 1)])] <= step) --live;
      layout->batch_sizes_[index(step)] = live;
    }
    layout->offsets_ = offsets_of(layout->batch_sizes_);
    layout->set_sizes();
    layout->padded_length_ = options.padded_length == -1 ? longest : options.padded_length;
    layout->sequence_ids_ =
        options.sequence_ids.empty() ? iota(batch) : std::move(options.sequence_ids);
    return layout;
  });
}

PackedLayoutPtr PackedLayout::from_batch_sizes(std::span<const std::int64_t> batch_sizes,
                                               std::int64_t rows,
                                               std::span<const std::int64_t> sorted_indices) {
  check_batch_sizes(batch_sizes, rows);
  const auto steps = static_cast<std::int64_t>(batch_sizes.size());
  const std::int64_t batch = batch_sizes.front();
  return with_memory(batch, steps, [&] {
    std::shared_ptr<PackedLayout> layout(new PackedLayout);
    if (sorted_indices.empty()) {
      layout->sorted_indices_ = iota(batch);
    } else {
      check_permutation(sorted_indices, batch);
      layout->sorted_indices_.assign(sorted_indices.begin(), sorted_indices.end());
    }
    layout->unsorted_indices_ = inverse_of(layout->sorted_indices_);
    layout->sorted_ = is_identity(layout->sorted_indices_);
    layout->batch_sizes_.assign(batch_sizes.begin(), batch_sizes.end());
    layout->offsets_ = offsets_of(batch_sizes);
    layout->lengths_.resize(index(batch));
    std::int64_t length = steps;
    for (std::int64_t place = 0; place < batch; ++place) {
      while (batch_sizes[index(length - 1)] <= place) --length;
      layout->lengths_[index(layout->sorted_indices_[index(place)])] = length;
    }
    layout->set_sizes();
    layout->padded_length_ = steps;
    layout->sequence_ids_ = iota(batch);
    return layout;
  });
}

}  // namespace packrnn

#include "packrnn/layers/packed_sequence.hpp"

#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "packrnn/runtime/device_layout.hpp"
#include "packrnn/runtime/expects.hpp"

namespace packrnn {
namespace {

/// What the device knows of a layout, as a layout of the host.
PackedLayoutPtr known_layout(Context& context, const PackedLayout& layout) {
  const DeviceLayout& tables = layout.on(context);
  const Device device = context.device();
  const auto fetch = [&](const auto* table) {
    using T = std::remove_cvref_t<decltype(*table)>;
    const Tensor copy = context.to_host(TensorView(table, {layout.batch()}, kDtypeOf<T>, device));
    const std::span<const T> values = std::as_const(copy).values<T>();
    return std::vector<std::int64_t>(values.begin(), values.end());
  };
  const std::vector<std::int64_t> sorted = fetch(tables.lengths);
  const std::vector<std::int64_t> places = fetch(tables.unsorted_indices);
  std::vector<std::int64_t> lengths;
  lengths.reserve(places.size());
  for (const std::int64_t place : places)
    lengths.push_back(sorted[static_cast<std::size_t>(place)]);
  return PackedLayout::make(std::move(lengths), {.padded_length = layout.padded_length(),
                                                 .sequence_ids = fetch(tables.sequence_ids)});
}

}  // namespace

PackedSequence::PackedSequence(Tensor data, PackedLayoutPtr layout) {
  expects(layout != nullptr, "layout is null");
  expects(data.defined(), "data is not defined");
  expects(data.shape().rank() >= 1 && data.size(0) == layout->total(),
          "data has shape {}, expected {} packed rows", data.shape(), layout->total());
  data_ = std::move(data);
  layout_ = std::move(layout);
}

PackedSequence to_device(Context& context, const PackedSequence& packed) {
  expects(packed.defined(), "packed is not defined");
  return {context.to_device(packed.data()), packed.layout_ptr()};
}

PackedSequence to_host(Context& context, const PackedSequence& packed) {
  expects(packed.defined(), "packed is not defined");
  if (packed.layout().known()) return {context.to_host(packed.data()), packed.layout_ptr()};
  PackedLayoutPtr layout = known_layout(context, packed.layout());
  Tensor data = context.to_host(packed.data().rows(0, layout->total()));
  return {std::move(data), std::move(layout)};
}

Tensor PackedSequence::take_data() && {
  layout_.reset();
  return std::exchange(data_, Tensor{});
}

}  // namespace packrnn

// The tables of a PackedLayout in a device's memory, as kernels read them; private.
#pragma once

#include <cstdint>

namespace packrnn {

/// Plain pointers, passed to kernels by value. All of it is in device memory except the capacities,
/// which are what the host knows: sizes of the tables and bounds of everything in them. When the
/// lengths came from the host, the capacities are exact.
struct DeviceLayout {
  const std::int32_t* lengths = nullptr;           // [batch], sorted order, decreasing
  const std::int32_t* batch_sizes = nullptr;       // [steps_capacity], 0 from the longest length on
  const std::int64_t* offsets = nullptr;           // [steps_capacity + 1], then all the same
  const std::int32_t* sorted_indices = nullptr;    // [batch]: caller's index of a sorted sequence
  const std::int32_t* unsorted_indices = nullptr;  // [batch]: its inverse
  const std::int64_t* sequence_ids = nullptr;      // [batch], caller's order
  const std::int32_t* steps = nullptr;             // [1]: the longest length
  std::int32_t batch = 0;
  std::int32_t steps_capacity = 0;
  std::int64_t rows_capacity = 0;

  /// All tables one after the other in `memory`, aligned to 8 bytes and of words() * 8 bytes.
  static DeviceLayout in(void* memory, std::int64_t batch, std::int64_t steps_capacity,
                         std::int64_t rows_capacity) noexcept {
    DeviceLayout layout;
    layout.batch = static_cast<std::int32_t>(batch);
    layout.steps_capacity = static_cast<std::int32_t>(steps_capacity);
    layout.rows_capacity = rows_capacity;
    layout.offsets = static_cast<std::int64_t*>(memory);
    layout.sequence_ids = layout.offsets + steps_capacity + 1;
    layout.lengths = reinterpret_cast<const std::int32_t*>(layout.sequence_ids + batch);
    layout.sorted_indices = layout.lengths + batch;
    layout.unsorted_indices = layout.sorted_indices + batch;
    layout.batch_sizes = layout.unsorted_indices + batch;
    layout.steps = layout.batch_sizes + steps_capacity;
    return layout;
  }
  static std::int64_t words(std::int64_t batch, std::int64_t steps_capacity) noexcept {
    return (steps_capacity + 1 + batch) + (3 * batch + steps_capacity + 1 + 1) / 2;
  }
};

}  // namespace packrnn

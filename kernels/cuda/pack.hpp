// GPU bodies of kernels/pack.hpp: arguments are checked, sizes and strides are bytes, pointers are
// device memory unless said otherwise. Nothing waits or allocates. Private.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "packrnn/runtime/device_fault.hpp"
#include "packrnn/runtime/device_layout.hpp"
#include "packrnn/runtime/gpu.hpp"

namespace packrnn::kernels::cuda {

/// N sequences in memory: element t of sequence n is at first(n) + t * step.
struct Sequences {
  std::byte* const* table = nullptr;  // [N] first(n); null: base + n * stride
  std::byte* base = nullptr;
  std::int64_t stride = 0;
  std::int64_t step = 0;
};

/// Order of the cells of a padded batch.
struct Cells {
  std::int64_t steps = 0, batch = 0;
  bool batch_first = false;
};

/// What rows have in common: their size and what fills those that come from nowhere.
struct Row {
  std::int64_t bytes = 0;
  /// Largest power of two, 2 to 16, that divides every address and size of the call.
  std::int64_t vector = 0;
  /// The fill value, repeated.
  alignas(16) std::array<std::byte, 16> fill{};
};

/// Rows past the total of a layout made on the device become zero.
void pack_rows(gpu::Stream stream, const DeviceLayout& layout, const Sequences& source,
               const Row& row, void* packed);
void unpack_rows(gpu::Stream stream, const DeviceLayout& layout, const void* packed, const Row& row,
                 const Sequences& target);
void unpack_cells(gpu::Stream stream, const DeviceLayout& layout, const void* packed,
                  const Row& row, const Cells& cells, void* padded);
/// lengths [N] of the sequences.
void pad_cells(gpu::Stream stream, const Sequences& source, const std::int64_t* lengths,
               const Row& row, const Cells& cells, void* padded);

/// Indices as i64 (wide) or i32. Index -1 fills when `absent`; others outside 0 .. rows - 1 give a
/// row of zeros and a fault.
void gather_rows(gpu::Stream stream, const void* source, std::int64_t rows, const void* indices,
                 bool wide, std::int64_t count, bool absent, const Row& row, void* target,
                 DeviceFault* fault);
/// The first or last row of each sequence, in the caller's order; fills for empty ones.
void pick_rows(gpu::Stream stream, const DeviceLayout& layout, const void* packed, bool last,
               const Row& row, void* target);
/// The reverse: zeros elsewhere, rows past the total included.
void put_rows(gpu::Stream stream, const DeviceLayout& layout, const void* rows, bool last,
              const Row& row, void* packed);
/// Rows that lie one stride apart to rows that lie another apart.
void spread_rows(gpu::Stream stream, const void* source, std::int64_t source_stride,
                 std::int64_t rows, const Row& row, void* target, std::int64_t target_stride);
/// [A, B, row] to [B, A, row].
void swap_axes(gpu::Stream stream, const void* source, std::int64_t a, std::int64_t b,
               const Row& row, void* target);
/// `count` rows of the fill value.
void fill_rows(gpu::Stream stream, std::int64_t count, const Row& row, void* target);

}  // namespace packrnn::kernels::cuda

// Packed layouts from lengths that live on the device; private. See kernels/layout.hpp.
#pragma once

#include <cstdint>

#include "packrnn/runtime/device_fault.hpp"
#include "packrnn/runtime/device_layout.hpp"
#include "packrnn/runtime/gpu.hpp"

namespace packrnn::kernels::cuda {

/// All pointers are device memory; the tables' memory is written, its capacities are set.
struct LayoutJob {
  const void* lengths = nullptr;            // [batch] i32, or i64 when `wide`
  const std::int64_t* given_ids = nullptr;  // [batch]; null: 0 .. batch - 1
  bool wide = false;
  bool enforce_sorted = false;
  DeviceLayout tables;
  DeviceFault* fault = nullptr;
};

/// Up to this many sequences each one compares itself to all others; beyond, they are sorted.
inline constexpr std::int32_t kRankedBatch = 1 << 14;

/// Elements of scratch memory (u32) that make_layout() needs for such a batch.
std::int64_t layout_scratch(std::int32_t batch, std::int32_t ranked = kRankedBatch);

/// Fills all tables. Bad lengths are clamped to 0 .. steps_capacity and reported; when their sum
/// exceeds the rows_capacity, all sequences count as empty. `ranked` is for tests.
void make_layout(gpu::Stream stream, const LayoutJob& job, std::uint32_t* scratch,
                 std::int32_t ranked = kRankedBatch);

}  // namespace packrnn::kernels::cuda

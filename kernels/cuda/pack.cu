// Every way of moving whole rows is one kernel with another map, which says where row i of the loop
// comes from and goes to. Bound by memory: each byte is read once and written once, in vectors of
// up to 16 bytes, four of them under way per thread where rows are long.
//
// A row is moved by a team of neighbouring threads, 1 to 32 of them, as many as it has vectors.
// Teams walk rows in strides of the grid, in the order in which the written side lies in memory.
#include <cstring>

#include "packrnn/kernels/cuda/fault.cuh"
#include "packrnn/kernels/cuda/launch.cuh"
#include "packrnn/kernels/cuda/pack.hpp"
#include "packrnn/kernels/cuda/rows.cuh"

namespace packrnn::kernels::cuda {
namespace {

template <int kBytes>
struct alignas(kBytes) Words {
  std::uint32_t word[kBytes / 4];
};
template <>
struct alignas(2) Words<2> {
  std::uint16_t word[1];
};

enum class From { memory, fill, zero };

struct Move {
  From kind = From::memory;
  const std::byte* from = nullptr;
  std::byte* to = nullptr;  // null: nothing to do
};

__device__ std::byte* element(const Sequences& sequences, std::int64_t n, std::int64_t t) {
  std::byte* const first =
      sequences.table != nullptr ? sequences.table[n] : sequences.base + n * sequences.stride;
  return first + t * sequences.step;
}

struct PackMap {
  DeviceLayout layout;
  Sequences source;
  std::byte* packed;
  std::int64_t bytes;
  __device__ Move operator()(std::int64_t row) const {
    std::byte* const to = packed + row * bytes;
    if (row >= rows_of(layout)) return {From::zero, nullptr, to};
    const std::int32_t t = step_of(layout, row);
    const std::int32_t n = layout.sorted_indices[row - layout.offsets[t]];
    return {From::memory, element(source, n, t), to};
  }
};

struct UnpackMap {
  DeviceLayout layout;
  const std::byte* packed;
  Sequences target;
  std::int64_t bytes;
  __device__ Move operator()(std::int64_t row) const {
    if (row >= rows_of(layout)) return {};
    const std::int32_t t = step_of(layout, row);
    const std::int32_t n = layout.sorted_indices[row - layout.offsets[t]];
    return {From::memory, packed + row * bytes, element(target, n, t)};
  }
};

struct Cell {
  std::int64_t sequence, step;
};

__device__ Cell cell_of(const Cells& cells, std::int64_t i) {
  const std::int64_t inner = cells.batch_first ? cells.steps : cells.batch;
  const std::int64_t outer = i / inner, rest = i - outer * inner;
  return cells.batch_first ? Cell{outer, rest} : Cell{rest, outer};
}

struct UnpackCellsMap {
  DeviceLayout layout;
  const std::byte* packed;
  Cells cells;
  std::byte* padded;
  std::int64_t bytes;
  __device__ Move operator()(std::int64_t i) const {
    const Cell cell = cell_of(cells, i);
    const std::int32_t k = layout.unsorted_indices[cell.sequence];
    std::byte* const to = padded + i * bytes;
    if (cell.step >= layout.lengths[k]) return {From::fill, nullptr, to};
    return {From::memory, packed + (layout.offsets[cell.step] + k) * bytes, to};
  }
};

struct PadCellsMap {
  Sequences source;
  const std::int64_t* lengths;
  Cells cells;
  std::byte* padded;
  std::int64_t bytes;
  __device__ Move operator()(std::int64_t i) const {
    const Cell cell = cell_of(cells, i);
    std::byte* const to = padded + i * bytes;
    if (cell.step >= lengths[cell.sequence]) return {From::fill, nullptr, to};
    return {From::memory, element(source, cell.sequence, cell.step), to};
  }
};

struct GatherMap {
  const std::byte* source;
  std::int64_t rows;
  const void* indices;
  bool wide, absent;
  std::byte* target;
  std::int64_t bytes;
  DeviceFault* fault;
  __device__ Move operator()(std::int64_t i) const {
    const std::int64_t index = wide ? static_cast<const std::int64_t*>(indices)[i]
                                    : static_cast<const std::int32_t*>(indices)[i];
    std::byte* const to = target + i * bytes;
    if (index >= 0 && index < rows) return {From::memory, source + index * bytes, to};
    if (absent && index == -1) return {From::fill, nullptr, to};
    report(fault, FaultCode::index_range, i, index, absent ? -1 : 0, rows);
    return {From::zero, nullptr, to};
  }
};

struct PickMap {
  DeviceLayout layout;
  const std::byte* packed;
  bool last;
  std::byte* target;
  std::int64_t bytes;
  __device__ Move operator()(std::int64_t n) const {
    const std::int32_t k = layout.unsorted_indices[n];
    const std::int32_t length = layout.lengths[k];
    std::byte* const to = target + n * bytes;
    if (length == 0) return {From::fill, nullptr, to};
    return {From::memory, packed + (layout.offsets[last ? length - 1 : 0] + k) * bytes, to};
  }
};

struct PutMap {
  DeviceLayout layout;
  const std::byte* rows;
  bool last;
  std::byte* packed;
  std::int64_t bytes;
  __device__ Move operator()(std::int64_t row) const {
    std::byte* const to = packed + row * bytes;
    if (row >= rows_of(layout)) return {From::zero, nullptr, to};
    const std::int32_t t = step_of(layout, row);
    const auto k = static_cast<std::int32_t>(row - layout.offsets[t]);
    if (t != (last ? layout.lengths[k] - 1 : 0)) return {From::zero, nullptr, to};
    return {From::memory, rows + layout.sorted_indices[k] * bytes, to};
  }
};

struct SpreadMap {
  const std::byte* source;
  std::int64_t source_stride;
  std::byte* target;
  std::int64_t target_stride;
  __device__ Move operator()(std::int64_t i) const {
    return {From::memory, source + i * source_stride, target + i * target_stride};
  }
};

struct SwapMap {
  const std::byte* source;
  std::int64_t a_count, b_count;
  std::byte* target;
  std::int64_t bytes;
  __device__ Move operator()(std::int64_t i) const {
    const std::int64_t b = i / a_count, a = i - b * a_count;
    return {From::memory, source + (a * b_count + b) * bytes, target + i * bytes};
  }
};

struct FillMap {
  std::byte* target;
  std::int64_t bytes;
  __device__ Move operator()(std::int64_t i) const {
    return {From::fill, nullptr, target + i * bytes};
  }
};

template <class V, class Map>
__global__ void __launch_bounds__(kRowThreads)
    move_rows_kernel(Map map, std::int64_t rows, std::int64_t vectors, int team_bits, V fill) {
  const int team = 1 << team_bits;
  const int member = static_cast<int>(threadIdx.x) & (team - 1);
  for (std::int64_t i = first_item() >> team_bits; i < rows; i += item_stride() >> team_bits) {
    const Move move = map(i);
    if (move.to == nullptr) continue;
    V* const to = reinterpret_cast<V*>(move.to);
    if (move.kind != From::memory) {
      const V value = move.kind == From::fill ? fill : V{};
      for (std::int64_t v = member; v < vectors; v += team) to[v] = value;
      continue;
    }
    const V* const from = reinterpret_cast<const V*>(move.from);
    std::int64_t v = member;
    for (; v + 3 * team < vectors; v += 4 * team) {
      const V first = from[v], second = from[v + team], third = from[v + 2 * team],
              fourth = from[v + 3 * team];
      to[v] = first;
      to[v + team] = second;
      to[v + 2 * team] = third;
      to[v + 3 * team] = fourth;
    }
    for (; v < vectors; v += team) to[v] = from[v];
  }
}

template <class V, class Map>
void move_rows_by(gpu::Stream stream, const Map& map, std::int64_t rows, const Row& row) {
  const std::int64_t vectors = row.bytes / static_cast<std::int64_t>(sizeof(V));
  int team_bits = 0;
  while (team_bits < 5 && (std::int64_t{1} << team_bits) < vectors) ++team_bits;
  V fill;
  std::memcpy(&fill, row.fill.data(), sizeof fill);
  launch(stream, PACKRNN_KERNEL(move_rows_kernel<V, Map>), strided_shape(stream, rows << team_bits),
         map, rows, vectors, team_bits, fill);
}

template <class Map>
void move_rows(gpu::Stream stream, const Map& map, std::int64_t rows, const Row& row) {
  if (rows == 0 || row.bytes == 0) return;
  switch (row.vector) {
    case 16:
      return move_rows_by<Words<16>>(stream, map, rows, row);
    case 8:
      return move_rows_by<Words<8>>(stream, map, rows, row);
    case 4:
      return move_rows_by<Words<4>>(stream, map, rows, row);
    default:
      return move_rows_by<Words<2>>(stream, map, rows, row);
  }
}

const std::byte* in(const void* data) { return static_cast<const std::byte*>(data); }
std::byte* out(void* data) { return static_cast<std::byte*>(data); }

}  // namespace

void pack_rows(gpu::Stream stream, const DeviceLayout& layout, const Sequences& source,
               const Row& row, void* packed) {
  move_rows(stream, PackMap{layout, source, out(packed), row.bytes}, layout.rows_capacity, row);
}

void unpack_rows(gpu::Stream stream, const DeviceLayout& layout, const void* packed, const Row& row,
                 const Sequences& target) {
  move_rows(stream, UnpackMap{layout, in(packed), target, row.bytes}, layout.rows_capacity, row);
}

void unpack_cells(gpu::Stream stream, const DeviceLayout& layout, const void* packed,
                  const Row& row, const Cells& cells, void* padded) {
  move_rows(stream, UnpackCellsMap{layout, in(packed), cells, out(padded), row.bytes},
            cells.steps * cells.batch, row);
}

void pad_cells(gpu::Stream stream, const Sequences& source, const std::int64_t* lengths,
               const Row& row, const Cells& cells, void* padded) {
  move_rows(stream, PadCellsMap{source, lengths, cells, out(padded), row.bytes},
            cells.steps * cells.batch, row);
}

void gather_rows(gpu::Stream stream, const void* source, std::int64_t rows, const void* indices,
                 bool wide, std::int64_t count, bool absent, const Row& row, void* target,
                 DeviceFault* fault) {
  move_rows(stream,
            GatherMap{in(source), rows, indices, wide, absent, out(target), row.bytes, fault},
            count, row);
}

void pick_rows(gpu::Stream stream, const DeviceLayout& layout, const void* packed, bool last,
               const Row& row, void* target) {
  move_rows(stream, PickMap{layout, in(packed), last, out(target), row.bytes}, layout.batch, row);
}

void put_rows(gpu::Stream stream, const DeviceLayout& layout, const void* rows, bool last,
              const Row& row, void* packed) {
  move_rows(stream, PutMap{layout, in(rows), last, out(packed), row.bytes}, layout.rows_capacity,
            row);
}

void spread_rows(gpu::Stream stream, const void* source, std::int64_t source_stride,
                 std::int64_t rows, const Row& row, void* target, std::int64_t target_stride) {
  move_rows(stream, SpreadMap{in(source), source_stride, out(target), target_stride}, rows, row);
}

void swap_axes(gpu::Stream stream, const void* source, std::int64_t a, std::int64_t b,
               const Row& row, void* target) {
  move_rows(stream, SwapMap{in(source), a, b, out(target), row.bytes}, a * b, row);
}

void fill_rows(gpu::Stream stream, std::int64_t count, const Row& row, void* target) {
  move_rows(stream, FillMap{out(target), row.bytes}, count, row);
}

}  // namespace packrnn::kernels::cuda

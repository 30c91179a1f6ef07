// c += a^T b over all rows of a batch, and sums of columns.
//
// The rows are split into parts so that about kBlocks blocks have work. A block sums one tile over
// one part: each element a chain of fused multiply-adds from zero over ascending rows, slabs of
// which pass through shared memory as in chain.cuh. Then the parts are added, in ascending order,
// and their sum to what is there. Parts depend on the shapes alone. Bound by arithmetic where c is
// larger than a tile, else by reading a and b.
#include <algorithm>

#include "packrnn/kernels/cuda/chain.cuh"
#include "packrnn/kernels/cuda/gradient_product.hpp"
#include "packrnn/kernels/cuda/launch.cuh"
#include "packrnn/kernels/cuda/rows.cuh"

namespace packrnn::kernels::cuda {
namespace {

using LargeF32 = ChainTile<float, 8, 8, 16, 16, 16, 4, 4>;
using SmallF32 = ChainTile<float, 4, 4, 16, 16, 16, 4, 4>;
using AnyF64 = ChainTile<double, 4, 4, 16, 16, 16, 2, 2>;
constexpr std::int64_t kLargeSide = 96;
constexpr std::int64_t kBlocks = 256, kLeastRows = 128;

// Of column sums: a warp reads a run of columns; the warps of a block take rows in turn.
constexpr int kRunColumns = 32, kRunRows = kRowThreads / kRunColumns;
constexpr int kAhead = 8;

std::int64_t tiles_of(std::int64_t count, std::int64_t tile) { return (count + tile - 1) / tile; }

/// [begin of part i] = i * rows. Depends on the shapes alone.
struct Parts {
  std::int64_t rows = 0, count = 0;

  Parts(std::int64_t all, std::int64_t tiles, std::int64_t multiple) {
    const std::int64_t wanted = std::max<std::int64_t>(1, kBlocks / tiles);
    const std::int64_t most = std::min(wanted, tiles_of(all, kLeastRows));
    rows = tiles_of(tiles_of(all, most), multiple) * multiple;
    count = tiles_of(all, rows);
  }
};

/// One part of one tile: to sums where there is one part, else to its own of parts [count, m, n].
template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads)
    gradient_product_kernel(GradientProduct p, std::int64_t part_rows, typename Tile::A* parts) {
  using A = typename Tile::A;
  constexpr int kALoads = Tile::kTileRows * Tile::kSlab / Tile::kThreads;
  constexpr int kBLoads = Tile::kTileColumns * Tile::kSlab / Tile::kThreads;
  PACKRNN_SHARED(typename Tile::Shared, shared);
  const std::int64_t first_m = static_cast<std::int64_t>(blockIdx.x) * Tile::kTileRows;
  const std::int64_t first_n = static_cast<std::int64_t>(blockIdx.y) * Tile::kTileColumns;
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.z) * part_rows;
  const std::int64_t end = min(begin + part_rows, p.rows);
  const int thread = static_cast<int>(threadIdx.x);

  A a_next[kALoads], b_next[kBLoads];
  const auto fetch = [&](std::int64_t row) {
    const A* const a = static_cast<const A*>(p.a) + row * p.lda + first_m;
    const A* const b = static_cast<const A*>(p.b) + row * p.ldb + first_n;
    PACKRNN_UNROLL
    for (int i = 0; i < kALoads; ++i) {
      const int item = thread + i * Tile::kThreads;
      const int r = item / Tile::kTileRows, c = item % Tile::kTileRows;
      a_next[i] = row + r < end && first_m + c < p.m ? a[r * p.lda + c] : A(0);
    }
    PACKRNN_UNROLL
    for (int i = 0; i < kBLoads; ++i) {
      const int item = thread + i * Tile::kThreads;
      const int r = item / Tile::kTileColumns, c = item % Tile::kTileColumns;
      b_next[i] = row + r < end && first_n + c < p.n ? b[r * p.ldb + c] : A(0);
    }
  };

  A sum[Tile::kRows][Tile::kColumns] = {};
  fetch(begin);
  int turn = 0;
  for (std::int64_t row = begin; row < end; row += Tile::kSlab, turn ^= 1) {
    PACKRNN_UNROLL
    for (int i = 0; i < kALoads; ++i) {
      const int item = thread + i * Tile::kThreads;
      shared.x[turn][item / Tile::kTileRows][item % Tile::kTileRows] = a_next[i];
    }
    PACKRNN_UNROLL
    for (int i = 0; i < kBLoads; ++i) {
      const int item = thread + i * Tile::kThreads;
      shared.w[turn][item / Tile::kTileColumns][item % Tile::kTileColumns] = b_next[i];
    }
    // The slab is complete; and nobody reads the other one any more, for whoever is here has
    // finished it.
    __syncthreads();
    if (row + Tile::kSlab < end) fetch(row + Tile::kSlab);
    multiply_slab<Tile>(shared, turn, sum);
  }

  A* const sums = static_cast<A*>(p.sums);
  PACKRNN_UNROLL
  for (int r = 0; r < Tile::kRows; ++r) {
    const std::int64_t m = first_m + Tile::row(r);
    PACKRNN_UNROLL
    for (int c = 0; c < Tile::kColumns; ++c) {
      const std::int64_t n = first_n + Tile::column(c);
      if (m >= p.m || n >= p.n) continue;
      if (parts == nullptr)
        sums[m * p.ldsums + n] += sum[r][c];
      else
        parts[(blockIdx.z * p.m + m) * p.n + n] = sum[r][c];
    }
  }
}

/// sums [m, n] += the sum of parts [count, m, n] in ascending order.
template <class A>
__global__ void __launch_bounds__(kRowThreads)
    add_parts_kernel(const A* parts, std::int64_t count, std::int64_t m, std::int64_t n, A* sums,
                     std::int64_t ldsums) {
  const std::int64_t size = m * n;
  for (std::int64_t i = first_item(); i < size; i += item_stride()) {
    A sum = 0;
    std::int64_t part = 0;
    for (; part + kAhead <= count; part += kAhead) {
      A ahead[kAhead];
      PACKRNN_UNROLL
      for (int j = 0; j < kAhead; ++j) ahead[j] = parts[(part + j) * size + i];
      PACKRNN_UNROLL
      for (int j = 0; j < kAhead; ++j) sum += ahead[j];
    }
    for (; part < count; ++part) sum += parts[part * size + i];
    sums[i / n * ldsums + i % n] += sum;
  }
}

/// One part of a run of columns. Each warp sums every kRunRows-th row in ascending order, then the
/// first adds up what the warps have, in ascending order.
template <class T>
__global__ void __launch_bounds__(kRowThreads)
    column_sums_kernel(ColumnSums p, std::int64_t part_rows, Sum<T>* parts) {
  using A = Sum<T>;
  PACKRNN_SHARED(A, shared, [kRunRows][kRunColumns]);
  const int lane = static_cast<int>(threadIdx.x) % kRunColumns;
  const int warp = static_cast<int>(threadIdx.x) / kRunColumns;
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kRunColumns + lane;
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.y) * part_rows;
  const std::int64_t end = min(begin + part_rows, p.rows);
  A sum = 0;
  if (column < p.columns) {
    const T* const values = static_cast<const T*>(p.values) + column;
    std::int64_t row = begin + warp;
    for (; row + (kAhead - 1) * kRunRows < end; row += kAhead * kRunRows) {
      T ahead[kAhead];
      PACKRNN_UNROLL
      for (int j = 0; j < kAhead; ++j) ahead[j] = values[(row + j * kRunRows) * p.ld];
      PACKRNN_UNROLL
      for (int j = 0; j < kAhead; ++j) sum += value_of(ahead[j]);
    }
    for (; row < end; row += kRunRows) sum += value_of(values[row * p.ld]);
  }
  shared[warp][lane] = sum;
  __syncthreads();  // all warps' sums are there
  if (warp != 0 || column >= p.columns) return;
  PACKRNN_UNROLL
  for (int w = 1; w < kRunRows; ++w) sum += shared[w][lane];
  parts[blockIdx.y * p.columns + column] = sum;
}

template <class A>
void add_parts(gpu::Stream stream, const A* parts, std::int64_t count, std::int64_t m,
               std::int64_t n, void* sums, std::int64_t ldsums) {
  launch(stream, PACKRNN_KERNEL(add_parts_kernel<A>), strided_shape(stream, m * n), parts, count, m,
         n, static_cast<A*>(sums), ldsums);
}

template <class Tile>
void in_chains(Context& context, const GradientProduct& p) {
  using A = typename Tile::A;
  const std::int64_t m_tiles = tiles_of(p.m, Tile::kTileRows);
  const std::int64_t n_tiles = tiles_of(p.n, Tile::kTileColumns);
  const Parts parts(p.rows, m_tiles * n_tiles, Tile::kSlab);
  Workspace::Scope scratch(context.workspace());
  A* const sums = parts.count > 1 ? scratch.take<A>(parts.count * p.m * p.n).data() : nullptr;
  gpu::LaunchShape shape;
  shape.grid = {static_cast<unsigned>(m_tiles), static_cast<unsigned>(n_tiles),
                static_cast<unsigned>(parts.count)};
  shape.block[0] = Tile::kThreads;
  launch(context.stream(), PACKRNN_KERNEL(gradient_product_kernel<Tile>), shape, p, parts.rows,
         sums);
  if (parts.count > 1)
    add_parts<A>(context.stream(), sums, parts.count, p.m, p.n, p.sums, p.ldsums);
}

template <class T>
void sum_columns(Context& context, const ColumnSums& p) {
  using A = Sum<T>;
  const std::int64_t runs = tiles_of(p.columns, kRunColumns);
  const Parts parts(p.rows, runs, kRunRows);
  Workspace::Scope scratch(context.workspace());
  A* const sums = scratch.take<A>(parts.count * p.columns).data();
  gpu::LaunchShape shape;
  shape.grid = {static_cast<unsigned>(runs), static_cast<unsigned>(parts.count), 1};
  shape.block[0] = kRowThreads;
  launch(context.stream(), PACKRNN_KERNEL(column_sums_kernel<T>), shape, p, parts.rows, sums);
  add_parts<A>(context.stream(), sums, parts.count, 1, p.columns, p.sums, p.columns);
}

}  // namespace

void gradient_product(Context& context, const GradientProduct& p) {
  if (p.rows == 0 || p.m == 0 || p.n == 0) return;
  if (p.dtype == Dtype::f64) return in_chains<AnyF64>(context, p);
  if (p.dtype == Dtype::f32 && context.f32_math() != F32Math::tf32) {
    if (p.m >= kLargeSide && p.n >= kLargeSide) return in_chains<LargeF32>(context, p);
    return in_chains<SmallF32>(context, p);
  }
  gpu::multiply(context.products(),
                {.m = p.m,
                 .n = p.n,
                 .k = p.rows,
                 .in = p.dtype,
                 .out = Dtype::f32,
                 .lda = p.lda,
                 .ldb = p.ldb,
                 .ldd = p.ldsums,
                 .accumulate = true,
                 .transposed = true},
                p.a, p.b, nullptr, p.sums);
}

void column_sums(Context& context, const ColumnSums& p) {
  if (p.rows == 0 || p.columns == 0) return;
  with_floating(p.dtype, [&]<class T>(std::type_identity<T>) { sum_columns<T>(context, p); });
}

}  // namespace packrnn::kernels::cuda

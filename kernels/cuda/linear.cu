// y = x W^T + b in f32 and f64, each element one chain (chain.cuh). A large tile where there are
// many rows: 128 x 128 for f32, 64 fused multiply-adds per thread and term, bound by arithmetic. A
// small one where there are few, so that the chain of a lone row does not wait for others'. Both
// give the same bits.
#include "packrnn/kernels/cuda/chain.cuh"
#include "packrnn/kernels/cuda/launch.cuh"
#include "packrnn/kernels/cuda/linear.hpp"
#include "packrnn/kernels/cuda/rows.cuh"

namespace packrnn::kernels::cuda {
namespace {

using LargeF32 = ChainTile<float, 8, 8, 16, 16, 16, 4, 4>;
using SmallF32 = ChainTile<float, 2, 4, 8, 16, 32, 2, 4>;
using AnyF64 = ChainTile<double, 4, 4, 16, 16, 16, 2, 2>;
constexpr std::int64_t kManyRows = 64;

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads) chain_product_kernel(ChainProduct p) {
  using A = typename Tile::A;
  PACKRNN_SHARED(typename Tile::Shared, shared);
  const std::int64_t first_row = static_cast<std::int64_t>(blockIdx.x) * Tile::kTileRows;
  const std::int64_t first_column = static_cast<std::int64_t>(blockIdx.y) * Tile::kTileColumns;
  const A* const x = static_cast<const A*>(p.x);
  const A* const w = static_cast<const A*>(p.w);
  const A* const bias = static_cast<const A*>(p.bias);
  A* const y = static_cast<A*>(p.y);

  A sum[Tile::kRows][Tile::kColumns];
  PACKRNN_UNROLL
  for (int c = 0; c < Tile::kColumns; ++c) {
    const std::int64_t column = first_column + Tile::column(c);
    const bool some = column < p.outputs;
    const A initial = some && bias != nullptr ? bias[column] : A(0);
    PACKRNN_UNROLL
    for (int r = 0; r < Tile::kRows; ++r) {
      const std::int64_t row = first_row + Tile::row(r);
      sum[r][c] = initial;
      if (p.accumulate && some && row < p.rows) sum[r][c] = y[row * p.ldy + column];
    }
  }
  add_chains<Tile, A>(
      shared, sum, p.k, p.ldw,
      [&](int r) -> const A* {
        return first_row + r < p.rows ? x + (first_row + r) * p.ldx : nullptr;
      },
      [&](int c) -> const A* {
        return first_column + c < p.outputs ? w + (first_column + c) * p.ldw : nullptr;
      });
  PACKRNN_UNROLL
  for (int r = 0; r < Tile::kRows; ++r) {
    const std::int64_t row = first_row + Tile::row(r);
    PACKRNN_UNROLL
    for (int c = 0; c < Tile::kColumns; ++c) {
      const std::int64_t column = first_column + Tile::column(c);
      if (row < p.rows && column < p.outputs) y[row * p.ldy + column] = sum[r][c];
    }
  }
}

/// Panels of outputs rows of k: weight [outputs, k], or [k, outputs] if transposed. A block assigns
/// whole rows.
template <class T>
__global__ void __launch_bounds__(kRowThreads)
    fill_panels_kernel(const T* weight, const T* bias, std::int64_t outputs, std::int64_t k,
                       bool transposed, LinearPanels p, T* panels) {
  using A = Sum<T>;
  const std::int64_t row_step = transposed ? 1 : k, step = transposed ? outputs : 1;
  for (std::int64_t row = blockIdx.x; row < outputs; row += gridDim.x)
    for (std::int64_t column = threadIdx.x; column < p.pitch; column += blockDim.x)
      panels[row * p.pitch + column] = column < k ? weight[row * row_step + column * step] : T{};
  for (std::int64_t i = outputs * p.pitch + first_item(); i < p.bias; i += item_stride())
    panels[i] = T{};
  A* const sums = reinterpret_cast<A*>(panels + p.bias);
  const std::int64_t count = (p.elements - p.bias) * static_cast<std::int64_t>(sizeof(T)) /
                             static_cast<std::int64_t>(sizeof(A));
  for (std::int64_t i = first_item(); i < count; i += item_stride())
    sums[i] = bias != nullptr && i < outputs ? value_of(bias[i]) : A(0);
}

template <class Tile>
void start(gpu::Stream stream, const ChainProduct& p) {
  gpu::LaunchShape shape;
  shape.grid = {static_cast<unsigned>((p.rows + Tile::kTileRows - 1) / Tile::kTileRows),
                static_cast<unsigned>((p.outputs + Tile::kTileColumns - 1) / Tile::kTileColumns),
                1};
  shape.block[0] = Tile::kThreads;
  launch(stream, PACKRNN_KERNEL(chain_product_kernel<Tile>), shape, p);
}

}  // namespace

void fill_panels(gpu::Stream stream, const TensorView& weight, const TensorView& bias,
                 bool transposed, void* panels) {
  const std::int64_t outputs = weight.size(transposed ? 1 : 0), k = weight.size(transposed ? 0 : 1);
  const LinearPanels p = LinearPanels::of(outputs, k, weight.dtype());
  with_floating(weight.dtype(), [&]<class T>(std::type_identity<T>) {
    launch(stream, PACKRNN_KERNEL(fill_panels_kernel<T>),
           strided_shape(stream, outputs * kRowThreads), static_cast<const T*>(weight.raw()),
           static_cast<const T*>(bias.defined() ? bias.raw() : nullptr), outputs, k, transposed, p,
           static_cast<T*>(panels));
  });
}

void chain_product(gpu::Stream stream, const ChainProduct& p) {
  if (p.dtype == Dtype::f64)
    start<AnyF64>(stream, p);
  else if (p.rows > kManyRows)
    start<LargeF32>(stream, p);
  else
    start<SmallF32>(stream, p);
}

}  // namespace packrnn::kernels::cuda

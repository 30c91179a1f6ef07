// The matrix product under every CPU layer; included once per instruction set.
//
// Weights are packed once into panels. A panel covers kWidth vectors of output columns and all of
// K, k outermost: panel[k][kWidth * lanes]. A tile of rows x vectors of accumulators stays in
// registers while k runs; each accumulator is one chain of fused multiply-adds over ascending k
// that starts from its initial value. Splitting rows into tiles, K into blocks or columns over
// threads moves accumulators through memory but never reorders a chain: that is contract C1.

#if defined(PACKRNN_CPU_PANEL_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef PACKRNN_CPU_PANEL_INL
#undef PACKRNN_CPU_PANEL_INL
#else
#define PACKRNN_CPU_PANEL_INL
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>

#include "packrnn/runtime/element.hpp"
#include "packrnn/runtime/thread_pool.hpp"

HWY_BEFORE_NAMESPACE();
namespace packrnn::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <class T>
using Tag = hn::ScalableTag<T>;
template <class T>
inline constexpr std::int64_t kLanes = static_cast<std::int64_t>(hn::MaxLanes(Tag<T>()));

/// Vector registers decide the tile, rows x vectors of accumulators: 6 x 4 or 8 x 3 of 32
/// registers, 6 x 2 or 4 x 3 of 16.
inline constexpr bool kManyRegisters = HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON;
template <int kWidth>
inline constexpr int kTileVectors = kManyRegisters || kWidth == 3 ? kWidth : std::min(kWidth, 2);
template <int kWidth>
inline constexpr int kTileRows = kTileVectors<kWidth> != 3 ? 6
                                 : kManyRegisters          ? 8
                                                           : 4;
/// Rows that share one pass over a panel; their results wait in a small buffer for the epilogue.
inline constexpr int kGroupRows = 48;
inline constexpr std::int64_t kLine = 64;  // bytes of a cache line
/// Bytes of a panel read per block of K when there are rows enough to read it again: stays in L1.
inline constexpr std::int64_t kBlockBytes = 32 * 1024;

/// A matrix of rows; `stride` is in elements.
template <class T>
struct Rows {
  T* data;
  std::int64_t stride;

  HWY_INLINE T* operator[](std::int64_t row) const { return data + row * stride; }
};

/// How many consecutive k share a word of a panel. A word of two bf16 becomes either as a float by
/// one instruction, which is half of what widening a vector of them takes.
template <class W>
inline constexpr std::int64_t kPaired = std::is_same_v<W, BFloat16> ? 2 : 1;

/// Weights as they are stored, as vectors of T: those of k = kHalf of the words at `from`.
template <int kHalf, class T, class W>
HWY_INLINE hn::Vec<Tag<T>> load_weights(const W* from) {
  const Tag<T> d;
  if constexpr (std::is_same_v<W, BFloat16>) {
    const hn::RebindToUnsigned<Tag<T>> words;
    const auto pair = hn::Load(words, reinterpret_cast<const std::uint32_t*>(from));
    if constexpr (kHalf == 0) return hn::BitCast(d, hn::ShiftLeft<16>(pair));
    return hn::BitCast(d, hn::And(pair, hn::Set(words, 0xFFFF0000U)));
  } else if constexpr (std::is_same_v<W, Half>) {
    const hn::Rebind<std::uint16_t, Tag<T>> d16;
    const hn::Rebind<hwy::float16_t, Tag<T>> d_half;
    const auto bits = hn::Load(d16, reinterpret_cast<const std::uint16_t*>(from));
    return hn::PromoteTo(d, hn::BitCast(d_half, bits));
  } else {
    return hn::Load(d, from);
  }
}

/// sum[r][v] += a[r][k] * b[k][v], where b is at the words of k and k is the kHalf-th of them.
template <int kHalf, int kRows, int kVectors, class T, class W>
HWY_INLINE void add_products(hn::Vec<Tag<T>> (&sum)[kRows][kVectors], Rows<const T> a,
                             std::int64_t k, const W* HWY_RESTRICT b) {
  const Tag<T> d;
  hn::Vec<Tag<T>> weight[kVectors];
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v)
    weight[v] = load_weights<kHalf, T>(b + v * kLanes<T> * kPaired<W>);
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    const auto x = hn::Set(d, a[r][k]);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::MulAdd(x, weight[v], sum[r][v]);
  }
}

/// out[r][v] = init[r][v] + sum over k of a[r][k] * b[k][v], for kRows rows and kVectors vectors;
/// b advances by `step` elements per k. init may be out. Weights are stored as W.
/// `soon`: what to bring near meanwhile, a cache line for each k.
template <int kRows, int kVectors, class T, class W>
HWY_INLINE void tile(std::int64_t k_count, Rows<const T> a, const W* HWY_RESTRICT b,
                     std::int64_t step, Rows<const T> init, Rows<T> out,
                     const std::byte* soon = nullptr) {
  const Tag<T> d;
  constexpr std::int64_t kN = kLanes<T>;
  hn::Vec<Tag<T>> sum[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::LoadU(d, init[r] + v * kN);
  std::int64_t k = 0;
  for (; k + kPaired<W> <= k_count; k += kPaired<W>, b += kPaired<W> * step) {
    if (kRows > 2) __builtin_prefetch(soon + k * kLine);
    add_products<0>(sum, a, k, b);
    if constexpr (kPaired<W> == 2) add_products<1>(sum, a, k + 1, b);
  }
  if (k < k_count) add_products<0>(sum, a, k, b);
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) hn::StoreU(sum[r][v], d, out[r] + v * kN);
}

/// tile() for a row count known at run time, 1 .. kMaxRows.
template <int kMaxRows, int kVectors, class T, class W>
HWY_INLINE void tile_rows(std::int64_t rows, std::int64_t k_count, Rows<const T> a, const W* b,
                          std::int64_t step, Rows<const T> init, Rows<T> out,
                          const std::byte* soon = nullptr) {
  if constexpr (kMaxRows > 1) {
    if (rows < kMaxRows)
      return tile_rows<kMaxRows - 1, kVectors>(rows, k_count, a, b, step, init, out, soon);
  }
  tile<kMaxRows, kVectors>(k_count, a, b, step, init, out, soon);
}

/// out[r][columns] = init[r][columns] + a[r] . panel, for any number of rows, over the vectors
/// [kFirst, kFirst + kCount) of a panel of kWidth vectors. `init` and `out` point at column kFirst.
template <int kWidth, int kFirst, int kCount, class T, class W>
HWY_NOINLINE void panel_product(std::int64_t rows, std::int64_t k_count, Rows<const T> a,
                                const W* panel, Rows<const T> init, Rows<T> out) {
  constexpr std::int64_t kN = kLanes<T>, kStep = kWidth * kN;
  if (rows == 0) return;  // the share of a thread may be empty
  panel += kFirst * kN * kPaired<W>;
  if (rows <= 2) {  // too few rows to fill the tile: all vectors at once keep enough chains going
    tile_rows<2, kCount>(rows, k_count, a, panel, kStep, init, out);
    return;
  }
  constexpr int kRows = kTileRows<kWidth>, kVectors = std::min(kTileVectors<kWidth>, kCount);
  static_assert(kCount % kVectors == 0);
  const std::int64_t block =
      rows <= kRows
          ? std::max<std::int64_t>(1, k_count)
          : std::max<std::int64_t>(64, kBlockBytes / (kStep * std::int64_t{sizeof(W)}) / 2 * 2);
  const std::int64_t tiles = (rows + kRows - 1) / kRows;
  for (std::int64_t k = 0; k < k_count || k == 0; k += block) {
    const std::int64_t terms = std::min(block, k_count - k);
    const Rows<const T> from = k == 0 ? init : Rows<const T>{out.data, out.stride};
    // The first tile would wait for every line of the block after this one.
    const auto* soon = reinterpret_cast<const std::byte*>(panel + (k + terms) * kStep);
    for (std::int64_t i = 0; i < tiles; ++i) {  // rows are dealt evenly: no thin last tile
      const std::int64_t first = rows * i / tiles, count = rows * (i + 1) / tiles - first;
      for (int v = 0; v < kCount; v += kVectors, soon += terms * kLine)
        tile_rows<kRows, kVectors>(count, terms, Rows<const T>{a[first] + k, a.stride},
                                   panel + k * kStep + v * kN * kPaired<W>, kStep,
                                   Rows<const T>{from[first] + v * kN, from.stride},
                                   Rows<T>{out[first] + v * kN, out.stride}, soon);
    }
  }
}

inline std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// Elements of a panel of kWidth vectors and K terms.
template <int kWidth, class T, class W>
HWY_INLINE std::int64_t panel_elements(std::int64_t k_count) {
  return round_up(k_count, kPaired<W>) * kWidth * kLanes<T>;
}

/// The panels that thread `part` of `team` fills.
struct Share {
  int part = 0, team = 1;

  Range of(std::int64_t panels) const { return split(panels, part, team); }
};

/// to[k][j] = row[j][k] for kStep rows; those that are nullptr give zeros. By squares of as many
/// elements as 16 bytes hold, and a cache line of each row at a time.
template <std::int64_t kStep, class T>
HWY_INLINE void transpose_rows(const T* const* row, std::int64_t k_count, T* HWY_RESTRICT to) {
  std::int64_t whole = 0;
#if HWY_TARGET != HWY_SCALAR
  constexpr std::int64_t kSide = 16 / std::int64_t{sizeof(T)};
  constexpr std::int64_t kTerms = kLine / std::int64_t{sizeof(T)};
  const hn::FixedTag<T, kSide> d;
  whole = k_count / kTerms * kTerms;
  for (std::int64_t first = 0; first < whole; first += kTerms)
    for (std::int64_t j = 0; j < kStep; j += kSide)
      for (std::int64_t k = first; k < first + kTerms; k += kSide) {
        const auto load = [&](std::int64_t r) {
          return row[j + r] ? hn::LoadU(d, row[j + r] + k) : hn::Zero(d);
        };
        T* const out = to + k * kStep + j;
        const auto a = load(0), b = load(1);
        const auto low = hn::InterleaveLower(d, a, b), high = hn::InterleaveUpper(d, a, b);
        if constexpr (kSide == 2) {
          hn::Store(low, d, out);
          hn::Store(high, d, out + kStep);
        } else {
          const auto c = load(2), e = load(3);
          const auto low2 = hn::InterleaveLower(d, c, e), high2 = hn::InterleaveUpper(d, c, e);
          hn::Store(hn::ConcatLowerLower(d, low2, low), d, out);
          hn::Store(hn::ConcatUpperUpper(d, low2, low), d, out + kStep);
          hn::Store(hn::ConcatLowerLower(d, high2, high), d, out + 2 * kStep);
          hn::Store(hn::ConcatUpperUpper(d, high2, high), d, out + 3 * kStep);
        }
      }
#endif
  for (std::int64_t k = whole; k < k_count; ++k)
    for (std::int64_t j = 0; j < kStep; ++j) to[k * kStep + j] = row[j] ? row[j][k] : T{0};
}

/// Fills the share's panels of kWidth vectors and K terms for `columns` padded columns;
/// `row_of_column(c)` is the weight row behind column c, or nullptr for a column of zeros.
template <int kWidth, class T, class W, class RowOfColumn>
void fill_panels(std::int64_t columns, std::int64_t k_count, RowOfColumn&& row_of_column, W* panels,
                 Share share = {}) {
  constexpr std::int64_t kStep = kWidth * kLanes<T>;
  const T* row[kStep];
  const Range own = share.of(columns / kStep);
  panels += own.begin * panel_elements<kWidth, T, W>(k_count);
  for (std::int64_t p = own.begin; p < own.end; ++p) {
    for (std::int64_t j = 0; j < kStep; ++j) row[j] = row_of_column(p * kStep + j);
    if constexpr (std::is_same_v<T, W>) {
      transpose_rows<kStep>(row, k_count, panels);
      panels += k_count * kStep;
    } else {
      for (std::int64_t k = 0; k < k_count; k += kPaired<W>)
        for (std::int64_t j = 0; j < kStep; ++j)
          for (std::int64_t half = 0; half < kPaired<W>; ++half)
            *panels++ = convert_element<W>(row[j] && k + half < k_count ? row[j][k + half] : T{0});
    }
  }
}

/// Stores the first `count` lanes of v, all of them when count is larger.
template <class T>
HWY_INLINE void store_first(hn::Vec<Tag<T>> v, std::int64_t count, T* out) {
  const Tag<T> d;
  if (count >= kLanes<T>) return hn::StoreU(v, d, out);
  HWY_ALIGN T lanes[kLanes<T>];
  hn::Store(v, d, lanes);
  for (std::int64_t i = 0; i < count; ++i) out[i] = lanes[i];
}

/// The first `count` elements at `from` and zeros behind them; none are read from null.
template <class T>
HWY_INLINE hn::Vec<Tag<T>> load_first(const T* from, std::int64_t count) {
  const Tag<T> d;
  if (!from) return hn::Zero(d);
  if (count >= kLanes<T>) return hn::LoadU(d, from);
  HWY_ALIGN T lanes[kLanes<T>] = {};
  for (std::int64_t i = 0; i < count; ++i) lanes[i] = from[i];
  return hn::Load(d, lanes);
}

}  // namespace packrnn::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard

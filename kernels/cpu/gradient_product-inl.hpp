// The product behind every weight gradient, c += a^T b; included once per instruction set.
//
// Both factors are read along their rows and summed over them. Blocks of kTermBlock rows are copied
// to where a register tile reads them in order: one broadcast per row of c and one load per vector
// of b for each k. An element of c receives one
// sum per block, a chain of multiply-adds from zero over ascending k. Blocks depend on nothing but
// k_count: neither the columns of a call nor the tile that covers an element show in its bits.

#if defined(PACKRNN_CPU_GRADIENT_PRODUCT_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef PACKRNN_CPU_GRADIENT_PRODUCT_INL
#undef PACKRNN_CPU_GRADIENT_PRODUCT_INL
#else
#define PACKRNN_CPU_GRADIENT_PRODUCT_INL
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "packrnn/kernels/cpu/panel-inl.hpp"
#include "packrnn/runtime/thread_pool.hpp"

HWY_BEFORE_NAMESPACE();
namespace packrnn::kernels::HWY_NAMESPACE {

/// Terms of a block's sum.
inline constexpr std::int64_t kTermBlock = 256;
/// Vectors of b in a full panel; the last panel of a block has what remains.
inline constexpr int kGradientWidth = kManyRegisters ? 4 : 3;
/// Bytes of b in a block, about: read again for every tile of rows, so it stays in L2.
inline constexpr std::int64_t kGradientBytes = 512 * 1024;
/// Rows of c in a tile of kVectors vectors of b.
template <int kVectors>
inline constexpr int kGradientRows = kVectors == 4   ? 6
                                     : kVectors == 3 ? (kManyRegisters ? 8 : 4)
                                     : kVectors == 2 ? (kManyRegisters ? 12 : 6)
                                                     : (kManyRegisters ? 16 : 8);
/// Columns of a copied at once: rows of c that pass by while a panel of b stays near.
inline constexpr std::int64_t kGradientColumns = 96;  // whole tiles of any width

/// out[r][v] = sum over k of a[k][r] * b[k][v], all of them stored without gaps.
template <int kRows, int kVectors, class T>
HWY_NOINLINE void gradient_tile(std::int64_t k_count, const T* HWY_RESTRICT a,
                                const T* HWY_RESTRICT b, T* HWY_RESTRICT out) {
  const Tag<T> d;
  constexpr std::int64_t kN = kLanes<T>;
  hn::Vec<Tag<T>> sum[kRows][kVectors];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::Zero(d);
  for (std::int64_t k = 0; k < k_count; ++k, a += kRows, b += kVectors * kN) {
    hn::Vec<Tag<T>> right[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) right[v] = hn::LoadU(d, b + v * kN);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const auto left = hn::Set(d, a[r]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::MulAdd(left, right[v], sum[r][v]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) hn::StoreU(sum[r][v], d, out + (r * kVectors + v) * kN);
}

/// Copies `count` elements and zeros behind them up to whole vectors; from nullptr, zeros only.
template <class T>
HWY_INLINE void copy_padded(const T* from, std::int64_t count, T* to) {
  const Tag<T> d;
  constexpr std::int64_t kN = kLanes<T>;
  if (!from) {
    std::fill(to, to + round_up(count, kN), T{0});
    return;
  }
  std::int64_t i = 0;
  for (; i + kN <= count; i += kN) hn::StoreU(hn::LoadU(d, from + i), d, to + i);
  if (i == count) return;
  hn::StoreU(hn::Zero(d), d, to + i);
  std::memcpy(to + i, from + i, static_cast<std::size_t>(count - i) * sizeof(T));
}

/// From one tile's copy to the next; a line more, because tiles a multiple of 4 KiB apart would
/// drive each other out of L1 while they are written.
template <int kRows, class T>
HWY_INLINE std::int64_t tile_step(std::int64_t k_count) {
  return k_count * kRows + kLine / std::int64_t{sizeof(T)};
}

/// Copies the columns of kRows-wide tiles, a tile after another and k outermost in each. Zeros
/// complete the last tile: what they give is never added to c.
template <int kRows, class T>
HWY_INLINE void copy_columns(std::int64_t k_count, Range columns, Rows<const T> a, T* to) {
  const std::int64_t step = tile_step<kRows, T>(k_count);
  for (std::int64_t k = 0; k < k_count; ++k) {
    const T* const from = a[k];
    T* tile = to + k * kRows;
    std::int64_t m = columns.begin;
    for (; m + kRows <= columns.end; m += kRows, tile += step)
      std::memcpy(tile, from + m, kRows * sizeof(T));
    for (std::int64_t r = 0; m < columns.end && r < kRows; ++r)
      tile[r] = m + r < columns.end ? from[m + r] : T{0};
  }
}

/// The rows of c that a block of columns covers, beside one panel of b of kVectors vectors; `width`
/// elements of them count, from element `n` on.
template <int kRows, int kVectors, class T, class RowOfC>
HWY_INLINE void gradient_panel(std::int64_t k_count, Range columns, const T* a, const T* b,
                               std::int64_t n, std::int64_t width, RowOfC&& c_row) {
  const Tag<T> d;
  constexpr std::int64_t kN = kLanes<T>, kStep = kVectors * kN;
  HWY_ALIGN T sums[kRows * kStep];
  for (std::int64_t m = columns.begin; m < columns.end;
       m += kRows, a += tile_step<kRows, T>(k_count)) {
    const std::int64_t rows = std::min<std::int64_t>(kRows, columns.end - m);
    T* c[kRows];
    for (std::int64_t r = 0; r < rows; ++r) {
      c[r] = c_row(m + r) + n;
      for (std::int64_t i = 0; i < width; i += kLine / std::int64_t{sizeof(T)})
        __builtin_prefetch(c[r] + i, 1);
    }
    gradient_tile<kRows, kVectors>(k_count, a, b, sums);
    for (std::int64_t r = 0; r < rows; ++r) {
      const T* const sum = sums + r * kStep;
      std::int64_t i = 0;
      for (; i + kN <= width; i += kN)
        hn::StoreU(hn::Add(hn::LoadU(d, c[r] + i), hn::Load(d, sum + i)), d, c[r] + i);
      for (; i < width; ++i) c[r][i] += sum[i];
    }
  }
}

/// gradient_panel() for what full panels leave, `width` of 1 .. kVectors vectors. `copied`: the
/// tiles of full panels are in `copy`, and serve where they keep enough chains going.
template <int kVectors, class T, class RowOfC>
HWY_INLINE void gradient_rest(std::int64_t k_count, Range columns, Rows<const T> a, const T* b,
                              std::int64_t n, std::int64_t width, RowOfC&& c_row, T* copy,
                              bool copied) {
  if constexpr (kVectors > 1) {
    if (width <= (kVectors - 1) * kLanes<T>)
      return gradient_rest<kVectors - 1>(k_count, columns, a, b, n, width, c_row, copy, copied);
  }
  constexpr int kOwn = kGradientRows<kVectors>, kFull = kGradientRows<kGradientWidth>;
  if constexpr (kFull * kVectors >= 6) {
    if (copied)
      return gradient_panel<kFull, kVectors, T>(k_count, columns, copy, b, n, width, c_row);
  }
  copy_columns<kOwn>(k_count, columns, a, copy);
  gradient_panel<kOwn, kVectors, T>(k_count, columns, copy, b, n, width, c_row);
}

/// Elements of b in a block: all, or parts of about one size.
template <class T>
std::int64_t gradient_block(std::int64_t n_count) {
  constexpr std::int64_t kN = kLanes<T>;
  constexpr std::int64_t kMost = kGradientBytes / (kTermBlock * kN * std::int64_t{sizeof(T)});
  const std::int64_t vectors = round_up(n_count, kN) / kN, blocks = (vectors + kMost - 1) / kMost;
  if (blocks <= 1) return vectors * kN;
  return round_up((vectors + blocks - 1) / blocks, kGradientWidth) * kN;
}

/// Elements of scratch, on each thread its own, that gradient_product() works in; no alignment.
template <class T>
std::int64_t gradient_product_scratch(std::int64_t n_count) {
  const std::int64_t lines = kGradientColumns * kLine / std::int64_t{sizeof(T)};
  return kTermBlock * (gradient_block<T>(n_count) + kGradientColumns) + lines;
}

/// Columns of a: the same range of each of several planes, which begin `step` apart.
struct GradientColumns {
  Range range;
  std::int64_t planes, step;

  // Of one plane, a range.
  GradientColumns(Range columns, std::int64_t plane_count = 1, std::int64_t distance = 0)
      : range(columns), planes(plane_count), step(distance) {}
};

/// c_row(m)[n] += the sum over k of a[k][m] * b_row(k)[n], for m in columns and n < n_count.
/// b_row(k): nullptr for a row of zeros. Rows of c may not overlap each other, a or b.
template <class T, class RowOfB, class RowOfC>
void gradient_product(std::int64_t k_count, GradientColumns columns, Rows<const T> a,
                      std::int64_t n_count, RowOfB&& b_row, RowOfC&& c_row, T* scratch) {
  constexpr std::int64_t kStep = kGradientWidth * kLanes<T>;
  const Range range = columns.range;
  if (range.begin >= range.end) return;
  const std::int64_t most = gradient_block<T>(n_count);
  T* const copy = scratch + kTermBlock * most;
  for (std::int64_t k = 0; k < k_count; k += kTermBlock) {
    const std::int64_t terms = std::min(kTermBlock, k_count - k);
    for (std::int64_t n = 0; n < n_count; n += most) {
      const std::int64_t width = std::min(most, n_count - n);
      const std::int64_t rest = width % kStep, full = width - rest;
      for (std::int64_t t = 0; t < terms; ++t) {
        const T* const b = b_row(k + t);
        for (std::int64_t i = 0; i < width; i += kStep) {
          const std::int64_t count = std::min(kStep, width - i);
          const std::int64_t step = round_up(count, kLanes<T>);
          copy_padded(b ? b + n + i : nullptr, count, scratch + terms * i + t * step);
        }
      }
      const std::int64_t blocks =
          (range.end - range.begin + kGradientColumns - 1) / kGradientColumns;
      for (std::int64_t i = 0; i < columns.planes * blocks; ++i) {
        const std::int64_t plane = i / blocks * columns.step;
        const std::int64_t m = plane + range.begin + i % blocks * kGradientColumns;
        const Range block{m, std::min(m + kGradientColumns, plane + range.end)};
        const Rows<const T> rows{a[k], a.stride};
        if (full > 0) copy_columns<kGradientRows<kGradientWidth>>(terms, block, rows, copy);
        for (std::int64_t at = 0; at < full; at += kStep)
          gradient_panel<kGradientRows<kGradientWidth>, kGradientWidth, T>(
              terms, block, copy, scratch + terms * at, n + at, kStep, c_row);
        if (rest > 0)
          gradient_rest<kGradientWidth>(terms, block, rows, scratch + terms * full, n + full, rest,
                                        c_row, copy, full > 0);
      }
    }
  }
}

/// sums[m] = the sum over k of a[k][m], for the vectors of one tile.
template <int kVectors, class T>
HWY_INLINE void sum_tile(std::int64_t k_count, Rows<const T> a, T* sums) {
  const Tag<T> d;
  constexpr std::int64_t kN = kLanes<T>;
  hn::Vec<Tag<T>> sum[kVectors];
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) sum[v] = hn::Zero(d);
  for (std::int64_t k = 0; k < k_count; ++k)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) sum[v] = hn::Add(sum[v], hn::LoadU(d, a[k] + v * kN));
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) hn::Store(sum[v], d, sums + v * kN);
}

/// add(m, the sum over k of a[k][m]), for m in columns, once for each block of terms. Blocks and
/// bits as those of gradient_product().
template <class T, class Add>
void column_sums(std::int64_t k_count, Range columns, Rows<const T> a, Add&& add) {
  constexpr std::int64_t kN = kLanes<T>;
  constexpr int kVectors = 8;
  HWY_ALIGN T sums[kVectors * kN];
  for (std::int64_t k = 0; k < k_count; k += kTermBlock) {
    const std::int64_t terms = std::min(kTermBlock, k_count - k);
    for (std::int64_t m = columns.begin; m < columns.end;) {
      const std::int64_t left = columns.end - m;
      const Rows<const T> from{a[k] + m, a.stride};
      std::int64_t count = 0;
      if (left >= kVectors * kN) {
        count = kVectors * kN;
        sum_tile<kVectors>(terms, from, sums);
      } else if (left >= 2 * kN) {
        count = 2 * kN;
        sum_tile<2>(terms, from, sums);
      } else if (left >= kN) {
        count = kN;
        sum_tile<1>(terms, from, sums);
      } else {
        count = left;
        std::fill(sums, sums + count, T{0});
        for (std::int64_t t = 0; t < terms; ++t)
          for (std::int64_t i = 0; i < count; ++i) sums[i] += from[t][i];
      }
      for (std::int64_t i = 0; i < count; ++i) add(m + i, sums[i]);
      m += count;
    }
  }
}

}  // namespace packrnn::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard

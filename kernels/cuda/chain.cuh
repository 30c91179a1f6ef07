// The matrix product of the exact path: sums of a tile of rows x columns, each one chain of fused
// multiply-adds over ascending k, as in cpu/panel-inl.hpp. What may be chosen freely is only who
// computes which chain; so there is no splitting of K, no tensor core, and the bits do not depend
// on the tile.
//
// A block takes slabs of kSlab terms through shared memory, two in turns: while one is worked on,
// the next is on its way in registers. Each thread keeps kRows x kColumns chains, which is what
// hides the latency of a chain's next link.
#pragma once

#include "packrnn/kernels/cuda/storage.cuh"

namespace packrnn::kernels::cuda {

template <class A_, int kRows_, int kColumns_, int kRowThreads_, int kColumnThreads_, int kSlab_,
          int kRowVector_, int kColumnVector_>
struct ChainTile {
  using A = A_;
  static constexpr int kRows = kRows_, kColumns = kColumns_;  // of a thread
  static constexpr int kRowThreads = kRowThreads_, kColumnThreads = kColumnThreads_;
  static constexpr int kSlab = kSlab_;
  // A thread's rows and columns come in runs of this many neighbours, read from shared memory at
  // once; the runs of neighbouring threads are neighbours too.
  static constexpr int kRowVector = kRowVector_, kColumnVector = kColumnVector_;
  static constexpr int kThreads = kRowThreads * kColumnThreads;
  static constexpr int kTileRows = kRows * kRowThreads, kTileColumns = kColumns * kColumnThreads;
  static constexpr int kPad = 16 / static_cast<int>(sizeof(A));
  static_assert(kThreads % kSlab == 0 && kTileRows * kSlab % kThreads == 0);
  static_assert(kRows % kRowVector == 0 && kColumns % kColumnVector == 0);

  struct Shared {
    alignas(16) A x[2][kSlab][kTileRows + kPad];
    alignas(16) A w[2][kSlab][kTileColumns + kPad];
  };

  /// The tile's row and column of a thread's i-th.
  PACKRNN_DEVICE static int row(int i) {
    const int thread = static_cast<int>(threadIdx.x) / kColumnThreads;
    return i / kRowVector * (kRowThreads * kRowVector) + thread * kRowVector + i % kRowVector;
  }
  PACKRNN_DEVICE static int column(int j) {
    const int thread = static_cast<int>(threadIdx.x) % kColumnThreads;
    return j / kColumnVector * (kColumnThreads * kColumnVector) + thread * kColumnVector +
           j % kColumnVector;
  }
};

constexpr int run_alignment(int bytes) { return bytes % 16 == 0 ? 16 : bytes % 8 == 0 ? 8 : 4; }

/// kCount neighbours from shared memory in as few loads as their alignment allows.
template <int kCount, class A>
PACKRNN_DEVICE void read_run(const A* from, A* to) {
  constexpr int kBytes = kCount * static_cast<int>(sizeof(A));
  struct alignas(run_alignment(kBytes)) Run {
    A value[kCount];
  };
  const Run run = *reinterpret_cast<const Run*>(from);
  PACKRNN_UNROLL
  for (int i = 0; i < kCount; ++i) to[i] = run.value[i];
}

/// The terms of a slab that is in shared memory: sum[i][j] += x[row i] . w[column j].
template <class Tile>
PACKRNN_DEVICE void multiply_slab(const typename Tile::Shared& shared, int turn,
                                  typename Tile::A (&sum)[Tile::kRows][Tile::kColumns]) {
  using A = typename Tile::A;
  PACKRNN_UNROLL
  for (int i = 0; i < Tile::kSlab; ++i) {
    A x[Tile::kRows], w[Tile::kColumns];
    PACKRNN_UNROLL
    for (int r = 0; r < Tile::kRows; r += Tile::kRowVector)
      read_run<Tile::kRowVector>(&shared.x[turn][i][Tile::row(r)], &x[r]);
    PACKRNN_UNROLL
    for (int c = 0; c < Tile::kColumns; c += Tile::kColumnVector)
      read_run<Tile::kColumnVector>(&shared.w[turn][i][Tile::column(c)], &w[c]);
    PACKRNN_UNROLL
    for (int r = 0; r < Tile::kRows; ++r) PACKRNN_UNROLL
    for (int c = 0; c < Tile::kColumns; ++c) sum[r][c] = fma(x[r], w[c], sum[r][c]);
  }
}

/// sum[i][j] += x[row i] . w[column j] for the tile of a block, by all its threads. x_row(r) and
/// w_row(c) give the tile's rows of x and columns of w, null where there is none; x has k_count
/// terms, w is padded with zeros to w_pitch terms, a multiple of 16 bytes, and aligned to them.
template <class Tile, class T, class XRow, class WRow>
PACKRNN_DEVICE void add_chains(typename Tile::Shared& shared,
                               typename Tile::A (&sum)[Tile::kRows][Tile::kColumns],
                               std::int64_t k_count, std::int64_t w_pitch, XRow x_row, WRow w_row) {
  using A = typename Tile::A;
  constexpr int kThreads = Tile::kThreads, kSlab = Tile::kSlab;
  constexpr int kXLoads = Tile::kTileRows * kSlab / kThreads;
  constexpr int kPer = 16 / static_cast<int>(sizeof(T));  // elements of w in a load
  constexpr int kWItems = Tile::kTileColumns * kSlab / kPer;
  constexpr int kWLoads = (kWItems + kThreads - 1) / kThreads;
  struct alignas(16) Weights {
    T value[kPer];
  };
  const int thread = static_cast<int>(threadIdx.x);
  // x lies along k, so neighbouring threads load neighbouring terms; w is loaded by neighbouring
  // threads from neighbouring rows, 16 bytes each, which avoids bank conflicts when it is stored
  // with its columns side by side.
  const int x_k = thread % kSlab;
  const T* x_from[kXLoads];
  PACKRNN_UNROLL
  for (int n = 0; n < kXLoads; ++n) x_from[n] = x_row(thread / kSlab + n * (kThreads / kSlab));
  const T* w_from[kWLoads];
  PACKRNN_UNROLL
  for (int n = 0; n < kWLoads; ++n) {
    const int item = thread + n * kThreads;
    w_from[n] = item < kWItems ? w_row(item % Tile::kTileColumns) : nullptr;
  }

  A x_next[kXLoads];
  Weights w_next[kWLoads];
  const auto fetch = [&](std::int64_t k) {
    PACKRNN_UNROLL
    for (int n = 0; n < kXLoads; ++n) {
      // Past the end w is +0, and fma(-0, +0, sum) is sum, even where that is -0.
      x_next[n] = A(-0.0);
      if (k + x_k < k_count) x_next[n] = x_from[n] != nullptr ? value_of(x_from[n][k + x_k]) : A(0);
    }
    PACKRNN_UNROLL
    for (int n = 0; n < kWLoads; ++n) {
      const std::int64_t at = k + (thread + n * kThreads) / Tile::kTileColumns * kPer;
      w_next[n] = Weights{};
      if (w_from[n] != nullptr && at < w_pitch)
        w_next[n] = *reinterpret_cast<const Weights*>(w_from[n] + at);
    }
  };

  fetch(0);
  int turn = 0;
  for (std::int64_t k = 0; k < k_count; k += kSlab, turn ^= 1) {
    PACKRNN_UNROLL
    for (int n = 0; n < kXLoads; ++n)
      shared.x[turn][x_k][thread / kSlab + n * (kThreads / kSlab)] = x_next[n];
    PACKRNN_UNROLL
    for (int n = 0; n < kWLoads; ++n) {
      const int item = thread + n * kThreads;
      if (item >= kWItems) continue;
      PACKRNN_UNROLL
      for (int i = 0; i < kPer; ++i)
        shared.w[turn][item / Tile::kTileColumns * kPer + i][item % Tile::kTileColumns] =
            value_of(w_next[n].value[i]);
    }
    // The slab is complete; and nobody reads the other one any more, for whoever is here has
    // finished it.
    __syncthreads();
    if (k + kSlab < k_count) fetch(k + kSlab);
    multiply_slab<Tile>(shared, turn, sum);
  }
}

}  // namespace packrnn::kernels::cuda

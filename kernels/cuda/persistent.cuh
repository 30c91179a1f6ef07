// What the persistent kernels on tensor cores share (persistent_*.cu: exchange of h through L2,
// cluster_*.cu: inside a cluster, persistent_backward_*.cu: the way back): how weights lie in
// registers and shared memory, the product of a tile, how a chunk of rows is walked; and of the
// forward kernels the cell. These call the same functions in the same order, so they give the same
// bits.
//
// A forward's block owns kUnits hidden units with all their gates, rows first_unit * G .. of the
// panels, over the whole of K. K is dealt to its warps in slices of kChunks chunks; the sums of the
// warps go through shared memory and are added in the order of the warps by the thread that does
// the cell. A pass is as many sequences as give each thread one cell.
#pragma once

#include "packrnn/kernels/cuda/cells.cuh"
#include "packrnn/kernels/cuda/fragments.cuh"
#include "packrnn/kernels/cuda/persistent_run.hpp"

namespace packrnn::kernels::cuda {

template <Cell kCell>
constexpr int kGatesOf = gates(kCell);  // gates() itself is not for device code

/// What the product needs to know of an instantiation: a block has kRows rows of a matrix over the
/// whole of K, and makes of their sums kUnits units of each sequence. kChunks is the same for all
/// that may run a shape (chunks_per_warp()), the rest is free: kUnits, and kKept chunks of the
/// weights in registers, the others in shared memory.
template <class Product_, int kRows_, int kUnits_, int kChunks_, int kKept_>
struct Tiling {
  using Product = Product_;
  using Piece = Fragment<Product>;
  static constexpr int kRows = kRows_, kUnits = kUnits_, kChunks = kChunks_, kKept = kKept_;
  static constexpr int kStored = kChunks - kKept;
  static constexpr int kThreads = kPersistentThreads;
  static constexpr int kTiles = (kRows + kTileRows - 1) / kTileRows;
  static constexpr int kPassRows = kThreads / kUnits;  // sequences of a pass
  static constexpr int kPassTiles = kPassRows / kTileColumns;
  // Sums of a sequence lie side by side, so that the thread of a cell reads all of them at once.
  // With 4 floats more, the 8 rows and 4 columns that a warp stores together are in different
  // banks.
  static constexpr int kPitch = kRows + 4;
  static constexpr int kStoredVectors = kStored * kTiles * 2 * Piece::kVectors;  // of a lane
  /// While a tile is multiplied the next one's state is on its way, where there are registers for
  /// it.
  static constexpr bool kAhead = kPassTiles > 1 &&
                                 (kKept * kTiles * 2 + 2 * kChunks) * 4 * Piece::kVectors <= 160;
  static constexpr bool kHighRows = kRows % kTileRows == 0;  // else the last tile is half empty
  static_assert(kPassRows % kTileColumns == 0 && kKept >= 1 && kStored >= 0);

  // Shared memory of a warp: stored weights, and sums, of which there are two buffers.
  static constexpr int kStoredBytes = kStoredVectors * 32 * static_cast<int>(sizeof(U32x4));
  static constexpr int kWarpSums = kPassRows * kPitch;
};

/// An instantiation of the forward kernels: rows are the gates of kUnits units, K is S. rnn_tanh
/// stands for rnn_relu too.
template <class Product, Cell kCell_, int kUnits, int kChunks, int kKept>
struct Variant : Tiling<Product, kUnits * kGatesOf<kCell_>, kUnits, kChunks, kKept> {
  static constexpr Cell kCell = kCell_;
  static constexpr int kGates = kGatesOf<kCell>;
};

/// A thread's place.
template <class V>
struct Place {
  int warp, lane, group, quad;  // lane = 4 group + quad
  int unit, row;                // of its cell: in the block, in the pass

  PACKRNN_DEVICE Place() {
    const int thread = static_cast<int>(threadIdx.x);
    warp = thread / 32;
    lane = thread % 32;
    group = lane / 4;
    quad = lane % 4;
    unit = thread % V::kUnits;
    row = thread / V::kUnits;
  }
  /// First of its 8 elements of K.
  PACKRNN_DEVICE int k() const { return warp * V::kChunks * kChunk + 8 * quad; }
  /// How many of its chunks begin before `end`.
  PACKRNN_DEVICE int chunks_before(int end) const {
    return max(0, min((end - k() + kChunk - 1) / kChunk, V::kChunks));
  }
};

/// The slice of a matrix that a lane keeps.
template <class V>
struct Weights {
  using Product = typename V::Product;
  using Piece = typename V::Piece;

  Piece kept[V::kKept][V::kTiles][2];
  U32x4* stored;  // of shared memory, with a stride of 32

  /// Of `matrix`, `rows` rows of `pitch` elements, the block's begin with `first_row`.
  PACKRNN_DEVICE Weights(const void* matrix, std::int64_t pitch, int first_row, int rows, int warps,
                         const Place<V>& place, U32x4* shared) {
    stored = shared + static_cast<std::ptrdiff_t>(place.warp) * V::kStoredVectors * 32 + place.lane;
    if (place.warp >= warps) return;
    const int chunks = place.chunks_before(static_cast<int>(pitch));
    const auto load = [&](int chunk, int tile, int half) {
      const int row = tile * kTileRows + half * 8 + place.group;
      if (chunk >= chunks || row >= V::kRows || first_row + row >= rows)
        return zero_fragment<Product>();
      auto piece = load_fragment<Product>(static_cast<const char*>(matrix) +
                                          ((first_row + row) * pitch + place.k() + chunk * kChunk) *
                                              Product::kBytes);
      change_words<Product, Product::weight>(piece);
      return piece;
    };
    for (int chunk = V::kKept; chunk < V::kChunks; ++chunk)
      for (int tile = 0; tile < V::kTiles; ++tile)
        for (int half = 0; half < 2; ++half) {
          __syncwarp();  // see below
          const Piece piece = load(chunk, tile, half);
          PACKRNN_UNROLL
          for (int v = 0; v < Piece::kVectors; ++v)
            stored[place_of(chunk, tile, half, v)] = piece.vector[v];
        }
    PACKRNN_UNROLL
    for (int chunk = 0; chunk < V::kKept; ++chunk) PACKRNN_UNROLL
    for (int tile = 0; tile < V::kTiles; ++tile) {
      __syncwarp();  // or the compiler keeps the addresses of all tiles in registers at once
      PACKRNN_UNROLL
      for (int half = 0; half < 2; ++half) kept[chunk][tile][half] = load(chunk, tile, half);
    }
  }

  PACKRNN_DEVICE static int place_of(int chunk, int tile, int half, int v) {
    return ((((chunk - V::kKept) * V::kTiles + tile) * 2 + half) * Piece::kVectors + v) * 32;
  }
  PACKRNN_DEVICE Piece get(int chunk, int tile, int half) const {
    if (!V::kHighRows && tile + 1 == V::kTiles && half == 1) return zero_fragment<Product>();
    if (chunk < V::kKept) return kept[chunk][tile][half];
    Piece piece;
    PACKRNN_UNROLL
    for (int v = 0; v < Piece::kVectors; ++v)
      piece.vector[v] = stored[place_of(chunk, tile, half, v)];
    return piece;
  }

  /// Adds this warp's products of a tile of rows with 8 sequences, of kCount chunks from `first`
  /// on.
  template <int kCount>
  PACKRNN_DEVICE void add(float (&sum)[2][4], int tile, int first,
                          const Piece (&state)[kCount]) const {
    PACKRNN_UNROLL
    for (int chunk = 0; chunk < kCount; ++chunk)
      multiply_chunk<Product>(sum, get(first + chunk, tile, 0), get(first + chunk, tile, 1),
                              state[chunk]);
  }
  /// Assigns the tile's sums to `sums`, [8][kPitch] of shared memory.
  PACKRNN_DEVICE static void store(const float (&sum)[2][4], int tile, const Place<V>& place,
                                   float* sums) {
    float* const column = sums + 2 * place.quad * V::kPitch + place.group + tile * kTileRows;
    column[0] = sum[0][0] + sum[1][0];
    column[V::kPitch] = sum[0][1] + sum[1][1];
    if (V::kHighRows || tile + 1 < V::kTiles) {
      column[8] = sum[0][2] + sum[1][2];
      column[V::kPitch + 8] = sum[0][3] + sum[1][3];
    }
  }
  /// The same for all of them.
  PACKRNN_DEVICE void multiply(const Piece (&state)[V::kChunks], const Place<V>& place,
                               float* sums) const {
    PACKRNN_UNROLL
    for (int tile = 0; tile < V::kTiles; ++tile) {
      float sum[2][4] = {};
      add(sum, tile, 0, state);
      store(sum, tile, place, sums);
    }
  }
};

/// Walks a chunk of rows from its first step of the range to its last, as ChunkStep describes them.
/// Packed rows are counted from the first of the range. The tables' next entries are loaded a step
/// ahead.
struct ChunkWalk {
  int t, steps;             // the step, and how many there are from here to the end
  int rows, before, after;  // see ChunkStep; `before` leaves out what was before the range
  int y_row, y_before;
  int y_next = 0;  // at the step after, if there is one

  PACKRNN_DEVICE ChunkWalk(const PersistentLaunch& run, bool reverse, int row, int chunk)
      : steps(min(run.layout.lengths[row], run.last_step) - run.first_step) {
    t = reverse ? run.first_step + steps - 1 : run.first_step;
    const ChunkStep step(run.layout, reverse, t, row, chunk);
    rows = step.rows;
    before = 0;
    after = step.after;
    y_row = packed(run, t, row);
    y_before = 0;
    fetch(run, reverse, row, chunk);
  }

  PACKRNN_DEVICE void advance(const PersistentLaunch& run, bool reverse, int row, int chunk) {
    --steps;
    y_before = y_row;
    y_row = y_next;
    if (reverse) {
      before = rows;
      rows = next_alive;
      --t;
      after = t > 0 ? rows : 0;
    } else {
      rows = after;
      before = rows;
      after = next_alive;
      ++t;
    }
    fetch(run, reverse, row, chunk);
  }

 private:
  int next_alive = 0;  // backwards at the next step, else at the one after it

  PACKRNN_DEVICE static int packed(const PersistentLaunch& run, int step, int row) {
    return static_cast<int>(run.layout.offsets[step] - run.layout.offsets[run.first_step]) + row;
  }
  PACKRNN_DEVICE void fetch(const PersistentLaunch& run, bool reverse, int row, int chunk) {
    if (steps <= 1) return;
    next_alive = ChunkStep::alive(run.layout, reverse ? t - 1 : t + 2, row, chunk);
    y_next = packed(run, reverse ? t - 1 : t + 1, row);
  }
};

/// Element `at` of an array of the variant's type.
template <class V>
PACKRNN_DEVICE void store_element(void* array, std::int64_t at, std::uint32_t bits) {
  if constexpr (V::Product::kBytes == 2)
    static_cast<std::uint16_t*>(array)[at] = static_cast<std::uint16_t>(bits);
  else
    static_cast<std::uint32_t*>(array)[at] = bits;
}

/// One unit of one sequence, from the sums of the warps to everything that is stored of it.
template <class V>
struct CellWork {
  float input[V::kGates];  // x W_ih^T + bias
  float c = 0, h = 0;      // before the step

  /// Requests what does not depend on h. `packed` is the row of the range, `sorted` that of the
  /// sorted batch.
  PACKRNN_DEVICE void load(const PersistentRun& run, const PersistentDirection& direction,
                           std::int64_t packed, std::int64_t sorted, int unit) {
    const float* const gx = direction.gx + (packed * run.units + unit) * V::kGates;
    if constexpr (V::kGates == 4) {
      const F32x4 all = *reinterpret_cast<const F32x4*>(gx);
      input[0] = all.x, input[1] = all.y, input[2] = all.z, input[3] = all.w;
    } else {
      PACKRNN_UNROLL
      for (int g = 0; g < V::kGates; ++g) input[g] = gx[g];
    }
    if constexpr (V::kCell == Cell::lstm) c = direction.c_state[sorted * run.units + unit];
  }

  /// The new h, rounded to what is stored; updates c. `sums` are those of the first warp for this
  /// sequence and unit, `stride` is from warp to warp.
  PACKRNN_DEVICE std::uint32_t finish(const float* sums, int stride, int warps, float bias_n,
                                      bool relu) {
    float sum[V::kGates] = {};
    PACKRNN_UNROLL
    for (int warp = 0; warp < kPersistentWarps; ++warp) {
      if (warp >= warps) continue;
      const float* const from = sums + warp * stride;
      if constexpr (V::kGates == 4) {
        const F32x4 all = *reinterpret_cast<const F32x4*>(from);
        sum[0] += all.x, sum[1] += all.y, sum[2] += all.z, sum[3] += all.w;
      } else {
        PACKRNN_UNROLL
        for (int g = 0; g < V::kGates; ++g) sum[g] += from[g];
      }
    }
    if constexpr (V::kCell == Cell::gru) {
      sum[0] += input[0];
      sum[1] += input[1];
      sum[2] += bias_n;
      h = gru_cell<FastMath>(sum, input[2], h);
    } else {
      PACKRNN_UNROLL
      for (int g = 0; g < V::kGates; ++g) sum[g] += input[g];
      if constexpr (V::kCell == Cell::lstm)
        h = lstm_cell<FastMath>(sum, c);
      else
        h = relu ? rnn_cell<true, FastMath>(sum[0]) : rnn_cell<false, FastMath>(sum[0]);
    }
    return V::Product::bits(h);
  }

  /// Everything but the mailbox. `packed` is the packed row; `last`: the sequence ends with this
  /// step.
  PACKRNN_DEVICE void store(const PersistentRun& run, const PersistentDirection& direction,
                            std::uint32_t bits, std::int64_t packed, std::int64_t sorted, int unit,
                            bool last) const {
    if constexpr (V::kCell == Cell::lstm) {
      direction.c_state[sorted * run.units + unit] = c;
      if (direction.cells != nullptr && unit < run.hidden)
        direction.cells[packed * run.ldcells + unit] = c;
    }
    if (direction.y_beside != nullptr && unit < run.hidden)
      store_element<V>(direction.y_beside, packed * run.ldy + unit, bits);
    if (!last || unit >= run.hidden) return;
    const std::int64_t at = std::int64_t{run.layout.sorted_indices[sorted]} * run.hidden + unit;
    store_element<V>(direction.h_n, at, bits);
    if constexpr (V::kCell == Cell::lstm) direction.c_n[at] = c;
  }
};

}  // namespace packrnn::kernels::cuda

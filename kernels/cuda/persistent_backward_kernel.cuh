// The way back through the whole recurrence in one launch: dh = dy + W_hh^T dgates of the step that
// the forward made after this one, then the cell. Kernel G with other roles (persistent_kernel.cuh
// explains groups, chunks and passes):
//
// A block owns kUnits units of h, which are rows of W_hh^T, over the whole of K = G * U. dgates is
// the mailbox: every block needs all parts that reach h of all units, and publishes those of its
// own units. A chunk is walked against the order of the forward; rows join it at their own last
// step of that order, with dh_n and dc_n, and after their first step only dh_0 is left to be made,
// one product later.
//
// An exchange carries G times the bytes of the forward's, and a block's products have G times the
// terms for as many weights. What else comes from the later step concerns one unit alone and stays
// in its block: dc, or the part of a GRU's dh that goes past the products.
#pragma once

#include "packrnn/kernels/cuda/cells_backward.cuh"
#include "packrnn/kernels/cuda/launch.cuh"
#include "packrnn/kernels/cuda/persistent.cuh"
#include "packrnn/kernels/cuda/persistent_backward_run.hpp"
#include "packrnn/kernels/cuda/polling.cuh"

namespace packrnn::kernels::cuda {

/// One instantiation; for every cell, which matters little to its size.
template <class Product, int kUnits, int kChunks, int kKept>
struct BackwardVariant : Tiling<Product, kUnits, kUnits, kChunks, kKept> {
  /// Chunks that are polled for and multiplied at once: all, if 64 registers hold them, else as
  /// many as 32 do.
  static constexpr int kBite = kChunks * Product::kBytes <= 32 ? kChunks : 16 / Product::kBytes;
  static constexpr int kBites = kChunks / kBite;
  /// Of what stays in a block from step to step.
  static constexpr int kCarriedBytes = kMostChunkRows * kUnits * static_cast<int>(sizeof(float));
  static_assert(kUnits % kTileRows == 0, "tiles are full");
  static_assert(kBites == 1 || !BackwardVariant::kAhead);
};

/// One unit of one sequence: what the cell's derivative needs of the forward's step.
template <class Product>
struct CellBack {
  float gate[4];  // LSTM, GRU
  float after;    // LSTM: c, RNN: h
  float before;   // LSTM: c, GRU: h
  float dy;

  /// `packed` is the packed row, `earlier` that of the step before in the forward's order, negative
  /// where there is none; `caller` is the sequence.
  PACKRNN_DEVICE void load(const PersistentBackwardRun& run, const BackwardDirectionRun& direction,
                           std::int64_t packed, std::int64_t earlier, std::int64_t caller,
                           int unit) {
    const std::int64_t at = packed * run.hidden + unit;
    dy = direction.dy != nullptr ? element(direction.dy, packed * run.ldy + unit) : 0.0F;
    if (run.cell == Cell::lstm || run.cell == Cell::gru) {
      const F32x4 all = static_cast<const F32x4*>(direction.gates)[packed * run.units + unit];
      gate[0] = all.x, gate[1] = all.y, gate[2] = all.z, gate[3] = all.w;
    }
    if (run.cell == Cell::lstm) {
      const auto* const cells = static_cast<const float*>(direction.cells);
      const auto* const c_0 = static_cast<const float*>(direction.c_0);
      after = cells[at];
      if (earlier >= 0)
        before = cells[earlier * run.hidden + unit];
      else
        before = c_0 != nullptr ? c_0[caller * run.hidden + unit] : 0.0F;
    } else if (run.cell == Cell::gru) {
      before = element(direction.before, at);
    } else {
      after = element(direction.y, packed * run.ldy + unit);
    }
  }

  /// Assigns the cell's parts of dgates to the first of d_gate. `dh` is without dy; `carried` comes
  /// from the later step and becomes what goes to the earlier one: dc of an LSTM, of a GRU the part
  /// of dh that goes past the products.
  PACKRNN_DEVICE void finish(Cell cell, float dh, float& carried, float (&d_gate)[4]) const {
    dh += dy;
    if (cell == Cell::lstm)
      lstm_back<FastMath>(dh, gate, after, before, carried, d_gate);
    else if (cell == Cell::gru)
      carried = gru_back(dh, gate, before, d_gate);
    else
      d_gate[0] = rnn_back(cell == Cell::rnn_relu, dh, after);
  }

 private:
  PACKRNN_DEVICE static float element(const void* array, std::int64_t at) {
    if constexpr (Product::kBytes == 2)
      return Product::value(static_cast<const std::uint16_t*>(array)[at]);
    else
      return Product::value(static_cast<const std::uint32_t*>(array)[at]);
  }
};

template <class V>
__global__ void __launch_bounds__(V::kThreads, 1)
    persistent_backward_kernel(const __grid_constant__ PersistentBackwardRun run) {
  using Product = typename V::Product;
  using Piece = typename V::Piece;
  PACKRNN_DYNAMIC_SHARED(unsigned char, shared);
  PACKRNN_SHARED(ChunkDealer, dealer);
  const Place<V> place;
  const int copy = static_cast<int>(blockIdx.x) / run.blocks;
  const int first_unit = static_cast<int>(blockIdx.x) % run.blocks * V::kUnits;
  const BackwardDirectionRun& direction = run.direction[copy / run.groups];
  const int unit = first_unit + place.unit;
  const bool owned = unit < run.units, real = unit < run.hidden;
  const Weights<V> weights(static_cast<const char*>(direction.panels) + run.w_hh * Product::kBytes,
                           run.pitch_hh, first_unit, run.hidden, run.warps, place,
                           reinterpret_cast<U32x4*>(shared));
  auto* const sums = reinterpret_cast<float*>(shared + run.warps * V::kStoredBytes);
  // Of each row of the chunk and unit of the block; touched by one thread alone.
  float* const carried = sums + 2 * run.warps * V::kWarpSums;
  const int chunks = place.chunks_before(run.terms);
  const std::int64_t mail_pitch = std::int64_t{run.parts} * run.units * Product::kBytes;
  auto* const mailbox = static_cast<char*>(direction.dgates);
  bool in_vain = false;
  int buffer = 0;

  dealer.start(run.groups);
  const auto next_chunk = [&] {
    return dealer.deal(run.layout, run.first_step, run.last_step, run.chunk_rows, run.groups,
                       copy % run.groups);
  };
  for (int first = next_chunk(); first >= 0; first = next_chunk()) {
    const int chunk_rows = min(run.chunk_rows, run.layout.batch - first);
    ChunkWalk walk(run, !direction.reverse, first, chunk_rows);
    // Rows that were walked the step before, where their dgates are, and which step that was.
    int waiting = 0, mail_row = 0, mail_step = 0;
    for (;;) {
      const int rows = walk.steps > 0 ? walk.rows : 0;
      // Rows whose last step was the one before want their dh_0.
      const int all = direction.dh_0 != nullptr ? max(rows, waiting) : rows;
      waiting = min(waiting, all);
      for (int pass = 0; pass < all; pass += V::kPassRows) {
        const int row = pass + place.row;
        const bool live = real && row < rows;
        const std::int64_t caller =
            real && row < all ? std::int64_t{run.layout.sorted_indices[first + row]} : 0;
        CellBack<Product> cell{};
        if (live)
          cell.load(run, direction, walk.y_row + row, row < walk.after ? walk.y_next + row : -1,
                    caller, unit);

        float* const pass_sums = sums + buffer * run.warps * V::kWarpSums;
        if (place.warp < run.warps) {
          const auto source_of = [&](int tile) {
            const int r = pass + tile * kTileColumns + place.group;
            if (r >= waiting) return StateSource{};
            return StateSource{
                mailbox + (std::int64_t{mail_row} + r) * mail_pitch + place.k() * Product::kBytes,
                true};
          };
          float* const warp_sums = pass_sums + place.warp * V::kWarpSums;
          const int tiles = min(V::kPassTiles, (waiting - pass + kTileColumns - 1) / kTileColumns);
          StateSource source;
          Piece state[V::kBite], ahead[V::kBite];
          if (V::kAhead && tiles > 0) {
            source = source_of(0);
            look(ahead, source, chunks);
          }
          for (int tile = 0; tile < tiles; ++tile) {
            float sum[V::kTiles][2][4] = {};
            if constexpr (!V::kAhead) source = source_of(tile);
            PACKRNN_UNROLL
            for (int bite = 0; bite < V::kBites; ++bite) {
              const int begin = bite * V::kBite;
              StateSource part = source;
              if (bite > 0 && part.polled) part.from += begin * kChunk * Product::kBytes;
              if constexpr (V::kAhead) {
                PACKRNN_UNROLL
                for (int chunk = 0; chunk < V::kBite; ++chunk) state[chunk] = ahead[chunk];
              } else {
                look(state, part, chunks - begin);
              }
              wait_for(state, part, chunks - begin, run, in_vain, mail_step,
                       first + pass + tile * kTileColumns, place.warp);
              if (V::kAhead && tile + 1 < tiles) {
                source = source_of(tile + 1);
                look(ahead, source, chunks);
              }
              PACKRNN_UNROLL
              for (int t = 0; t < V::kTiles; ++t) weights.add(sum[t], t, begin, state);
            }
            PACKRNN_UNROLL
            for (int t = 0; t < V::kTiles; ++t)
              weights.store(sum[t], t, place, warp_sums + tile * kTileColumns * V::kPitch);
          }
        }
        // All sums are there. The other buffer's readers are done: they are here too.
        __syncthreads();
        buffer ^= 1;

        float d_gate[4] = {};
        if (real && row < all) {
          float& carry = carried[row * V::kUnits + place.unit];
          const std::int64_t state = caller * run.hidden + unit;
          float dh = 0;
          if (row < waiting) {
            const float* const from = pass_sums + place.row * V::kPitch + place.unit;
            PACKRNN_UNROLL
            for (int warp = 0; warp < kPersistentWarps; ++warp)
              if (warp < run.warps) dh += from[warp * V::kWarpSums];
          } else {
            carry = 0;
            if (direction.dh_n != nullptr) dh = static_cast<const float*>(direction.dh_n)[state];
            if (run.cell == Cell::lstm && direction.dc_n != nullptr)
              carry = static_cast<const float*>(direction.dc_n)[state];
          }
          if (run.cell == Cell::gru) dh += carry;
          if (row >= rows) {
            static_cast<float*>(direction.dh_0)[state] = dh;
          } else {
            cell.finish(run.cell, dh, carry, d_gate);
            if (run.cell == Cell::lstm && direction.dc_0 != nullptr && row >= walk.after)
              static_cast<float*>(direction.dc_0)[state] = carry;
          }
        }
        auto* const mail = reinterpret_cast<std::uint32_t*>(
            mailbox + (std::int64_t{walk.y_row} + row) * mail_pitch);
        PACKRNN_UNROLL
        for (int part = 0; part < 4; ++part) {
          if (part >= run.parts) continue;
          std::uint32_t word = Product::bits(d_gate[part]);
          if constexpr (Product::kBytes == 2) word |= __shfl_xor_sync(0xFFFFFFFFU, word, 1) << 16;
          if (!owned || row >= rows) continue;
          const int at = part * run.units + unit;
          if constexpr (Product::kBytes == 4)
            st_relaxed(mail + at, word);
          else if (unit % 2 == 0)
            st_relaxed(mail + at / 2, word);
        }
      }
      if (rows == 0) break;
      waiting = rows;
      mail_row = walk.y_row;
      mail_step = walk.t;
      walk.advance(run, !direction.reverse, first, chunk_rows);
    }
  }
}

/// The instantiation as the host sees it.
template <class V>
PersistentBackwardVariant persistent_backward_variant() {
  PersistentBackwardVariant variant;
  variant.units = V::kUnits;
  variant.chunks = V::kChunks;
  variant.fixed_bytes = (sizeof(ChunkDealer) + 127) / 128 * 128;
  variant.block_bytes = V::kCarriedBytes;
  variant.warp_bytes = V::kStoredBytes + 2 * V::kWarpSums * static_cast<int>(sizeof(float));
  variant.weight_bytes = V::kStoredBytes;
  variant.resident = [](int device, std::size_t shared) {
    return resident_blocks(device, PACKRNN_KERNEL(persistent_backward_kernel<V>), V::kThreads,
                           shared);
  };
  variant.launch = [](gpu::Stream stream, const gpu::LaunchShape& shape,
                      const PersistentBackwardRun& run) {
    launch(stream, PACKRNN_KERNEL(persistent_backward_kernel<V>), shape, run);
  };
  return variant;
}

template <class... V>
PersistentBackwardVariants persistent_backward_variants() {
  return {persistent_backward_variant<V>()...};
}

/// Those of a 16-bit product: a chunk of weights takes half a register per unit, and about 128 can
/// be spent.
template <class P>
PersistentBackwardVariants persistent_backward_variants_of_16_bits() {
  return persistent_backward_variants<
      BackwardVariant<P, 16, 1, 1>, BackwardVariant<P, 32, 1, 1>, BackwardVariant<P, 16, 2, 2>,
      BackwardVariant<P, 32, 2, 2>, BackwardVariant<P, 16, 4, 4>, BackwardVariant<P, 32, 4, 4>,
      BackwardVariant<P, 16, 8, 8>, BackwardVariant<P, 32, 8, 8>, BackwardVariant<P, 16, 16, 12>,
      BackwardVariant<P, 32, 16, 4>, BackwardVariant<P, 16, 32, 8>>();
}

/// Those of f32, whose weights and states take twice the registers.
template <class P>
PersistentBackwardVariants persistent_backward_variants_of_32_bits() {
  return persistent_backward_variants<
      BackwardVariant<P, 16, 1, 1>, BackwardVariant<P, 32, 1, 1>, BackwardVariant<P, 16, 2, 2>,
      BackwardVariant<P, 32, 2, 2>, BackwardVariant<P, 16, 4, 4>, BackwardVariant<P, 32, 4, 3>,
      BackwardVariant<P, 16, 8, 6>, BackwardVariant<P, 32, 8, 2>, BackwardVariant<P, 16, 16, 6>>();
}

}  // namespace packrnn::kernels::cuda

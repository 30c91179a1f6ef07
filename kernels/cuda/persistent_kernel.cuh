// Kernel G: the whole recurrence in one launch, W_hh on chip, h exchanged through L2.
//
// run.groups copies of W_hh per direction, each spread over run.blocks blocks that must all be
// resident (cooperative launch). A group is dealt chunks of the sorted batch and walks each from
// its first step to its last. In a step every block needs the h of all units of the step before and
// makes that of its own; it publishes them in the mailbox and polls for what it needs, so that
// there is no barrier between blocks (mailbox.cuh). A warp polls only for its own slice of K.
//
// Bound by latency: publish and see through L2, a chain of products, a block barrier, the cell. The
// loads that do not depend on h are under way before the polling begins.
#pragma once

#include "packrnn/kernels/cuda/launch.cuh"
#include "packrnn/kernels/cuda/persistent.cuh"
#include "packrnn/kernels/cuda/polling.cuh"

namespace packrnn::kernels::cuda {

/// h of one unit, of a row of the mailbox that is complete or of another array of its type.
template <class V>
PACKRNN_DEVICE float read_state(const void* row, int unit) {
  const auto* const words = static_cast<const std::uint32_t*>(row);
  if constexpr (V::Product::kBytes == 4) return V::Product::value(ld_relaxed(words + unit));
  const std::uint32_t pair = ld_relaxed(words + unit / 2);
  return V::Product::value(unit % 2 == 0 ? pair & 0xFFFFU : pair >> 16);
}

template <class V>
__global__ void __launch_bounds__(V::kThreads, 1)
    persistent_kernel(const __grid_constant__ PersistentRun run) {
  using Product = typename V::Product;
  using Piece = typename V::Piece;
  PACKRNN_DYNAMIC_SHARED(unsigned char, shared);
  PACKRNN_SHARED(ChunkDealer, dealer);
  const Place<V> place;
  const int copy = static_cast<int>(blockIdx.x) / run.blocks;
  const int first_unit = static_cast<int>(blockIdx.x) % run.blocks * V::kUnits;
  const PersistentDirection& direction = run.direction[copy / run.groups];
  const int unit = first_unit + place.unit;
  const bool owned = unit < run.units;
  const float bias_n = V::kCell == Cell::gru && owned ? direction.bias_n[unit] : 0.0F;
  const Weights<V> weights(direction.w_hh, run.pitch_hh, first_unit * V::kGates,
                           run.units * V::kGates, run.warps, place,
                           reinterpret_cast<U32x4*>(shared));
  auto* const sums = reinterpret_cast<float*>(shared + run.warps * V::kStoredBytes);
  const int chunks = place.chunks_before(run.units);
  const std::int64_t mail_pitch = run.mail_pitch * Product::kBytes;
  char* const mailbox = static_cast<char*>(direction.mail) +
                        (run.mail_is_y ? run.layout.offsets[run.first_step] * mail_pitch : 0);
  bool in_vain = false;
  int buffer = 0;

  dealer.start(run.groups);
  const auto next_chunk = [&] {
    return dealer.deal(run.layout, run.first_step, run.last_step, run.chunk_rows, run.groups,
                       copy % run.groups);
  };
  for (int first = next_chunk(); first >= 0; first = next_chunk()) {
    const int chunk_rows = min(run.chunk_rows, run.layout.batch - first);
    ChunkWalk walk(run, direction.reverse, first, chunk_rows);
    for (; walk.steps > 0; walk.advance(run, direction.reverse, first, chunk_rows)) {
      // Of row r of the chunk, before this step.
      const auto state_of = [&](int r) -> const char* {
        if (r < walk.before) return mailbox + std::int64_t{walk.y_before + r} * mail_pitch;
        return static_cast<const char*>(direction.start) +
               static_cast<std::int64_t>(first + r) * (run.units * Product::kBytes);
      };
      for (int pass = 0; pass < walk.rows; pass += V::kPassRows) {
        const int row = pass + place.row;
        const bool live = owned && row < walk.rows;
        CellWork<V> work{};
        // One lane of a pair has published the h of both, which they now read back.
        if constexpr (V::kCell == Cell::gru && Product::kBytes == 2) __syncwarp();
        if (live) {
          work.load(run, direction, walk.y_row + row, first + row, unit);
          if constexpr (V::kCell == Cell::gru) work.h = read_state<V>(state_of(row), unit);
        }

        float* const pass_sums = sums + buffer * run.warps * V::kWarpSums;
        if (place.warp < run.warps) {
          const auto source_of = [&](int tile) {
            const int r = pass + tile * kTileColumns + place.group;
            if (r >= walk.rows) return StateSource{};
            return StateSource{state_of(r) + place.k() * Product::kBytes, r < walk.before};
          };
          float* const warp_sums = pass_sums + place.warp * V::kWarpSums;
          const int tiles =
              min(V::kPassTiles, (walk.rows - pass + kTileColumns - 1) / kTileColumns);
          StateSource source;
          Piece state[V::kChunks], ahead[V::kChunks];
          if constexpr (V::kAhead) {
            source = source_of(0);
            look(ahead, source, chunks);
          }
          for (int tile = 0; tile < tiles; ++tile) {
            if constexpr (V::kAhead) {
              PACKRNN_UNROLL
              for (int chunk = 0; chunk < V::kChunks; ++chunk) state[chunk] = ahead[chunk];
            } else {
              source = source_of(tile);
              look(state, source, chunks);
            }
            wait_for(state, source, chunks, run, in_vain, walk.t,
                     first + pass + tile * kTileColumns, place.warp);
            if (V::kAhead && tile + 1 < tiles) {
              source = source_of(tile + 1);
              look(ahead, source, chunks);
            }
            weights.multiply(state, place, warp_sums + tile * kTileColumns * V::kPitch);
          }
        }
        // All sums are there. The other buffer's readers are done: they are here too.
        __syncthreads();
        buffer ^= 1;

        std::uint32_t bits = 0;
        if (live)
          bits = work.finish(pass_sums + place.row * V::kPitch + place.unit * V::kGates,
                             V::kWarpSums, run.warps, bias_n, run.relu);
        std::uint32_t word = bits;
        if constexpr (Product::kBytes == 2) word |= __shfl_xor_sync(0xFFFFFFFFU, bits, 1) << 16;
        if (!live) continue;
        const std::int64_t packed = walk.y_row + row;  // of the range
        auto* const mail = reinterpret_cast<std::uint32_t*>(mailbox + packed * mail_pitch);
        if constexpr (Product::kBytes == 4)
          st_relaxed(mail + unit, word);
        else if (unit % 2 == 0)
          st_relaxed(mail + unit / 2, word);
        work.store(run, direction, bits, run.layout.offsets[run.first_step] + packed, first + row,
                   unit, row >= walk.after);
      }
    }
  }
}

/// The instantiation as the host sees it.
template <class V>
PersistentVariant persistent_variant() {
  PersistentVariant variant;
  variant.cell = V::kCell;
  variant.units = V::kUnits;
  variant.chunks = V::kChunks;
  variant.fixed_bytes = (sizeof(ChunkDealer) + 127) / 128 * 128;
  variant.block_bytes = 0;
  variant.warp_bytes = V::kStoredBytes + 2 * V::kWarpSums * static_cast<int>(sizeof(float));
  variant.weight_bytes = V::kStoredBytes;
  variant.resident = [](int device, std::size_t shared) {
    return resident_blocks(device, PACKRNN_KERNEL(persistent_kernel<V>), V::kThreads, shared);
  };
  variant.launch = [](gpu::Stream stream, const gpu::LaunchShape& shape, const PersistentRun& run) {
    launch(stream, PACKRNN_KERNEL(persistent_kernel<V>), shape, run);
  };
  return variant;
}

template <class... V>
PersistentVariants persistent_variants() {
  return {persistent_variant<V>()...};
}

/// Those of a 16-bit product: a chunk of weights takes 2 registers per unit in an LSTM and 1.5 in a
/// GRU, and about 128 can be spent.
template <class Product>
PersistentVariants persistent_variants_of_16_bits() {
  constexpr Cell kLstm = Cell::lstm, kGru = Cell::gru, kRnn = Cell::rnn_tanh;
  return persistent_variants<Variant<Product, kLstm, 8, 1, 1>, Variant<Product, kLstm, 32, 1, 1>,
                             Variant<Product, kLstm, 8, 2, 2>, Variant<Product, kLstm, 32, 2, 2>,
                             Variant<Product, kLstm, 8, 4, 4>, Variant<Product, kLstm, 16, 4, 4>,
                             Variant<Product, kLstm, 32, 4, 2>, Variant<Product, kLstm, 16, 8, 4>,
                             Variant<Product, kGru, 8, 1, 1>, Variant<Product, kGru, 32, 1, 1>,
                             Variant<Product, kGru, 8, 2, 2>, Variant<Product, kGru, 32, 2, 2>,
                             Variant<Product, kGru, 8, 4, 4>, Variant<Product, kGru, 16, 4, 4>,
                             Variant<Product, kGru, 32, 4, 2>, Variant<Product, kGru, 16, 8, 4>,
                             Variant<Product, kRnn, 32, 1, 1>, Variant<Product, kRnn, 32, 2, 2>,
                             Variant<Product, kRnn, 32, 4, 4>, Variant<Product, kRnn, 32, 8, 8>>();
}

}  // namespace packrnn::kernels::cuda

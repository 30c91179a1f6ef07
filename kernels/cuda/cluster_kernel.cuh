// Kernel C: the whole recurrence in one launch, W_hh on chip, h exchanged inside a cluster.
//
// As kernel G (persistent_kernel.cuh), but a group is a cluster: the hardware starts all of its
// blocks together, so that no cooperative launch is needed, and each has the h of all units in its
// own shared memory. A block sends its part of h to all blocks of the cluster by asynchronous
// stores, 16 bytes at a time, that a transaction barrier of the receiver counts.
//
// There are two buffers of h. A block sends the h of step s when it has received all of that of
// step s - 1, which nobody sends before being done with those rows of step s - 2, in the same
// buffer, and with that buffer's barrier. That says nothing of rows of an earlier chunk, so there
// is a barrier of the cluster between chunks.
#pragma once

#include "packrnn/kernels/cuda/cluster.hpp"
#include "packrnn/kernels/cuda/launch.cuh"
#include "packrnn/kernels/cuda/persistent.cuh"

namespace packrnn::kernels::cuda {

#if PACKRNN_HAS_CLUSTER

/// What lanes with neighbouring units of one sequence send: their h, packed.
template <class V>
struct Parcel {
  static constexpr int kLanes = 16 / V::Product::kBytes;

  PACKRNN_DEVICE static U32x4 pack(std::uint32_t bits) {
    constexpr unsigned kAll = 0xFFFFFFFFU;
    if constexpr (V::Product::kBytes == 4)
      return {__shfl_sync(kAll, bits, 0, kLanes), __shfl_sync(kAll, bits, 1, kLanes),
              __shfl_sync(kAll, bits, 2, kLanes), __shfl_sync(kAll, bits, 3, kLanes)};
    const std::uint32_t pair = bits | __shfl_xor_sync(kAll, bits, 1) << 16;  // in even lanes
    return {__shfl_sync(kAll, pair, 0, kLanes), __shfl_sync(kAll, pair, 2, kLanes),
            __shfl_sync(kAll, pair, 4, kLanes), __shfl_sync(kAll, pair, 6, kLanes)};
  }

  /// To where `target` lies in every block; the lanes share out the blocks.
  PACKRNN_DEVICE static void send(void* target, std::uint64_t* barrier, const U32x4& parcel,
                                  int unit, int blocks) {
    for (int rank = unit % kLanes; rank < blocks; rank += kLanes)
      st_async_v4(target, barrier, static_cast<std::uint32_t>(rank), parcel);
  }
};

/// Until all of an expected h is there or waiting is in vain, which it becomes once for all.
PACKRNN_DEVICE void wait_for_states(std::uint64_t* barrier, unsigned parity,
                                    const PersistentRun& run, bool& in_vain, int step, int row,
                                    int part) {
  if (!in_vain) {
    Watchdog watchdog(run.fault, run.watchdog_ns);
    for (int misses = 0; !mbarrier_try_wait(barrier, parity); ++misses)
      if (!watchdog.look_again(misses, step, row, part)) break;
    in_vain = watchdog.expired;
  }
  __syncwarp();
}

/// After a wait in vain something may still be under way to this block's shared memory, which must
/// not be given to another block before it has come: it takes microseconds.
PACKRNN_DEVICE void linger() {
  constexpr std::uint64_t kLong = 1'000'000;  // ns
  const std::uint64_t since = now_ns();
  for (int spins = 0; now_ns() - since < kLong; ++spins) backoff(spins);
}

/// h of one unit, of a row in this block's shared memory or of another array.
template <class V>
PACKRNN_DEVICE float state_at(const char* row, int unit) {
  if constexpr (V::Product::kBytes == 2)
    return V::Product::value(reinterpret_cast<const std::uint16_t*>(row)[unit]);
  else
    return V::Product::value(reinterpret_cast<const std::uint32_t*>(row)[unit]);
}

#endif

/// `pitch` is cluster_state_pitch().
template <class V>
__global__ void __launch_bounds__(V::kThreads, 1)
    cluster_kernel(const __grid_constant__ PersistentRun run, int pitch) {
#if PACKRNN_HAS_CLUSTER
  using Product = typename V::Product;
  using Piece = typename V::Piece;
  PACKRNN_DYNAMIC_SHARED(unsigned char, shared);
  PACKRNN_SHARED(ChunkDealer, dealer);
  PACKRNN_SHARED(std::uint64_t, barriers, [2]);  // of the buffers of h
  const Place<V> place;
  const int copy = static_cast<int>(blockIdx.x) / run.blocks;
  const int first_unit = static_cast<int>(blockIdx.x) % run.blocks * V::kUnits;
  const PersistentDirection& direction = run.direction[copy / run.groups];
  const int unit = first_unit + place.unit;
  const bool owned = unit < run.units;
  const float bias_n = V::kCell == Cell::gru && owned ? direction.bias_n[unit] : 0.0F;
  if (threadIdx.x == 0) {
    mbarrier_init(&barriers[0], 1);
    mbarrier_init(&barriers[1], 1);
    mbarrier_init_fence();
  }
  const Weights<V> weights(direction.w_hh, run.pitch_hh, first_unit * V::kGates,
                           run.units * V::kGates, run.warps, place,
                           reinterpret_cast<U32x4*>(shared));
  auto* const sums = reinterpret_cast<float*>(shared + run.warps * V::kStoredBytes);
  char* const states = reinterpret_cast<char*>(sums + 2 * run.warps * V::kWarpSums);
  const int chunks = place.chunks_before(run.units);
  bool in_vain = false;
  int sum_buffer = 0, turn = 0;  // which buffer has the h from before the step
  unsigned parities = 0;         // of the next phase of each barrier

  dealer.start(run.groups);
  const auto next_chunk = [&] {
    return dealer.deal(run.layout, run.first_step, run.last_step, run.chunk_rows, run.groups,
                       copy % run.groups);
  };
  for (int first = next_chunk(); first >= 0; first = next_chunk()) {
    cluster_sync();  // all are done with the chunk before, and have initialised their barriers
    const int chunk_rows = min(run.chunk_rows, run.layout.batch - first);
    ChunkWalk walk(run, direction.reverse, first, chunk_rows);
    for (; walk.steps > 0; walk.advance(run, direction.reverse, first, chunk_rows), turn ^= 1) {
      const char* const received = states + turn * run.chunk_rows * pitch;
      char* const sent = states + (turn ^ 1) * run.chunk_rows * pitch;
      const int kept = walk.steps > 1 ? walk.after : 0;  // rows whose h the next step reads
      if (threadIdx.x == 0 && kept > 0 && !in_vain)
        mbarrier_arrive_expect(&barriers[turn ^ 1],
                               static_cast<std::uint32_t>(kept * run.units * Product::kBytes));
      const auto start_of = [&](int r) {
        return static_cast<const char*>(direction.start) +
               static_cast<std::int64_t>(first + r) * (run.units * Product::kBytes);
      };
      for (int pass = 0; pass < walk.rows; pass += V::kPassRows) {
        const int row = pass + place.row;
        const bool live = owned && row < walk.rows;
        CellWork<V> work{};
        if (live) work.load(run, direction, walk.y_row + row, first + row, unit);
        if (pass == 0 && walk.before > 0) {
          wait_for_states(&barriers[turn], parities >> turn & 1U, run, in_vain, walk.t, first,
                          place.warp);
          parities ^= 1U << turn;
          if (in_vain) walk.before = 0;  // what did not come is not read: it may come yet
        }
        if (V::kCell == Cell::gru && live)
          work.h = state_at<V>(row < walk.before ? received + row * pitch : start_of(row), unit);

        float* const pass_sums = sums + sum_buffer * run.warps * V::kWarpSums;
        if (place.warp < run.warps) {
          float* const warp_sums = pass_sums + place.warp * V::kWarpSums;
          const int tiles =
              min(V::kPassTiles, (walk.rows - pass + kTileColumns - 1) / kTileColumns);
          for (int tile = 0; tile < tiles; ++tile) {
            const int r = pass + tile * kTileColumns + place.group;
            const int k = place.k() * Product::kBytes;
            Piece state[V::kChunks];
            PACKRNN_UNROLL
            for (int chunk = 0; chunk < V::kChunks; ++chunk) {
              const int at = k + chunk * kChunk * Product::kBytes;
              state[chunk] = zero_fragment<Product>();
              if (chunk < chunks && r < walk.before)
                state[chunk] = load_fragment<Product>(received + r * pitch + at);
              else if (chunk < chunks && r < walk.rows)
                state[chunk] = load_fragment<Product>(start_of(r) + at);
              change_words<Product, Product::state>(state[chunk]);
            }
            __syncwarp();  // products are by whole warps
            weights.multiply(state, place, warp_sums + tile * kTileColumns * V::kPitch);
          }
        }
        // All sums are there. The other buffer's readers are done: they are here too. And so are
        // the readers of these rows' h, whose place is free when this block has sent what it makes.
        __syncthreads();
        sum_buffer ^= 1;

        std::uint32_t bits = 0;
        if (live)
          bits = work.finish(pass_sums + place.row * V::kPitch + place.unit * V::kGates,
                             V::kWarpSums, run.warps, bias_n, run.relu);
        const U32x4 parcel = Parcel<V>::pack(bits);
        if (!live) continue;
        if (row < kept && !in_vain) {
          constexpr int kLanes = Parcel<V>::kLanes;
          Parcel<V>::send(sent + row * pitch + unit / kLanes * 16, &barriers[turn ^ 1], parcel,
                          place.unit, run.blocks);
        }
        work.store(run, direction, bits, run.layout.offsets[run.first_step] + walk.y_row + row,
                   first + row, unit, row >= walk.after);
      }
    }
  }
  cluster_sync();  // a block's shared memory has to stay while others may send to it
  if (in_vain) linger();
#endif
}

/// The instantiation as the host sees it.
template <class V>
ClusterVariant cluster_variant() {
  ClusterVariant variant;
  variant.cell = V::kCell;
  variant.units = V::kUnits;
  variant.chunks = V::kChunks;
  variant.fixed_bytes = (sizeof(ChunkDealer) + 127) / 128 * 128 + 128;
  variant.warp_bytes = V::kStoredBytes + 2 * V::kWarpSums * static_cast<int>(sizeof(float));
  variant.weight_bytes = V::kStoredBytes;
  variant.resident = [](int device, std::size_t shared, int blocks) {
    return resident_clusters(device, PACKRNN_KERNEL(cluster_kernel<V>), V::kThreads, shared,
                             blocks);
  };
  variant.launch = [](gpu::Stream stream, const gpu::LaunchShape& shape, const PersistentRun& run) {
    launch(stream, PACKRNN_KERNEL(cluster_kernel<V>), shape, run,
           cluster_state_pitch(run.units, V::Product::kBytes));
  };
  return variant;
}

template <class... V>
std::vector<ClusterVariant> cluster_variants() {
  return {cluster_variant<V>()...};
}

/// Those of a 16-bit product. A cluster has at most 16 blocks, so 32 units each are for H up to
/// 512.
template <class Product>
std::vector<ClusterVariant> cluster_variants_of_16_bits() {
  constexpr Cell kLstm = Cell::lstm, kGru = Cell::gru, kRnn = Cell::rnn_tanh;
  return cluster_variants<Variant<Product, kLstm, 8, 1, 1>, Variant<Product, kLstm, 16, 1, 1>,
                          Variant<Product, kLstm, 32, 1, 1>, Variant<Product, kLstm, 32, 2, 2>,
                          Variant<Product, kGru, 8, 1, 1>, Variant<Product, kGru, 16, 1, 1>,
                          Variant<Product, kGru, 32, 1, 1>, Variant<Product, kGru, 32, 2, 2>,
                          Variant<Product, kRnn, 8, 1, 1>, Variant<Product, kRnn, 32, 1, 1>,
                          Variant<Product, kRnn, 32, 2, 2>>();
}

}  // namespace packrnn::kernels::cuda

// Hidden cases whose mistakes end the process. Others run them one at a time, by output_of_case().
#include <atomic>
#include <vector>

#include "tests/catch.hpp"
#include "tests/simt/engine_fixture.hpp"

namespace packrnn::tests {
namespace {

using namespace kernels::cuda;

TEST_CASE("endless", "[.]") {
  simt::options().deadline_s = 0.1;
  static std::atomic<bool> go_on{true};
  run(
      blocks_of(2, 32),
      [&] {
        __syncthreads();
        while (go_on.load(std::memory_order_relaxed)) {
        }
      },
      "endless_kernel");
}

// ---- out of bounds ------------------------------------------------------------------------------

TEST_CASE("global_oob", "[.]") {
  std::vector<float> data(64);
  float* const p = data.data();
  run(
      blocks_of(2, 32), [&] { p[blockIdx.x * 32 + threadIdx.x + 1] = 1; }, "oob_kernel");
}
TEST_CASE("dynamic_oob", "[.]") {
  run(
      with_shared(blocks_of(1, 32), 128),
      [] {
        PACKRNN_DYNAMIC_SHARED(float, data);
        data[threadIdx.x + 1] = 1;
      },
      "oob_kernel");
}
TEST_CASE("static_oob", "[.]") {
  run(
      blocks_of(1, 32),
      [] {
        PACKRNN_SHARED(float, data, [32]);
        float* const all = data;
        all[threadIdx.x + 1] = 1;
      },
      "oob_kernel");
}
TEST_CASE("vector_oob", "[.]") {
  std::vector<std::uint32_t> data(33);
  run(
      blocks_of(1, 9), [&] { (void)ld_relaxed_v4(data.data() + 4 * threadIdx.x); }, "oob_kernel");
}
TEST_CASE("copy_oob", "[.]") {
  std::vector<float> data(30);
  run(
      with_shared(blocks_of(1, 8), 128),
      [&] {
        PACKRNN_DYNAMIC_SHARED(float, to);
        cp_async16(to + 4 * threadIdx.x, data.data() + 4 * threadIdx.x);
        cp_async_commit();
        cp_async_wait<0>();
      },
      "oob_kernel");
}
TEST_CASE("returned_block", "[.]") {
  void* first = nullptr;
  run(
      with_shared(clusters_of(2, 2, 1), 64),
      [&] {
        PACKRNN_DYNAMIC_SHARED(U32x4, data);
        if (cluster_rank() == 0) first = data;
        cluster_sync();
        if (cluster_rank() == 0) return;
        for (int spins = 0; spins < 100; ++spins) backoff(spins);
        *static_cast<U32x4*>(first) = U32x4{};
      },
      "oob_kernel");
}

// ---- races --------------------------------------------------------------------------------------

TEST_CASE("missing_barrier", "[.]") {
  run(
      blocks_of(1, 64),
      [] {
        PACKRNN_SHARED(int, slots, [64]);
        slots[threadIdx.x] = 1;
        const int other = slots[(threadIdx.x + 32) % 64];
        __syncthreads();
        slots[threadIdx.x] = other;
      },
      "race_kernel");
}
TEST_CASE("second_barrier", "[.]") {  // between reading a tile and writing the next
  run(
      blocks_of(1, 64),
      [] {
        PACKRNN_SHARED(int, tile, [64]);
        int sum = 0;
        for (int t = 0; t < 3; ++t) {
          tile[threadIdx.x] = t;
          __syncthreads();
          sum += tile[(threadIdx.x + 32) % 64];
        }
        __syncthreads();
        tile[threadIdx.x] = sum;
      },
      "race_kernel");
}
TEST_CASE("missing_grid_barrier", "[.]") {
  int words[2] = {}, read[2] = {};
  run(
      cooperative(2, 32),
      [&] {
        if (threadIdx.x == 0) words[blockIdx.x] = 1;
        __syncthreads();
        if (threadIdx.x == 0) read[blockIdx.x] = words[1 - blockIdx.x];
      },
      "race_kernel");
}
TEST_CASE("relaxed_flag", "[.]") {  // where an acquire is needed
  int data = 0, seen = 0;
  std::uint32_t flag = 0;
  run(
      cooperative(2, 1),
      [&] {
        if (blockIdx.x == 0) {
          data = 1;
          st_release(&flag, 1);
        } else {
          for (int spins = 0; ld_relaxed(&flag) == 0; ++spins) backoff(spins);
          seen = data;
        }
      },
      "race_kernel");
}
TEST_CASE("plain_counter", "[.]") {
  int counter = 0;
  run(
      blocks_of(1, 64), [&] { ++counter; }, "race_kernel");
}
TEST_CASE("plain_mailbox", "[.]") {  // a plain load where a strong one is needed
  std::uint32_t word = ~0U, sum = 0;
  run(
      cooperative(2, 1),
      [&] {
        if (blockIdx.x == 0)
          st_relaxed(&word, 5);
        else if (word != ~0U)
          atomicAdd(&sum, word);
      },
      "race_kernel");
}
TEST_CASE("warp_without_barrier", "[.]") {
  run(
      blocks_of(1, 32),
      [] {
        PACKRNN_SHARED(int, slots, [32]);
        slots[threadIdx.x] = 1;
        const int sum = __shfl_sync(~0U, 1, 0);  // which orders no memory
        slots[31 - threadIdx.x] = sum;
      },
      "race_kernel");
}
TEST_CASE("copy_without_barrier", "[.]") {  // of another thread's asynchronous copy
  std::vector<U32x4> data(64);
  run(
      blocks_of(1, 64),
      [&] {
        PACKRNN_SHARED(U32x4, to, [64]);
        cp_async16(&to[threadIdx.x], &data[threadIdx.x]);
        cp_async_commit();
        cp_async_wait<0>();
        if (to[(threadIdx.x + 32) % 64].x == 7) to[0].x = 1;
      },
      "race_kernel");
}
TEST_CASE("missing_cluster_barrier", "[.]") {
  run(
      with_shared(clusters_of(2, 2, 1), 64),
      [] {
        PACKRNN_DYNAMIC_SHARED(U32x4, inbox);
        cluster_sync();
        dsmem_store_v4(inbox, cluster_rank() ^ 1U, U32x4{1, 1, 1, 1});
        const std::uint32_t seen = inbox[0].x;
        cluster_sync();
        inbox[0].y = seen;
      },
      "race_kernel");
}
TEST_CASE("missing_mbarrier_wait", "[.]") {
  run(
      with_shared(clusters_of(2, 2, 1), 64),
      [] {
        PACKRNN_DYNAMIC_SHARED(U32x4, inbox);
        auto* barrier = reinterpret_cast<std::uint64_t*>(inbox + 1);
        mbarrier_init(barrier, 1);
        mbarrier_arrive_expect(barrier, 16);
        cluster_sync();
        st_async_v4(inbox, barrier, cluster_rank() ^ 1U, U32x4{1, 1, 1, 1});
        const std::uint32_t seen = inbox[0].x;
        for (int spins = 0; !mbarrier_try_wait(barrier, 0); ++spins) backoff(spins);
        cluster_sync();
        inbox[0].y = seen;
      },
      "race_kernel");
}
TEST_CASE("mbarrier_not_made_known", "[.]") {
  run(
      with_shared(blocks_of(1, 64), 64),
      [] {
        PACKRNN_DYNAMIC_SHARED(std::uint64_t, barrier);
        if (threadIdx.x == 0) {
          mbarrier_init(barrier, 1);
          mbarrier_arrive_expect(barrier, 0);
        }
        const int known = __shfl_sync(~0U, 1, 0);
        if (threadIdx.x > 0 && threadIdx.x < 32 && known == 1)
          for (int spins = 0; !mbarrier_try_wait(barrier, 0); ++spins) backoff(spins);
      },
      "race_kernel");
}
TEST_CASE("arrive_does_not_order", "[.]") {  // named_barrier_arrive only releases
  run(
      blocks_of(1, 64),
      [] {
        PACKRNN_SHARED(int, word);
        if (threadIdx.x < 32) {
          if (threadIdx.x == 0) word = 1;
          named_barrier_sync(1, 64);
        } else {
          named_barrier_arrive(1, 64);
          if (threadIdx.x == 63) word = 2;
        }
      },
      "race_kernel");
}

}  // namespace
}  // namespace packrnn::tests

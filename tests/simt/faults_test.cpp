// Each mistake that the engine reports: the message names the kernel, who did what, and this file's
// line; and afterwards launches work as before.
#include <atomic>
#include <cstdlib>
#include <stdexcept>
#include <vector>

#include "tests/catch.hpp"
#include "tests/sanitized.hpp"
#include "tests/simt/engine_fixture.hpp"

namespace packrnn::tests {
namespace {

using namespace kernels::cuda;
using Catch::Contains;

/// A line of this file that kernels note.
struct Line {
  std::atomic<int> number{0};
  std::string text() const { return "faults_test.cpp:" + std::to_string(number); }
};
#define AT_LINE(line, call) ((line).number.store(__LINE__, std::memory_order_relaxed), call)

/// Every report also says in which launch; then a good launch must go well.
std::string fault(const gpu::LaunchShape& shape, const Body& body) {
  const std::string report = report_of(shape, body, "bad_kernel");
  CAPTURE(report);
  CHECK_THAT(report, Contains("'bad_kernel'"));
  CHECK(report.substr(0, 6) == "simt: ");
  int threads = 0;
  std::uint32_t counter = 0;
  CHECK(report_of(with_shared(cooperative(3, 70), 64), [&] {
          PACKRNN_SHARED(int, slot);
          if (threadIdx.x == 0) slot = 1;
          __syncthreads();
          atomicAdd(&threads, slot);
          grid_barrier(&counter, 1);
        }).empty());
  CHECK(threads == 210);
  return report;
}

// ---- barriers ---------------------------------------------------------------------------------

TEST_CASE("threads of a block that meet in different barriers are reported") {
  Line one, other;
  const std::string report = fault(blocks_of(2, 96), [&] {
    if (threadIdx.x < 40)
      AT_LINE(one, __syncthreads());
    else
      AT_LINE(other, __syncthreads());
  });
  CHECK_THAT(report,
             Contains("divergent barrier") && Contains(one.text()) && Contains(other.text()));
  CHECK_THAT(report, Contains("40 threads of 0..39 ") && Contains("56 threads of 40..95 "));
  CHECK_THAT(report, Contains("__syncthreads") && Contains("block (1,0,0)"));
  const WithOptions restore;
  simt::options().strict_barrier = false;
  CHECK(report_of(blocks_of(1, 96), [&] {
          if (threadIdx.x < 40)
            __syncthreads();
          else
            __syncthreads();
        }).empty());
}

TEST_CASE("a barrier that completes because threads returned is reported on request") {
  const WithOptions restore;
  simt::options().strict_exit = true;
  Line line;
  const auto kernel = [&] {
    if (threadIdx.x >= 64) return;
    AT_LINE(line, __syncthreads());
  };
  const std::string report = fault(blocks_of(1, 96), kernel);
  CHECK_THAT(report, Contains("only because threads have returned") && Contains(line.text()));
  simt::options().strict_exit = false;
  CHECK(report_of(blocks_of(1, 96), kernel).empty());
}

TEST_CASE("lanes at a shuffle and lanes at a barrier are a deadlock") {
  Line barrier, shuffle;
  const std::string report = fault(blocks_of(1, 32), [&] {
    if (threadIdx.x < 12) AT_LINE(barrier, __syncthreads());
    (void)AT_LINE(shuffle, __shfl_sync(~0U, 1, 0));
    if (threadIdx.x >= 12) __syncthreads();
  });
  CHECK_THAT(report, Contains("deadlock") && Contains(barrier.text()) && Contains(shuffle.text()));
  CHECK_THAT(report, Contains("12 threads of 0..11 waiting in __syncthreads"));
  CHECK_THAT(report, Contains("20 threads of 12..31 waiting in __shfl_sync mask 0xffffffff"));
}

TEST_CASE("a named barrier that too few threads reach is a deadlock") {
  Line line;
  const std::string report = fault(blocks_of(1, 96), [&] {
    if (threadIdx.x < 32) AT_LINE(line, named_barrier_sync(2, 64));
  });
  CHECK_THAT(report,
             Contains("deadlock") && Contains("named_barrier_sync at") && Contains(line.text()));
}

TEST_CASE("misuse of named barriers is reported") {
  std::string report;
  Line line;
  report = fault(blocks_of(1, 32), [&] { AT_LINE(line, named_barrier_sync(16, 32)); });
  CHECK_THAT(report,
             Contains("barrier above 15 at") && Contains(line.text()) && Contains("thread ("));
  report = fault(blocks_of(1, 32), [&] { AT_LINE(line, named_barrier_sync(1, 31)); });
  CHECK_THAT(report, Contains("no multiple of 32 at") && Contains(line.text()));
  report = fault(blocks_of(1, 32), [&] { AT_LINE(line, named_barrier_sync(1, 64)); });
  CHECK_THAT(report, Contains("above the threads of its block at") && Contains(line.text()));
  report = fault(blocks_of(1, 96), [&] { named_barrier_sync(1, threadIdx.x < 32 ? 64 : 96); });
  CHECK_THAT(report, Contains("another count than the threads already there"));
  report = fault(blocks_of(1, 64), [&] {
    named_barrier_arrive(1, 64);
    if (threadIdx.x < 32) AT_LINE(line, named_barrier_arrive(1, 64));
    __syncthreads();
  });
  CHECK_THAT(report, Contains("twice in one phase at") && Contains(line.text()));
}

// ---- polling ----------------------------------------------------------------------------------

TEST_CASE("polling that nothing will end is a livelock") {
  Line line;
  std::uint32_t never = 0;
  const std::string report = fault(cooperative(2, 32), [&] {
    for (int spins = 0; ld_acquire(&never) == 0; ++spins) AT_LINE(line, backoff(spins));
  });
  CHECK_THAT(report, Contains("livelock") && Contains(line.text()));
  CHECK_THAT(report, Contains("block (0,0,0)") && Contains("block (1,0,0)"));
}

TEST_CASE("polling with votes, or without backoff, is a livelock as well") {
  std::string report;
  std::uint32_t never = 0;
  Line line;
  report = fault(blocks_of(1, 32), [&] {
    for (int spins = 0; __any_sync(~0U, ld_relaxed(&never) == 0) != 0; ++spins) backoff(spins);
  });
  CHECK_THAT(report, Contains("livelock"));
  report = fault(blocks_of(1, 32), [&] {
    while (AT_LINE(line, ld_relaxed(&never)) == 0) {
    }
  });
  CHECK_THAT(report, Contains("livelock") && Contains(line.text()));
  report = fault(blocks_of(1, 32), [&] {
    while (atomicCAS(&never, 1U, 2U) != 1) {
    }
  });
  CHECK_THAT(report, Contains("livelock"));
}

TEST_CASE("a grid barrier in a launch that is not cooperative is reported") {
  std::uint32_t counter = 0;
  Line line;
  const std::string report =
      fault(blocks_of(8, 32), [&] { AT_LINE(line, grid_barrier(&counter, 1)); });
  CHECK_THAT(report, Contains("livelock") && Contains(line.text()));
  CHECK_THAT(report, Contains("5 blocks of this launch are not resident"));
}

TEST_CASE("a launch that takes too long is reported") {
  const WithOptions restore;
  simt::options().deadline_s = 0.2;
  Line line;
  const std::string report = fault(blocks_of(1, 64), [&] {
    for (;;) AT_LINE(line, __syncthreads());  // as with a plain load for a condition
  });
  CHECK_THAT(report, Contains("out of time, after 0.2") && Contains(line.text()));
}

TEST_CASE("a thread that never gives way ends the process and is named") {
  const std::string output = output_of_case("endless");
  CHECK_THAT(output, Contains("loops for ever in kernel 'endless_kernel'"));
  CHECK_THAT(output, Contains("it last waited at") && Contains("planted_cases.cpp:"));
  CHECK_THAT(output, !Contains("\nexit 0"));
}

// ---- warps ------------------------------------------------------------------------------------

TEST_CASE("wrong masks are reported") {
  Line line;
  const std::string report =
      fault(blocks_of(1, 32), [&] { (void)AT_LINE(line, __shfl_sync(0x0000FFFFU, 1, 0)); });
  CHECK_THAT(report, Contains("a mask that lacks its own lane at") && Contains(line.text()));
  CHECK_THAT(report, Contains("block (0,0,0) thread ("));
  const std::string mixed = fault(
      blocks_of(1, 32), [&] { (void)__shfl_sync(threadIdx.x < 16 ? ~0U : 0xFFFF0000U, 1, 0); });
  CHECK_THAT(mixed, Contains("divergent warp operation") && Contains("mask 0xffff0000"));
}

TEST_CASE("lanes in different warp operations are reported") {
  Line shuffle, vote;
  const std::string report = fault(blocks_of(1, 32), [&] {
    if (threadIdx.x < 7)
      (void)AT_LINE(shuffle, __shfl_sync(~0U, 1, 0));
    else
      (void)AT_LINE(vote, __any_sync(~0U, 1));
  });
  CHECK_THAT(report, Contains("divergent warp operation"));
  CHECK_THAT(report, Contains(shuffle.text()) && Contains(vote.text()));
}

TEST_CASE("a collective that some lanes never reach is a deadlock") {
  Line line;
  std::uint32_t done = 0;
  const std::string report = fault(blocks_of(1, 64), [&] {
    if (threadIdx.x % 32 != 5) (void)AT_LINE(line, __ballot_sync(~0U, 1));
    if (threadIdx.x % 32 == 5) __syncthreads();
    atomicAdd(&done, 1);
  });
  CHECK_THAT(report,
             Contains("deadlock") && Contains("62 threads of 0..63 waiting in __ballot_sync"));
  CHECK_THAT(report, Contains(line.text()));
  CHECK(done == 0);
}

TEST_CASE("a warp operation that completes because lanes returned is reported on request") {
  std::string report;
  const auto kernel = [] {
    if (threadIdx.x >= 20) return;
    (void)__any_sync(~0U, 1);
  };
  CHECK(report_of(blocks_of(1, 32), kernel).empty());
  const WithOptions restore;
  simt::options().strict_exit = true;
  simt::options().order = simt::Order::forward;
  report = fault(blocks_of(1, 32), kernel);
  CHECK_THAT(report, Contains("only because lanes of its mask have returned"));
}

TEST_CASE("matrix operations want a whole warp") {
  std::string report;
  Line line;
  report = fault(blocks_of(1, 48), [&] {
    float d[4] = {};
    AT_LINE(line, mma_bf16_16816(d, U32x4{}, 0, 0));
  });
  CHECK_THAT(report, Contains("without a whole warp at") && Contains(line.text()));
  report = fault(with_shared(blocks_of(1, 8), 512), [&] {
    PACKRNN_DYNAMIC_SHARED(U32x4, rows);
    (void)AT_LINE(line, ldmatrix_x2(rows + threadIdx.x));
  });
  CHECK_THAT(report, Contains("ldmatrix without a whole warp at") && Contains(line.text()));
}

// ---- memory -----------------------------------------------------------------------------------

TEST_CASE("misaligned vectors are reported") {
  std::string report;
  Line line;
  alignas(16) std::uint32_t words[12] = {};
  report = fault(blocks_of(1, 1), [&] { (void)AT_LINE(line, ld_relaxed_v4(words + 1)); });
  CHECK_THAT(report, Contains("misaligned address at") && Contains(line.text()));
  report = fault(blocks_of(1, 1), [&] { AT_LINE(line, st_relaxed_v4(words + 2, U32x4{})); });
  CHECK_THAT(report, Contains("misaligned address at") && Contains(line.text()));
  report = fault(with_shared(blocks_of(1, 32), 1024), [&] {
    PACKRNN_DYNAMIC_SHARED(std::uint16_t, rows);
    (void)AT_LINE(line, ldmatrix_x4(rows + 9 * threadIdx.x));
  });
  CHECK_THAT(report, Contains("misaligned row at") && Contains(line.text()));
  report = fault(with_shared(blocks_of(1, 1), 64), [&] {
    PACKRNN_DYNAMIC_SHARED(std::uint32_t, to);
    AT_LINE(line, cp_async16(to + 1, words));
  });
  CHECK_THAT(report, Contains("misaligned cp.async at") && Contains(line.text()));
  report = fault(with_shared(blocks_of(1, 1), 64), [&] {
    PACKRNN_DYNAMIC_SHARED(std::uint32_t, to);
    AT_LINE(line, cp_async16(to, words + 1));
  });
  CHECK_THAT(report, Contains("misaligned cp.async at") && Contains(line.text()));
}

TEST_CASE("asynchronous copies must be waited for, and go to shared memory") {
  std::string report;
  Line line;
  alignas(16) std::uint32_t words[4] = {}, others[4] = {};
  report = fault(with_shared(blocks_of(1, 1), 64), [&] {
    PACKRNN_DYNAMIC_SHARED(std::uint32_t, to);
    AT_LINE(line, cp_async16(to, words));
    cp_async_wait<0>();  // nothing has been committed
  });
  CHECK_THAT(report,
             Contains("before it waited for its asynchronous copies at") && Contains(line.text()));
  report = fault(blocks_of(1, 1), [&] { AT_LINE(line, cp_async16(others, words)); });
  CHECK_THAT(report, Contains("not in shared memory at") && Contains(line.text()));
}

#if !defined(PACKRNN_ASAN) && !defined(PACKRNN_TSAN)  // which reports it at once
TEST_CASE("writing behind shared memory is reported") {
  std::string report;
  report = fault(with_shared(blocks_of(2, 32), 128), [] {
    PACKRNN_DYNAMIC_SHARED(float, data);
    data[threadIdx.x + blockIdx.x] = 1;
  });
  CHECK_THAT(report, Contains("block (1,0,0) wrote behind the end of its dynamic shared memory"));
  report = fault(blocks_of(1, 32), [] {
    PACKRNN_SHARED(float, data, [32]);
    float* const all = data;
    all[threadIdx.x + 1] = 1;
  });
  CHECK_THAT(report, Contains("block (0,0,0) wrote behind the end of its static shared memory"));
}
#endif

TEST_CASE("too much shared memory is reported") {
  std::string report;
  report = fault(blocks_of(1, 1), [] {
    PACKRNN_SHARED(char, many, [48 * 1024 + 1]);
    many[0] = 1;
  });
  CHECK_THAT(report, Contains("more than 48 KiB of static shared memory"));
  report = fault(with_shared(blocks_of(1, 1), 227 * 1024 - 64), [] {
    PACKRNN_SHARED(char, few, [65]);
    few[0] = 1;
  });
  CHECK_THAT(report, Contains("more static and dynamic shared memory than its device"));
}

// ---- clusters -----------------------------------------------------------------------------------

TEST_CASE("misuse of cluster barriers is reported") {
  std::string report;
  Line line;
  report = fault(clusters_of(2, 2, 32), [&] { AT_LINE(line, cluster_wait()); });
  CHECK_THAT(report, Contains("cluster_wait without cluster_arrive at") && Contains(line.text()));
  report = fault(clusters_of(2, 2, 32), [&] {
    cluster_arrive();
    AT_LINE(line, cluster_arrive());
  });
  CHECK_THAT(report, Contains("cluster_arrive twice") && Contains(line.text()));
  report = fault(clusters_of(2, 2, 32), [&] { AT_LINE(line, cluster_arrive()); });
  CHECK_THAT(report, Contains("returned between cluster_arrive and cluster_wait at") &&
                         Contains(line.text()));
  std::uint32_t never = 0;
  report = fault(clusters_of(2, 2, 32), [&] {
    if (blockIdx.x == 0)
      AT_LINE(line, cluster_sync());
    else
      for (int spins = 0; ld_acquire(&never) == 0; ++spins) backoff(spins);
  });
  CHECK_THAT(report, Contains("livelock") && Contains("waiting in cluster_wait at") &&
                         Contains(line.text()));
}

TEST_CASE("misuse of a cluster's shared memory is reported") {
  std::string report;
  Line line;
  U32x4 elsewhere{};
  const gpu::LaunchShape pair = with_shared(clusters_of(2, 2, 1), 64);
  report = fault(pair, [&] {
    PACKRNN_DYNAMIC_SHARED(U32x4, data);
    AT_LINE(line, dsmem_store_v4(data, 2, U32x4{}));
  });
  CHECK_THAT(report, Contains("a rank outside its cluster at") && Contains(line.text()));
  report = fault(pair, [&] { AT_LINE(line, dsmem_store_v4(&elsewhere, 1, U32x4{})); });
  CHECK_THAT(report, Contains("not in its shared memory at") && Contains(line.text()));
  report = fault(pair, [&] {
    PACKRNN_DYNAMIC_SHARED(std::uint32_t, data);
    AT_LINE(line, dsmem_store_v4(data + 1, 1, U32x4{}));
  });
  CHECK_THAT(report, Contains("misaligned shared address at") && Contains(line.text()));
  const WithOptions restore;
  simt::options().order = simt::Order::forward;
  report = fault(pair, [&] {
    PACKRNN_DYNAMIC_SHARED(U32x4, data);
    if (cluster_rank() == 1) AT_LINE(line, dsmem_store_v4(data, 0, U32x4{}));
  });
  CHECK_THAT(report, Contains("of a block that has returned at") && Contains(line.text()));
  report = fault(pair, [&] {
    if (cluster_rank() == 1) return cluster_sync();
    PACKRNN_SHARED(U32x4, late);
    AT_LINE(line, dsmem_store_v4(&late, 1, U32x4{}));
    cluster_sync();
  });
  CHECK_THAT(report, Contains("the other block has not reached at") && Contains(line.text()));
}

TEST_CASE("misuse of transaction barriers is reported") {
  std::string report;
  Line line;
  const gpu::LaunchShape pair = with_shared(clusters_of(2, 2, 1), 64);
  report = fault(pair, [&] {
    PACKRNN_DYNAMIC_SHARED(std::uint64_t, barrier);
    (void)AT_LINE(line, mbarrier_try_wait(barrier, 0));
  });
  CHECK_THAT(report, Contains("mbarrier that was not initialised at") && Contains(line.text()));
  report = fault(pair, [&] {
    PACKRNN_DYNAMIC_SHARED(std::uint64_t, barrier);
    mbarrier_init(barrier, 1);
    mbarrier_arrive_expect(barrier, 16);
    AT_LINE(line, mbarrier_arrive_expect(barrier, 16));
  });
  CHECK_THAT(report, Contains("more often than its count at") && Contains(line.text()));
  report = fault(pair, [&] {
    PACKRNN_DYNAMIC_SHARED(std::uint64_t, barrier);
    AT_LINE(line, mbarrier_init(barrier, 0));
  });
  CHECK_THAT(report, Contains("for no arrivals at") && Contains(line.text()));
  std::uint64_t elsewhere = 0;
  report = fault(pair, [&] { AT_LINE(line, mbarrier_init(&elsewhere, 1)); });
  CHECK_THAT(report, Contains("not in shared memory at") && Contains(line.text()));
  report = fault(pair, [&] {
    PACKRNN_DYNAMIC_SHARED(U32x4, data);
    auto* barrier = reinterpret_cast<std::uint64_t*>(data + 1);
    mbarrier_init(barrier, 1);
    cluster_sync();
    st_async_v4(data, barrier, cluster_rank(), U32x4{});
  });
  CHECK_THAT(report,
             Contains("returned while an asynchronous store to its shared memory was under way"));
  report = fault(pair, [&] {
    PACKRNN_DYNAMIC_SHARED(std::uint64_t, barrier);
    mbarrier_init(barrier, 1);
    mbarrier_arrive_expect(barrier, 16);
    for (int spins = 0; !mbarrier_try_wait(barrier, 0); ++spins) AT_LINE(line, backoff(spins));
  });
  CHECK_THAT(report, Contains("livelock") && Contains(line.text()));
}

// ---- launches -----------------------------------------------------------------------------------

TEST_CASE("launches that a device cannot start are reported") {
  const auto refused = [](const gpu::LaunchShape& shape, const gpu::Properties& device) {
    try {
      simt::check("bad_kernel", shape, device);
    } catch (const simt::Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  gpu::Properties device = large_device();
  gpu::LaunchShape shape = blocks_of(4, 32);
  CHECK(refused(shape, device).empty());
  CHECK_THAT(refused(blocks_of(0, 32), device), Contains("no blocks or no threads"));
  CHECK_THAT(refused(blocks_of(1, 1025), device), Contains("1024 threads"));
  shape.block = {1, 1, 65};
  CHECK_THAT(refused(shape, device), Contains("64 in z"));
  shape = blocks_of(1, 1);
  shape.grid[1] = 65536;
  CHECK_THAT(refused(shape, device), Contains("the grid is larger"));
  CHECK_THAT(refused(with_shared(blocks_of(1, 1), 227 * 1024 + 1), device),
             Contains("more shared memory than the 232448 bytes"));
  CHECK_THAT(refused(clusters_of(4, 6, 32), device), Contains("clusters have 1 to 16 blocks"));
  CHECK_THAT(refused(clusters_of(32, 32, 32), device), Contains("clusters have 1 to 16 blocks"));
  device.clusters = false;
  CHECK_THAT(refused(clusters_of(4, 8, 32), device), Contains("this device has no clusters"));
  device.cooperative = false;
  CHECK_THAT(refused(cooperative(1, 32), device), Contains("no cooperative launch"));
  device = large_device();
  device.multiprocessors = 2;
  CHECK(refused(cooperative(4, 1024), device).empty());
  CHECK_THAT(refused(cooperative(5, 1024), device), Contains("more than the 4 blocks"));
  CHECK_THAT(refused(with_shared(cooperative(3, 32), 200 * 1024), device),
             Contains("more than the 2 blocks"));
  CHECK_THAT(refused(with_shared(clusters_of(8, 8, 32), 200 * 1024), device),
             Contains("no such cluster fits"));
}

TEST_CASE("occupancy by threads and shared memory") {
  const gpu::Properties device = large_device();
  CHECK(simt::resident_blocks(device, 1024, 0) == 2);
  CHECK(simt::resident_blocks(device, 33, 0) == 32);
  CHECK(simt::resident_blocks(device, 32, 100 * 1024) == 2);
  CHECK(simt::resident_blocks(device, 32, 227 * 1024) == 1);
  CHECK(simt::resident_blocks(device, 32, 228 * 1024) == 0);
  CHECK(simt::resident_clusters(device, 1024, 227 * 1024, 16) == 8);
  CHECK(simt::resident_clusters(device, 1024, 227 * 1024, 4) == 33);
  CHECK(simt::resident_clusters(device, 1024, 227 * 1024, 17) == 0);
}

TEST_CASE("exceptions of other kinds pass through a kernel's launch") {
  CHECK_THROWS_AS(run(blocks_of(1, 64),
                      [] {
                        if (threadIdx.x == 40) throw std::out_of_range("x");
                        __syncthreads();
                      }),
                  std::out_of_range);
  CHECK_THAT(report_of(blocks_of(1, 1), [] { run(blocks_of(1, 1), [] {}); }),
             Contains("a kernel cannot launch another"));
}

TEST_CASE("the report says how to see it again") {
  std::string report;
  const WithOptions restore;
  simt::options().seed = 6;
  report = fault(blocks_of(1, 32), [] { named_barrier_sync(16, 32); });
  CHECK_THAT(report, Contains("seed 6 priority preempt 50"));
}

}  // namespace
}  // namespace packrnn::tests

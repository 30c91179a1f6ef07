// The engine: which thread is who, in which order threads run, what barriers and atomics do, and
// that schedules show a missing barrier.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <set>
#include <thread>
#include <vector>

#include "tests/catch.hpp"
#include "tests/sanitized.hpp"
#include "tests/simt/engine_fixture.hpp"

namespace packrnn::tests {
namespace {

using namespace kernels::cuda;

TEST_CASE("every thread of every block runs once and knows who it is") {
  const gpu::LaunchShape shape{.grid = {3, 2, 2}, .block = {5, 4, 3}};
  under_all_schedules(4, [&] {
    std::vector<int> runs(3 * 2 * 2 * 5 * 4 * 3);
    Count wrong;
    run(shape, [&] {
      wrong += gridDim.x != 3 || gridDim.y != 2 || gridDim.z != 2;
      wrong += blockDim.x != 5 || blockDim.y != 4 || blockDim.z != 3;
      const unsigned block = (blockIdx.z * 2 + blockIdx.y) * 3 + blockIdx.x;
      const unsigned thread = (threadIdx.z * 4 + threadIdx.y) * 5 + threadIdx.x;
      ++runs[block * 60 + thread];
    });
    CHECK(wrong == 0);
    CHECK(std::count(runs.begin(), runs.end(), 1) == static_cast<std::ptrdiff_t>(runs.size()));
  });
}

/// The order in which 64 threads of 2 blocks pass their second barrier.
std::vector<unsigned> order_of_threads() {
  std::vector<unsigned> order(256);
  std::uint32_t count = 0;
  run(cooperative(2, 64), [&] {
    __syncthreads();
    order[atomicAdd(&count, 1)] = blockIdx.x * 64 + threadIdx.x;
    __syncthreads();
    order[atomicAdd(&count, 1)] = blockIdx.x * 64 + threadIdx.x;
  });
  return order;
}

TEST_CASE("a seed is a schedule, and another seed another one") {
  const WithOptions restore;
  simt::options().order = simt::Order::by_seed;
  std::set<std::vector<unsigned>> orders;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    simt::options().seed = seed;
    const auto first = order_of_threads();
    CHECK(order_of_threads() == first);
    orders.insert(first);
  }
  CHECK(orders.size() == 20);
}

TEST_CASE("forward and reverse orders are what they say") {
  const WithOptions restore;
  std::vector<unsigned> order(24), expected(24);
  std::uint32_t count = 0;
  const auto body = [&] { order[atomicAdd(&count, 1) % 24] = blockIdx.x * 8 + threadIdx.x; };
  std::iota(expected.begin(), expected.end(), 0U);
  simt::options().order = simt::Order::forward;
  run(blocks_of(3, 8), body);
  CHECK(order == expected);
  simt::options().order = simt::Order::reverse;
  simt::options().resident_blocks = 1;
  run(blocks_of(3, 8), body);
  std::reverse(expected.begin(), expected.end());
  CHECK(order == expected);
}

TEST_CASE("options come from the environment") {
  const auto options_in_new_thread = [] {
    simt::Options o;
    std::string error;
    std::thread([&] {
      try {
        o = simt::options();
      } catch (const simt::Error& e) {
        error = e.what();
      }
    }).join();
    return std::pair(o, error);
  };
  const auto set = [](const char* name, const char* value) { setenv(name, value, 1); };
  set("PACKRNN_SIMT_SEED", "77");
  set("PACKRNN_SIMT_ORDER", "priority");
  set("PACKRNN_SIMT_PREEMPT", "12");
  set("PACKRNN_SIMT_RESIDENT", "5");
  set("PACKRNN_SIMT_DEADLINE", "1.5");
  const auto [o, error] = options_in_new_thread();
  CHECK(error.empty());
  CHECK(o.seed == 77);
  CHECK(o.order == simt::Order::priority);
  CHECK(o.preempt_permille == 12);
  CHECK(o.resident_blocks == 5);
  CHECK(o.deadline_s == 1.5);
  set("PACKRNN_SIMT_ORDER", "alphabetical");
  CHECK(options_in_new_thread().second == "simt: PACKRNN_SIMT_ORDER is unknown: alphabetical");
  unsetenv("PACKRNN_SIMT_ORDER");
  set("PACKRNN_SIMT_SEED", "one");
  CHECK(options_in_new_thread().second == "simt: PACKRNN_SIMT_SEED is no number: one");
  for (const char* name : {"PACKRNN_SIMT_SEED", "PACKRNN_SIMT_PREEMPT", "PACKRNN_SIMT_RESIDENT",
                           "PACKRNN_SIMT_DEADLINE"})
    unsetenv(name);
}

/// A tree reduction of 0 .. 127, whose barriers can be left out.
float tree_sum(bool with_barrier) {
  float result = 0;
  run(blocks_of(1, 128), [&] {
    PACKRNN_SHARED(float, part, [128]);
    part[threadIdx.x] = static_cast<float>(threadIdx.x);
    __syncthreads();
    for (unsigned half = 64; half > 0; half /= 2) {
      if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
      if (with_barrier) __syncthreads();
    }
    if (threadIdx.x == 0) result = part[0];
  });
  return result;
}

/// Tiles pass through one shared buffer; `after` stands between reading one and writing the next.
bool tiles_arrive(bool after) {
  constexpr unsigned kThreads = 96;
  constexpr int kTiles = 6;
  Count wrong;
  run(blocks_of(1, kThreads), [&] {
    PACKRNN_SHARED(int, tile, [kThreads]);
    for (int t = 0; t < kTiles; ++t) {
      tile[threadIdx.x] = t;
      __syncthreads();
      if (tile[(threadIdx.x + 40) % kThreads] != t) ++wrong;
      if (after) __syncthreads();
    }
  });
  return wrong == 0;
}

TEST_CASE("barriers make a reduction right under every schedule") {
  under_all_schedules(40, [] { CHECK(tree_sum(true) == 127 * 64); });
  under_all_schedules(40, [] { CHECK(tiles_arrive(true)); });
}

#if !defined(PACKRNN_TSAN)  // which ends the process at the race: see sanitizers_test.cpp
TEST_CASE("a missing barrier shows within few seeds") {
  CHECK(seeds_until_bad(4, [] { return tree_sum(false) == 127 * 64; }) != 0);
  CHECK(seeds_until_bad(8, [] { return tiles_arrive(false); }) != 0);
}

TEST_CASE("blocks that exchange data without a grid barrier show within few seeds") {
  const auto good = [](bool with_barrier) {
    std::vector<int> left(4), right(4);
    std::uint32_t counter = 0;
    run(cooperative(4, 64), [&] {
      if (threadIdx.x == 0) left[blockIdx.x] = static_cast<int>(blockIdx.x) + 1;
      if (with_barrier) grid_barrier(&counter, 1);
      if (threadIdx.x == 0) right[blockIdx.x] = left[(blockIdx.x + 1) % 4];
    });
    return right == std::vector<int>{2, 3, 4, 1};
  };
  CHECK(seeds_until_bad(4, [&] { return good(false); }) != 0);
  CHECK(seeds_until_bad(40, [&] { return good(true); }) == 0);
}
#endif

TEST_CASE("a barrier goes on without the threads that have returned") {
  under_all_schedules(8, [] {
    int passed = 0;
    run(blocks_of(1, 96), [&] {
      if (threadIdx.x >= 40) return;
      __syncthreads();
      atomicAdd(&passed, 1);
    });
    CHECK(passed == 40);
  });
}

TEST_CASE("grid barriers keep all blocks in step") {
  constexpr unsigned kBlocks = 5, kThreads = 33, kSteps = 7;
  under_all_schedules(12, [] {
    std::vector<unsigned> slots(kBlocks);
    std::uint32_t counter = 0;
    Count wrong;
    run(cooperative(kBlocks, kThreads), [&] {
      for (unsigned step = 1; step <= kSteps; ++step) {
        if (threadIdx.x == kThreads - 1) slots[blockIdx.x] = step;
        grid_barrier(&counter, 2 * step - 1);
        for (unsigned b = 0; b < kBlocks; ++b)
          if (slots[b] != step) ++wrong;
        grid_barrier(&counter, 2 * step);
      }
    });
    CHECK(wrong == 0);
    CHECK(counter == 2 * kSteps * kBlocks);
  });
}

TEST_CASE("shared variables belong to a block and a declaration, and start as poison") {
  under_all_schedules(4, [] {
    Count wrong;
    run(with_shared(cooperative(3, 32), 256), [&] {
      PACKRNN_SHARED(float, fresh, [40]);
      PACKRNN_SHARED(double, other);
      PACKRNN_DYNAMIC_SHARED(float, dynamic);
      if (threadIdx.x == 0) {
        if (!std::isnan(fresh[39]) || !std::isnan(other) || !std::isnan(dynamic[63])) ++wrong;
        if (reinterpret_cast<std::uintptr_t>(dynamic) % 128 != 0) ++wrong;
        fresh[0] = static_cast<float>(blockIdx.x);
        other = fresh[0] + 10;
        dynamic[0] = fresh[0] + 20;
      }
      __syncthreads();
      const auto block = static_cast<float>(blockIdx.x);
      if (fresh[0] != block || other != block + 10 || dynamic[0] != block + 20) ++wrong;
    });
    CHECK(wrong == 0);
  });
  std::uint16_t words[7];
  simt::poison(words, sizeof words);
  for (const std::uint16_t word : words) CHECK(word == simt::kPoison);
}

TEST_CASE("atomics") {
  under_all_schedules(8, [] {
    std::uint32_t sum = 0, most = 0, least = 1000, bits = 0, common = ~0U, flips = 0, last = 0;
    float total = 0;
    std::uint64_t wide = 0;
    int differences = 1000, swaps = 0;
    run(cooperative(2, 64), [&] {
      const unsigned i = blockIdx.x * 64 + threadIdx.x;
      atomicAdd(&sum, i);
      atomicAdd(&total, 0.5F);
      atomicAdd(&wide, std::uint64_t{1} << 32);
      atomicSub(&differences, 1);
      atomicMax(&most, i);
      atomicMin(&least, i + 5);
      atomicOr(&bits, 1U << i % 32);
      atomicAnd(&common, ~(1U << i % 32));
      atomicXor(&flips, i);
      atomicExch(&last, i);
      for (int seen = 0;;) {
        const int old = atomicCAS(&swaps, seen, seen + 1);
        if (old == seen) break;
        seen = old;
      }
    });
    CHECK(sum == 127 * 64);
    CHECK(total == 64);
    CHECK(wide == std::uint64_t{128} << 32);
    CHECK(differences == 1000 - 128);
    CHECK(most == 127);
    CHECK(least == 5);
    CHECK(bits == ~0U);
    CHECK(common == 0);
    CHECK(flips == 0);
    CHECK(last < 128);
    CHECK(swaps == 128);
  });
}

TEST_CASE("preemption breaks a load and a store that should be one atomic") {
  const auto lost = [] {
    std::uint32_t counter = 0;
    run(blocks_of(1, 64), [&] { st_relaxed(&counter, ld_relaxed(&counter) + 1); });
    return counter != 64;
  };
  const WithOptions restore;
  simt::options().preempt_permille = 0;
  CHECK_FALSE(lost());
  simt::options().preempt_permille = 100;
  CHECK(lost());
}

TEST_CASE("a watchdog of a kernel expires while it polls for nothing") {
  under_all_schedules(8, [] {
    std::uint32_t never = 0, expired = 0;
    run(cooperative(3, 64), [&] {
      const std::uint64_t start = now_ns();
      bool missing = true;
      // As our mailboxes poll: a vote in every round must not look like progress.
      for (int spins = 0; __any_sync(~0U, missing) != 0; ++spins) {
        backoff(spins);
        if (ld_relaxed(&never) != 0) missing = false;
        if (spins % 16 == 15 && now_ns() - start > 5'000'000'000U) missing = false;
      }
      atomicAdd(&expired, 1);
    });
    CHECK(expired == 3 * 64);
  });
}

TEST_CASE("no watchdog expires while another block works for long without a word") {
  under_all_schedules(6, [] {
    std::uint32_t flag = 0;
    std::uint64_t waited = 0;
    run(cooperative(2, 32), [&] {
      if (blockIdx.x == 0) {
        float sum = 0;
        for (int i = 0; i < 2000; ++i) sum += __shfl_xor_sync(~0U, 1.0F, 1);
        if (threadIdx.x == 0) st_release(&flag, sum == 2000 ? 1 : 0);
      } else {
        const std::uint64_t start = now_ns();
        for (int spins = 0; ld_acquire(&flag) == 0; ++spins) backoff(spins);
        if (threadIdx.x == 0) waited = now_ns() - start;
      }
    });
    CHECK(waited < 1'000'000'000U);
  });
}

TEST_CASE("host threads launch at the same time") {
  constexpr int kThreads = 6, kLaunches = 20;
  std::vector<int> good(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      simt::options().seed = static_cast<std::uint64_t>(t) + 1;
      for (int i = 0; i < kLaunches; ++i)
        good[static_cast<std::size_t>(t)] += tree_sum(true) == 127 * 64;
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(good == std::vector<int>(kThreads, kLaunches));
}

TEST_CASE("sixteen thousand threads at once, and thousands of small launches") {
#if defined(PACKRNN_TSAN)
  constexpr unsigned kBlocks = 2;
#else
  constexpr unsigned kBlocks = 64;
#endif
  std::uint32_t counter = 0, threads = 0;
  run(cooperative(kBlocks, 256), [&] {
    atomicAdd(&threads, 1);
    grid_barrier(&counter, 1);
  });
  CHECK(threads == kBlocks * 256);
  const std::uint64_t before = simt::stats().launches;
  for (int i = 0; i < 1000; ++i) run(blocks_of(2, 32), [&] { atomicAdd(&threads, 1); });
  CHECK(threads == kBlocks * 256 + 1000 * 64);
  CHECK(simt::stats().launches == before + 1000);
}

}  // namespace
}  // namespace packrnn::tests

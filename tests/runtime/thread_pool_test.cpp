#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <packrnn/runtime/error.hpp>
#include <packrnn/runtime/thread_pool.hpp>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/catch.hpp"

namespace packrnn {
namespace {

using Catch::Contains;

}  // namespace

TEST_CASE("every worker runs once, each on its own thread, worker 0 on the caller's") {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    REQUIRE(pool.size() == threads);
    std::vector<std::thread::id> ids(static_cast<std::size_t>(threads));
    std::vector<int> calls(static_cast<std::size_t>(threads));
    for (int repeat = 0; repeat < 3; ++repeat)
      pool.run([&](int worker) {
        ids[static_cast<std::size_t>(worker)] = std::this_thread::get_id();
        ++calls[static_cast<std::size_t>(worker)];
      });
    CHECK(std::all_of(calls.begin(), calls.end(), [](int n) { return n == 3; }));
    CHECK(std::set<std::thread::id>(ids.begin(), ids.end()).size() == ids.size());
    CHECK(ids[0] == std::this_thread::get_id());
  }
}

TEST_CASE("runs follow each other at any pace: spinning, parked and in between") {
  ThreadPool pool(3);
  std::vector<std::int64_t> sums(3);  // plain: a run orders what it does with what comes after
  std::int64_t expected = 0;
  for (int i = 0; i < 2000; ++i) {
    expected += i;
    pool.run([&](int worker) { sums[static_cast<std::size_t>(worker)] += i; });
    if (i % 100 == 0) std::this_thread::sleep_for(std::chrono::microseconds(i * 2));
  }
  CHECK(sums == std::vector<std::int64_t>(3, expected));
}

TEST_CASE("an exception of any worker comes out of run() after all have ended") {
  for (const int threads : {1, 4}) {
    ThreadPool pool(threads);
    for (int thrower = 0; thrower < threads; ++thrower) {
      std::atomic<int> ended{0};
      CHECK_THROWS_WITH(pool.run([&](int worker) {
        if (worker == thrower) throw std::runtime_error("worker " + std::to_string(worker));
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        ++ended;
      }),
                        "worker " + std::to_string(thrower));
      CHECK(ended == threads - 1);
    }
    CHECK_THROWS_AS(pool.run([](int) { throw std::runtime_error("all of them"); }),
                    std::runtime_error);
    std::atomic<int> calls{0};
    pool.run([&](int) { ++calls; });
    CHECK(calls == threads);
  }
}

TEST_CASE("run() inside a task of the same pool is refused, of another pool is not") {
  for (const int threads : {1, 2}) {
    ThreadPool pool(threads);
    ThreadPool other(threads);
    CHECK_THROWS_AS(pool.run([&](int worker) {
      if (worker == 0) pool.run([](int) {});
    }),
                    InvalidArgument);
    CHECK_THROWS_WITH(pool.run([&](int worker) {
      if (worker == threads - 1) pool.run([](int) {});
    }),
                      Contains("inside a task") && Contains(std::to_string(threads)));
    std::atomic<int> calls{0};
    pool.run([&](int worker) {
      if (worker == 0) other.run([&](int) { ++calls; });
    });
    CHECK(calls == threads);
  }
}

TEST_CASE("many pools work at once, one per thread of the host program") {
  std::vector<std::thread> hosts;
  std::atomic<std::int64_t> total{0};
  for (int host = 0; host < 6; ++host)
    hosts.emplace_back([&total, host] {
      for (int life = 0; life < 3; ++life) {
        ThreadPool pool(1 + host % 4);
        for (int i = 0; i < 100; ++i) {
          std::atomic<int> calls{0};
          pool.run([&](int) { ++calls; });
          total += calls.load() == pool.size();
        }
      }
    });
  for (std::thread& host : hosts) host.join();
  CHECK(total == 6 * 3 * 100);
}

TEST_CASE("a pool that never ran ends at once") {
  for (int i = 0; i < 20; ++i) ThreadPool pool(1 + i % 5);
  ThreadPool pinned(3, true);
  std::atomic<int> calls{0};
  pinned.run([&](int) { ++calls; });
  CHECK(calls == 3);
}

TEST_CASE("numbers of threads that cannot be are refused with the number") {
  CHECK_THROWS_WITH(ThreadPool(0), Contains("threads is 0"));
  CHECK_THROWS_AS(ThreadPool(-3), InvalidArgument);
  CHECK_THROWS_WITH(ThreadPool(1000000), Contains("1000000") && Contains("4096"));
  CHECK(available_threads() >= 1);
}

TEST_CASE("a barrier orders what was written before it and what is read after it") {
  for (const int team : {1, 2, 3, 5}) {
    ThreadPool pool(team);
    CHECK(pool.crowded() == (team > available_threads()));
    Barrier barrier(team, pool.crowded());
    constexpr int kRounds = 300;
    std::vector<int> written(static_cast<std::size_t>(team), -1);  // plain on purpose
    std::atomic<int> wrong{0};
    pool.run([&](int worker) {
      for (int round = 0; round < kRounds; ++round) {
        written[static_cast<std::size_t>(worker)] = round;
        barrier.wait();
        for (const int value : written) wrong += value != round;
        barrier.wait();
      }
    });
    CHECK(wrong == 0);
  }
}

TEST_CASE("split covers the range once, in parts that differ by at most one") {
  for (const std::int64_t count : {0, 1, 2, 7, 64, 1000003})
    for (const int parts : {1, 2, 3, 8}) {
      std::int64_t next = 0;
      for (int part = 0; part < parts; ++part) {
        const Range range = split(count, part, parts);
        CHECK(range.begin == next);
        const std::int64_t size = range.end - range.begin;
        CHECK((size == count / parts || size == count / parts + 1));
        next = range.end;
      }
      CHECK(next == count);
    }
}

}  // namespace packrnn

// Spreads independent items over a context's threads when there is enough to do; private.
#pragma once

#include <cstddef>
#include <cstdint>

#include "packrnn/runtime/thread_pool.hpp"

namespace packrnn::kernels::cpu {

/// Waking a team costs some microseconds, in which one core copies about this much.
inline constexpr std::int64_t kParallelBytes = 256 * 1024;

/// Calls body(begin, end) for contiguous parts of [0, count), at most one on each thread; an item
/// moves about `item_bytes` bytes. The parts depend on the number of threads: items must not
/// depend on each other.
template <class Body>
void parallel_for(ThreadPool& pool, std::int64_t count, std::int64_t item_bytes, Body&& body) {
  if (count <= 0) return;
  // Division keeps count * item_bytes from overflowing.
  if (pool.size() == 1 || count <= kParallelBytes / (item_bytes > 0 ? item_bytes : 1)) {
    body(std::int64_t{0}, count);
    return;
  }
  pool.run([&](int worker) {
    const auto [begin, end] = split(count, worker, pool.size());
    if (begin < end) body(begin, end);
  });
}

/// Calls body(part, team) for every part of a team: all threads where so many bytes move that
/// sharing pays, else the caller alone.
template <class Body>
void on_team(ThreadPool& pool, std::size_t bytes, Body&& body) {
  if (pool.size() == 1 || bytes <= std::size_t{kParallelBytes}) {
    body(0, 1);
    return;
  }
  pool.run([&](int worker) { body(worker, pool.size()); });
}

}  // namespace packrnn::kernels::cpu

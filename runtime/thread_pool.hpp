// A team of threads that belongs to one Context. Several pools may work at the same time; none of
// them is global, and a pool of one thread never starts another.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <type_traits>

namespace packrnn {

/// Threads that this process may keep busy: its affinity mask and, in a container, its CPU quota,
/// not the machine's size. At least 1.
int available_threads() noexcept;

class ThreadPool {
 public:
  static constexpr int kMaxThreads = 4096;

  /// Starts threads - 1 workers (the caller of run() is the other one). With `pin`, worker k is
  /// bound to the k-th CPU of the process's affinity mask: right when the machine is yours, wrong
  /// inside somebody else's process, so off by default. The calling thread is never bound.
  /// Workers block asynchronous signals, which stay with the host program. A child of fork() has no
  /// workers: make the pool after forking. Throws InvalidArgument unless 1 <= threads <=
  /// kMaxThreads, DeviceError when the system refuses a thread.
  explicit ThreadPool(int threads, bool pin = false);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const noexcept;
  /// More threads than available_threads() said when the pool was made: waiting should not spin.
  bool crowded() const noexcept;

  /// Calls task(worker) for worker = 0 .. size() - 1, one call on each thread, and returns when all
  /// are done. One run() at a time per pool; a call from inside a task, or from a second thread
  /// meanwhile, is an error (InvalidArgument). The first exception of a task is rethrown here,
  /// after all have ended. A task that waits on a Barrier must not throw before its last wait.
  /// Allocates nothing.
  template <class Task>
  void run(Task&& task) {
    using Plain = std::remove_reference_t<Task>;
    run_erased([](void* context, int worker) { (*static_cast<Plain*>(context))(worker); },
               const_cast<void*>(static_cast<const void*>(std::addressof(task))));
  }

 private:
  using Call = void (*)(void* context, int worker);
  void run_erased(Call call, void* context);

  struct State;
  std::unique_ptr<State> state_;
};

/// Meeting point of a fixed team inside one ThreadPool::run(). Reusable any number of times.
///
/// Steps of a recurrence are a few microseconds apart, so a thread that waits spins. On a machine
/// that others keep busy, the one it waits for may have lost its CPU; to give up one's own as well
/// would cost a whole time slice at every meeting, so it goes on spinning for about as long.
/// Where the team has more threads than CPUs, the one it waits for needs this CPU, and it yields at
/// once.
class Barrier {
 public:
  /// `crowded`: the team has more threads than CPUs (ThreadPool::crowded()).
  explicit Barrier(int team, bool crowded = false) noexcept
      : spins_(crowded ? kFewSpins : kManySpins), team_(team) {}
  /// Returns when all `team` threads have called it; what each wrote before is visible to all
  /// after.
  void wait() noexcept;

 private:
  static constexpr int kFewSpins = 16, kManySpins = 300'000;

  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<std::uint32_t> generation_{0};
  int spins_;
  int team_;
};

/// The part of [0, count) that belongs to worker `part` of `parts`: contiguous, sizes differ by at
/// most one.
struct Range {
  std::int64_t begin, end;
};
inline Range split(std::int64_t count, int part, int parts) noexcept {
  const std::int64_t each = count / parts, extra = count % parts;
  const std::int64_t begin = part * each + (part < extra ? part : extra);
  return {begin, begin + each + (part < extra ? 1 : 0)};
}

}  // namespace packrnn

#include "packrnn/runtime/thread_pool.hpp"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <fstream>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "packrnn/runtime/expects.hpp"

namespace packrnn {
namespace {

// Longer than the gap between two layers of a model, shorter than anybody notices.
constexpr auto kSpinTime = std::chrono::microseconds(50);
constexpr int kPausesPerClock = 32;

void relax() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// True as soon as ready() is, false when kSpinTime has passed.
template <class Ready>
bool spin_until(const Ready& ready) noexcept {
  const auto deadline = std::chrono::steady_clock::now() + kSpinTime;
  do {
    for (int i = 0; i < kPausesPerClock; ++i) {
      if (ready()) return true;
      relax();
    }
  } while (std::chrono::steady_clock::now() < deadline);
  return ready();
}

/// CPUs of this process's affinity mask, in order; empty when it cannot be read.
std::vector<int> affinity() {
#ifdef __linux__
  for (int room = CPU_SETSIZE; room <= 1 << 20; room *= 4) {
    cpu_set_t* const set = CPU_ALLOC(room);
    if (set == nullptr) return {};
    std::vector<int> cpus;
    const std::size_t bytes = CPU_ALLOC_SIZE(room);
    const bool known = sched_getaffinity(0, bytes, set) == 0;
    try {
      for (int cpu = 0; known && cpu < room; ++cpu)
        if (CPU_ISSET_S(cpu, bytes, set)) cpus.push_back(cpu);
    } catch (...) {
      CPU_FREE(set);
      throw;
    }
    CPU_FREE(set);
    if (known) return cpus;
  }
#endif
  return {};
}

/// CPUs' worth of time that the container may use (control groups version 2), rounded up; 0 when
/// unlimited or unknown. Spinning threads beyond it would only use up the others' share.
int cpu_quota() {
  std::ifstream file("/sys/fs/cgroup/cpu.max");  // "max 100000" or "150000 100000"
  double quota = 0;
  double period = 0;
  if (!(file >> quota >> period) || quota <= 0 || period <= 0) return 0;
  return static_cast<int>(std::clamp((quota + period - 1) / period, 1.0, 1e6));
}

void bind_to(const std::vector<int>& cpus, int worker) noexcept {
#ifdef __linux__
  if (cpus.empty()) return;
  const int cpu = cpus[static_cast<std::size_t>(worker) % cpus.size()];
  if (cpu >= CPU_SETSIZE) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  pthread_setaffinity_np(pthread_self(), sizeof(set), &set);  // a wish: failure costs speed only
#else
  (void)cpus, (void)worker;
#endif
}

/// Asynchronous signals belong to the threads of the host program. Blocked here while workers
/// start, because a thread inherits its maker's mask. What a fault of the thread itself raises
/// stays.
class SignalBlock {
 public:
  SignalBlock() noexcept {
    sigset_t all;
    sigfillset(&all);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS, SIGPROF})
      sigdelset(&all, fault);
    blocked_ = pthread_sigmask(SIG_SETMASK, &all, &before_) == 0;
  }
  ~SignalBlock() {
    if (blocked_) pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  SignalBlock(const SignalBlock&) = delete;
  SignalBlock& operator=(const SignalBlock&) = delete;

 private:
  sigset_t before_{};
  bool blocked_ = false;
};

}  // namespace

int available_threads() noexcept {
  try {
    auto count = static_cast<int>(affinity().size());
    if (count == 0) count = static_cast<int>(std::thread::hardware_concurrency());
    const int quota = cpu_quota();
    if (quota > 0) count = std::min(count, quota);
    return std::max(count, 1);
  } catch (...) {
    return 1;
  }
}

// A run is announced by counting `announced` up. Whoever waits (workers for a run, the caller for
// the last worker) spins, then sleeps. Each side first writes its own flag and then reads the
// other's, all sequentially consistent, so at least one sees the other and no wake-up is lost.
struct ThreadPool::State {
  explicit State(int team) : size(team) {}

  int size;
  bool spins = false;
  std::vector<int> cpus;  // to pin to; empty: not pinned
  std::vector<std::thread> workers;

  alignas(64) std::atomic<std::uint32_t> announced{0};
  Call call = nullptr;  // these two are written before `announced`, null: stop
  void* context = nullptr;
  std::atomic<int> sleepers{0};

  alignas(64) std::atomic<int> remaining{0};
  std::atomic<bool> caller_sleeps{false};
  std::atomic<bool> busy{false};
  std::atomic<bool> failed{false};
  std::exception_ptr error;  // of the one that set `failed`

  std::mutex mutex;
  std::condition_variable wake, done;

  void announce(Call next, void* argument) {
    call = next;
    context = argument;
    announced.fetch_add(1);
    if (sleepers.load() == 0) return;
    { const std::lock_guard lock(mutex); }  // a sleeper is now inside wait()
    wake.notify_all();
  }

  void await_announcement(std::uint32_t seen) {
    const auto ready = [&] { return announced.load() != seen; };
    if (spins ? spin_until(ready) : ready()) return;
    std::unique_lock lock(mutex);
    ++sleepers;
    wake.wait(lock, ready);
    --sleepers;
  }

  void finish_part() {
    if (remaining.fetch_sub(1) != 1 || !caller_sleeps.load()) return;
    { const std::lock_guard lock(mutex); }
    done.notify_one();
  }

  void await_parts() {
    const auto ready = [&] { return remaining.load() == 0; };
    if (spins ? spin_until(ready) : ready()) return;
    std::unique_lock lock(mutex);
    caller_sleeps = true;
    done.wait(lock, ready);
    caller_sleeps = false;
  }

  void call_part(int worker) noexcept {
    try {
      call(context, worker);
    } catch (...) {
      if (!failed.exchange(true)) error = std::current_exception();
    }
  }

  void work(int worker) {
    pthread_setname_np(pthread_self(), "packrnn");
    bind_to(cpus, worker);
    for (std::uint32_t seen = 0;; ++seen) {
      await_announcement(seen);
      if (call == nullptr) return;
      call_part(worker);
      finish_part();
    }
  }

  void stop() noexcept {
    announce(nullptr, nullptr);
    for (std::thread& worker : workers) worker.join();
  }
};

ThreadPool::ThreadPool(int threads, bool pin) {
  expects(threads >= 1 && threads <= kMaxThreads, "threads is {}, but must be 1 to {}", threads,
          kMaxThreads);
  state_ = std::make_unique<State>(threads);
  if (threads == 1) return;
  state_->spins = threads <= available_threads();  // else it would keep the others from working
  if (pin) state_->cpus = affinity();
  state_->workers.reserve(static_cast<std::size_t>(threads) - 1);
  const SignalBlock block;
  try {
    for (int worker = 1; worker < threads; ++worker)
      state_->workers.emplace_back([state = state_.get(), worker] { state->work(worker); });
  } catch (const std::system_error& error) {
    const std::size_t started = state_->workers.size();
    state_->stop();
    throw DeviceError(fmt::format("threads is {}, but the system refused thread {}: {}", threads,
                                  started + 2, error.what()));
  } catch (...) {
    state_->stop();
    throw;
  }
}

ThreadPool::~ThreadPool() { state_->stop(); }

int ThreadPool::size() const noexcept { return state_->size; }

bool ThreadPool::crowded() const noexcept { return state_->size > 1 && !state_->spins; }

void ThreadPool::run_erased(Call call, void* context) {
  State& state = *state_;
  expects(
      !state.busy.exchange(true),
      "this pool of {} threads runs a task already: run() was called from inside a task, or from "
      "two threads at once",
      state.size);
  if (state.size == 1) {
    state.call = call;
    state.context = context;
    state.call_part(0);
  } else {
    state.remaining = state.size - 1;
    state.announce(call, context);
    state.call_part(0);
    state.await_parts();
  }
  std::exception_ptr error;
  if (state.failed) {
    error = std::exchange(state.error, nullptr);
    state.failed = false;
  }
  state.busy = false;
  if (error) std::rethrow_exception(std::move(error));
}

void Barrier::wait() noexcept {
  const std::uint32_t generation = generation_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == team_) {
    arrived_.store(0, std::memory_order_relaxed);
    generation_.store(generation + 1, std::memory_order_release);
    return;
  }
  const auto open = [&] { return generation_.load(std::memory_order_acquire) != generation; };
  for (int i = 0; i < spins_; ++i) {
    if (open()) return;
    relax();
  }
  while (!open()) sched_yield();
}

}  // namespace packrnn

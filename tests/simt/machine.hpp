// The engine's inside: one Machine per host thread holds everything about the launch it runs.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "tests/simt/engine.hpp"
#include "tests/simt/fibers.hpp"

namespace packrnn::simt {

struct Block;

/// 16 bytes under way to shared memory.
struct AsyncCopy {
  char* target;
  unsigned group;
  std::array<unsigned char, 16> data;
};

struct Fiber : Thread {
  enum class State : unsigned char { ready, spinning, blocked, done };

  Block* block_state = nullptr;
  Context* context = nullptr;
  State state = State::ready;
  // Why it does not run.
  const char* what = nullptr;
  Site site{"", 0};
  std::uint32_t mask = 0;

  std::uint64_t priority = 0;
  unsigned polls = 0;            // strong loads since it last waited for anything
  bool polled = false;           // it has backed off since its last barrier or warp operation
  std::uint16_t arrived_at = 0;  // named barriers where it arrived and did not wait
  bool cluster_arrived = false;
  unsigned cluster_phase = 0;
  std::vector<AsyncCopy> copies;                // issued, not yet waited for, oldest first
  unsigned open_group = 0, complete_group = 0;  // groups below complete_group have landed
};

/// Where threads of a group meet.
struct Barrier {
  std::vector<Fiber*> waiting, arrived;  // `arrived` does not wait
  unsigned phase = 0, expected = 0;
  bool divergent = false, polled = false;
  Tokens tokens;

  std::size_t count() const { return waiting.size() + arrived.size(); }
};

struct WarpOperation {
  std::uint32_t mask = 0, arrived = 0;
  const char* what = nullptr;
  Site site{"", 0};
  Combine combine = nullptr;
  bool polled = false;
  int inside = 0;  // lanes that have not yet gone on
  std::array<void*, 32> arguments;
  std::array<Fiber*, 32> lanes;
  Tokens tokens;
};

struct Warp {
  std::uint32_t live = 0;
  std::uint64_t priority = 0;
  std::vector<WarpOperation*> operations;
};

struct TransactionBarrier {
  void* address;
  unsigned count, pending, phase = 0;
  std::int64_t bytes = 0;
  Tokens tokens;
};

/// An own allocation, so that AddressSanitizer knows its ends; elsewhere a pattern behind it does.
struct SharedMemory {
  const void* key = nullptr;  // of a static one
  char* data = nullptr;
  std::size_t bytes = 0, capacity = 0;

  bool holds(const void* p) const { return p >= data && p < data + bytes; }
};

struct Cluster {
  std::vector<Block*> blocks;
  unsigned live = 0, arrived = 0, phase = 0;
  std::vector<Fiber*> waiting;
  Tokens tokens;
};

struct Block {
  uint3 id{};
  std::uint64_t index = 0;
  unsigned rank = 0, live = 0;
  bool retired = false;  // its end has been looked at
  Cluster* cluster = nullptr;
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  std::array<Barrier, 16> barriers;
  SharedMemory dynamic;
  std::vector<SharedMemory> statics;
  std::vector<TransactionBarrier> transactions;
};

/// A store under way to the shared memory of a block.
struct AsyncStore {
  Block* block;
  void* target;
  void* barrier;
  std::array<unsigned char, 16> data;
};

class Machine {
 public:
  using Clock = std::chrono::steady_clock;
  Machine();
  ~Machine();
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  void run(const char* name, const gpu::LaunchShape& shape, const gpu::Properties& properties,
           const std::function<void()>& body);

  // Called by the running fiber.
  /// Blocked, or ready again as `state` says; returns when it may go on.
  void wait(Fiber::State state, const char* what, Site site, std::uint32_t mask = 0);
  /// Lets the next one run; the caller has been made ready, or somebody will do so.
  void yield();
  WarpOperation& take_operation();
  void finish_operation(Warp& warp, std::size_t index);
  void complete(Barrier& barrier, bool by_exit);
  void complete(Cluster& cluster);
  void thread_done(Fiber& fiber);

  void make_ready(Fiber& fiber, Fiber::State state = Fiber::State::ready);
  std::size_t ready_count() const { return fifo_.size() + bag_.size(); }
  std::uint64_t random();
  void progress() { spins = 0; }
  /// Sees to it that the scheduler gets its turn at the next switch.
  void call_scheduler() { attention_ = true; }

  std::string title() const;
  std::string threads() const;
  [[noreturn]] void report(const std::string& why) const;

  // ---- of the launch that is running
  const char* name = nullptr;
  gpu::LaunchShape shape;
  std::size_t shared_limit = 0;
  const std::function<void()>* body = nullptr;
  Options settings;  // resolved: no by_seed, no negative
  std::uint64_t spins = 0, clock_ns = 0;
  std::exception_ptr error;
  std::vector<AsyncStore> stores;
  std::vector<WarpOperation*> free_operations;
  char start_token = 0, end_token = 0, fence_token = 0, proxy_token = 0;
  Context main;

  // ---- read by the watchdog
  std::atomic<Fiber*> current{nullptr};
  std::atomic<std::uint64_t> switches{0};
  std::atomic<const char*> running{nullptr};
  std::atomic<std::int64_t> started_ms{0}, deadline_ms{0};

 private:
  struct Scope;

  static void fiber_main();
  void run_thread();
  Fiber* next();
  void enter(Fiber& fiber);
  void schedule();
  void admit();
  void start_block(std::uint64_t index, Cluster& cluster);
  void reap();
  void retire(Block& block);
  void recycle(Cluster& cluster);
  void deliver();
  void check_deadline() const;
  void reset();
  SharedMemory allocate_shared(SharedMemory old, std::size_t bytes, std::size_t alignment);

  std::vector<Cluster*> resident_;
  std::size_t resident_limit_ = 0, resident_blocks_ = 0;
  std::vector<std::uint64_t> waiting_;  // clusters to come, the next one last
  std::deque<Fiber*> fifo_;             // ready, in order; or
  std::vector<Fiber*> bag_;             // ready, at random or as a heap
  std::uint64_t random_state_ = 1, low_priority_ = 0;
  bool attention_ = false;
  unsigned finished_blocks_ = 0;
  Clock::time_point deadline_;

  // ---- kept from launch to launch
  FiberPool fibers_{&fiber_main};
  std::vector<std::unique_ptr<Block>> blocks_;
  std::vector<Block*> free_blocks_;
  std::vector<std::unique_ptr<Cluster>> clusters_;
  std::vector<Cluster*> free_clusters_;
  std::vector<std::unique_ptr<WarpOperation>> operations_;
  void* proxy_ = nullptr;  // ThreadSanitizer's fiber for what happens asynchronously

  friend void* static_shared(const void*, std::size_t, std::size_t);
};

/// The machine of the launch that runs on this host thread.
extern constinit thread_local Machine* active;
inline Fiber& me() { return *static_cast<Fiber*>(self); }

/// Blocks of which one more thread is running for too long without a switch end the process.
void watch(Machine& machine);
void unwatch(Machine& machine);

}  // namespace packrnn::simt

// Everything a call needs besides its arguments: device, threads, scratch memory, plans, random
// numbers. Explicit and without globals: make one per thread that calls layers; a loaded layer may
// be shared by all of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "packrnn/runtime/buffer.hpp"
#include "packrnn/runtime/device.hpp"
#include "packrnn/runtime/plan_cache.hpp"
#include "packrnn/runtime/random.hpp"
#include "packrnn/runtime/thread_pool.hpp"

namespace packrnn {

/// Scratch memory that is handed out like a stack and kept between calls: after the first call of
/// a shape, nothing is allocated.
class Workspace {
 public:
  explicit Workspace(Device device) noexcept : device_(device) {}

  /// Memory taken through a Scope returns when the Scope dies. Scopes nest; they die in reverse
  /// order of birth, and only the youngest may take.
  class Scope {
   public:
    explicit Scope(Workspace& workspace) noexcept;
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

    /// Uninitialised, aligned to kAlignment. Throws OutOfMemory (and overflow of count * size as
    /// such), InvalidArgument for a negative count or while a younger Scope is alive; the workspace
    /// stays usable.
    template <class T>
    std::span<T> take(std::int64_t count) {
      return {static_cast<T*>(take_bytes(count, sizeof(T))), static_cast<std::size_t>(count)};
    }

   private:
    void* take_bytes(std::int64_t count, std::size_t element_size);

    Workspace& workspace_;
    std::size_t block_;
    std::size_t used_;
    int depth_;
  };

  /// Bytes held now, used or not.
  std::size_t capacity() const noexcept;
  /// Gives all memory back to the system. Only between calls (no Scope alive: InvalidArgument).
  void release();

 private:
  Device device_;
  std::vector<Buffer> blocks_;  // several only while growing; merged when the last scope ends
  std::size_t block_ = 0;       // block that is being handed out; those after it are unused
  std::size_t used_ = 0;        // bytes used of it
  int scopes_ = 0;
};

struct ContextOptions {
  /// Threads of the CPU engine, the caller's included; 0 means available_threads().
  int threads = 0;
  /// See ThreadPool.
  bool pin_threads = false;
  /// Seed of dropout (and of whatever else asks the context for random numbers).
  std::uint64_t seed = 0;
};

/// Used by one thread at a time. Movable, not copyable.
class Context {
 public:
  /// Throws Unsupported, saying why, when layers cannot run on `device`.
  explicit Context(Device device = Device::best(), ContextOptions options = {});
  Context(Context&&) noexcept;
  Context& operator=(Context&&) noexcept;
  ~Context();

  Device device() const noexcept;
  int threads() const noexcept;
  ThreadPool& pool() noexcept;
  Workspace& workspace() noexcept;
  Generator& random() noexcept;
  PlanCache& plans() noexcept;

  /// One line per algorithm chosen so far in this context, with the reason.
  std::string explain() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace packrnn

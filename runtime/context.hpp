// Everything a call needs besides its arguments: device, threads, scratch memory, plans, random
// numbers. Explicit and without globals: make one per thread that calls layers; a loaded layer may
// be shared by all of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "packrnn/runtime/buffer.hpp"
#include "packrnn/runtime/device.hpp"
#include "packrnn/runtime/plan_cache.hpp"
#include "packrnn/runtime/random.hpp"
#include "packrnn/runtime/tensor.hpp"
#include "packrnn/runtime/thread_pool.hpp"

namespace packrnn::gpu {
using Stream = struct StreamHandle*;
using Products = struct ProductsHandle*;
}  // namespace packrnn::gpu

namespace packrnn {

struct DeviceFault;
class DeviceQueue;
class Graph;

/// Scratch memory that is handed out like a stack and kept between calls: after the first call of
/// a shape, nothing is allocated. That of a context on a GPU is memory of the GPU, ordered by the
/// context's stream: only work on that stream may use it.
class Workspace {
 public:
  explicit Workspace(Device device);
  /// With an allocator of its own, and the stream that uses the memory (null on the CPU).
  Workspace(Device device, std::function<Buffer(std::size_t)> allocate, gpu::Stream stream);
  Workspace(Workspace&&) = default;
  Workspace& operator=(Workspace&&) = delete;
  /// With a stream: before the stream goes.
  ~Workspace() = default;

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
    void give_back() noexcept;

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
  std::size_t alignment() const noexcept;
  void add_block(std::size_t bytes);
  void mark(std::size_t block, std::size_t begin, std::size_t end, bool usable) noexcept;

  Device device_;
  std::function<Buffer(std::size_t)> allocate_;
  gpu::Stream stream_ = nullptr;
  std::vector<Buffer> blocks_;  // several only while growing; merged when the last scope ends
  std::size_t block_ = 0;       // block that is being handed out; those after it are unused
  std::size_t used_ = 0;        // bytes used of it
  int scopes_ = 0;
};

/// How f32 layers multiply on a GPU (the CPU is always exact).
enum class F32Math : std::uint8_t {
  exact,   // one chain of fused multiply-adds per element: the same bits as the CPU engine
  tf32x3,  // tensor cores, three products of tf32 parts: close to f32
  tf32,    // tensor cores, factors rounded to 11 bits
};

/// "exact", "tf32x3", "tf32".
const char* name_of(F32Math math) noexcept;
/// What PACKRNN_F32_MATH in the environment names; exact without it. Throws InvalidArgument for
/// anything else.
F32Math default_f32_math();

struct ContextOptions {
  /// Threads of the CPU engine, the caller's included; 0 means available_threads(), or, for a
  /// context on a GPU, 1.
  int threads = 0;
  /// See ThreadPool.
  bool pin_threads = false;
  /// Seed of dropout (and of whatever else asks the context for random numbers).
  std::uint64_t seed = 0;
  F32Math f32_math = default_f32_math();
  /// A stream of the caller's (a cudaStream_t of the device, not the default stream) to work on
  /// instead of a new one; it must outlive the context and every tensor the context made.
  void* stream = nullptr;
  /// "persistent", "cluster" or "step": what recurrent layers on a GPU run, or Unsupported where
  /// it cannot; empty: PACKRNN_ALGORITHM in the environment or, without it, the fastest.
  std::string algorithm = {};
};

/// Used by one thread at a time. Movable, not copyable.
///
/// On a GPU everything a context is asked for is done in the order of its stream, and the host does
/// not wait for it, except where it says so here. Work of two contexts is ordered by wait_for()
/// only. A tensor made by a context returns its memory in the order of that context's stream: if
/// another context uses it, the first must wait_for() the other before the tensor dies.
class Context {
 public:
  /// Throws Unsupported, saying why, when layers cannot run on `device`, and InvalidArgument for
  /// options that make no sense.
  explicit Context(Device device = Device::best(), ContextOptions options = {});
  Context(Context&&) noexcept;
  Context& operator=(Context&&) noexcept;
  /// Does not wait for the work on the stream, except for uploads under way.
  ~Context();

  Device device() const noexcept;
  int threads() const noexcept;
  ThreadPool& pool() noexcept;
  Workspace& workspace() noexcept;
  Generator& random() noexcept;
  PlanCache& plans() noexcept;
  F32Math f32_math() const noexcept;
  /// "" where the fastest is to be chosen.
  const std::string& algorithm() const noexcept;

  /// Tensors on the context's device. On a GPU their memory comes from its pool in stream order.
  Tensor empty(Shape shape, Dtype dtype);
  Tensor zeros(Shape shape, Dtype dtype);
  /// A copy on the context's device, wherever `view` lies. Host memory may change as soon as the
  /// call returns: it goes through a small ring of pinned memory, and the host waits only when more
  /// is under way than the ring holds.
  Tensor to_device(const TensorView& view);
  /// A copy on the host. Waits as synchronize() does, and throws what it throws.
  Tensor to_host(const TensorView& view);
  /// Same shape and dtype, no overlap; to or from this context's device, or between host tensors.
  /// To the host: waits as to_host() does.
  void copy(const TensorView& from, const TensorSpan& to);

  /// Waits until everything this context was asked for is done. Throws what went wrong on the
  /// device since the last wait: InvalidArgument for what kernels found in data that only they see
  /// (lengths, indices), DeviceError for the rest. On the CPU there is nothing to wait for.
  void synchronize();
  /// What this context is asked for from here on starts after all that `other` was asked for so
  /// far; the host does not wait. Any pair of devices; nothing to do where either is the CPU.
  void wait_for(const Context& other);

  /// The stream behind it all (see runtime/gpu.hpp); null on the CPU.
  gpu::Stream stream() const noexcept;
  /// The stream as a cudaStream_t, for work of the caller's own; null on the CPU.
  void* native_stream() const noexcept;
  /// Products of the context's stream, made at the first call. Not on the CPU (InvalidArgument);
  /// Unsupported without cuBLASLt.
  gpu::Products products();
  /// Where kernels write what they find wrong (runtime/device_fault.hpp), in device memory; null on
  /// the CPU. synchronize() and to_host() read it.
  DeviceFault* fault() const noexcept;

  /// What copies to and from this context's device in the order of its stream, and outlives it; for
  /// the library's own use (runtime/device_queue.hpp). Null on the CPU.
  std::shared_ptr<DeviceQueue> shared_queue() const noexcept;

  /// Lane `index` of this context, for the library's own use: a context of the same device and
  /// settings with a stream of its own, so that work can run beside this context's. It is made at
  /// the first call and lives as long as this context. Neither starts after the other unless told
  /// so by wait_for(); synchronize() of this context reports what goes wrong on a lane, provided
  /// that this context waits for the lane first. Only on a GPU.
  Context& lane(std::size_t index);

  /// One line per algorithm chosen so far in this context, with the reason.
  std::string explain() const;

 private:
  friend class Graph;
  friend Graph capture(Context& context, const std::function<void()>& body);

  DeviceQueue* queue() const noexcept;

  struct State;
  explicit Context(std::unique_ptr<State> state) noexcept;
  std::unique_ptr<State> state_;
};

}  // namespace packrnn

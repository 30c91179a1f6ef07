// The host's side of the simt engine, which runs CUDA kernels on the CPU: how launches are
// scheduled and what runs one. Kernels never see this header; they see engine.hpp, by way of
// device.cuh.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <stdexcept>

#include "packrnn/runtime/gpu.hpp"

namespace packrnn::simt {

/// What a kernel or a launch did wrong: kernel, block, thread and source line are in the message.
/// The body of gpu.hpp carries it to the host as DeviceError.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Which of the threads that can go on does so. `random` is fair, so warps stay close together;
/// `priority` lets a random warp run as far ahead as it can while those that poll give way, which
/// is what shows a barrier missing between two phases. `by_seed` is random for odd seeds and
/// priority for even ones, and preempts at atomics in half of both.
enum class Order { forward, reverse, random, priority, by_seed };

struct Options {
  Order order = Order::by_seed;
  std::uint64_t seed = 1;
  /// Chance of a switch at an atomic, strong or acquiring access; negative: as by_seed says, else
  /// 0.
  int preempt_permille = -1;
  /// Blocks of a launch, neither cooperative nor of clusters, that are resident at once; 0: all.
  /// More find more races between blocks, fewer are faster.
  unsigned resident_blocks = 3;
  std::size_t stack_bytes = 0;  // per CUDA thread; 0: 64 KiB, in sanitizer builds 256 KiB
  bool poison = true;           // fill fresh memory with kPoison, else with zeros
  bool strict_barrier = true;   // threads that meet in __syncthreads must come from one line
  bool strict_exit = false;     // a barrier or warp operation must not complete by threads' returns
  std::uint64_t spin_limit = 2000;  // rounds of polling without any progress that are a livelock
  double deadline_s = 0;  // per launch; 0: 120 s, in sanitizer builds 600 s; negative: none
};

/// Of the calling host thread. They start as the environment says: PACKRNN_SIMT_SEED,
/// PACKRNN_SIMT_ORDER (forward, reverse, random, priority, by_seed), PACKRNN_SIMT_PREEMPT
/// (permille), PACKRNN_SIMT_RESIDENT (blocks) and PACKRNN_SIMT_DEADLINE (seconds).
Options& options();

/// What the calling host thread has run so far.
struct Stats {
  std::uint64_t launches = 0, blocks = 0, threads = 0, switches = 0, barriers = 0,
                warp_operations = 0;
};
Stats& stats();

/// A NaN as bf16, f16, f32 and f64, a wild index as an integer, and not 0xFFFF, which the mailboxes
/// of our kernels use as "not yet written".
inline constexpr std::uint16_t kPoison = 0x7FF1;
void poison(void* data, std::size_t bytes);

/// Throws Error unless a device with these properties can start such a launch.
void check(const char* name, const gpu::LaunchShape& shape, const gpu::Properties& properties);

/// Runs all threads of a launch to their ends; `body` is called once in each. Throws Error when
/// something is wrong; whatever happened, the next launch can be run. Any host thread may call it,
/// several at the same time.
void run(const char* name, const gpu::LaunchShape& shape, const gpu::Properties& properties,
         const std::function<void()>& body);

/// Blocks that a multiprocessor holds at once, and clusters that the device holds at once: by
/// threads and shared memory alone, because nobody knows the registers.
int resident_blocks(const gpu::Properties& properties, int block, std::size_t shared);
int resident_clusters(const gpu::Properties& properties, int block, std::size_t shared,
                      int cluster);

/// Puts a launch on a stream; launch.cuh calls it. Defined with the simt devices, in device.cpp.
void enqueue(gpu::Stream stream, const char* name, const gpu::LaunchShape& shape,
             std::function<void()> body);

}  // namespace packrnn::simt

// What the persistent kernels have in common: how the blocks of a group hand h to each other, share
// out the rows and notice that they wait in vain.
//
// The output y is the mailbox (on the way back dgates, for the gradients of gates). Before the
// launch it is filled with kNothing; a block publishes its part of h by storing it where it belongs
// in y, 32 bits at a time, and a reader loads the very words that it needs until none of them is
// kNothing. Every word is written once, so
// there is nothing to reset, and the word is its own flag, so there is nothing to order: relaxed
// loads and stores are enough. Both sides use the same 32 bits, because mixed sizes have no
// guarantees. No computed value may equal kNothing: NaNs are made canonical before they are
// published.
#pragma once

#include "packrnn/kernels/cuda/chunk_step.cuh"
#include "packrnn/kernels/cuda/fault.cuh"
#include "packrnn/kernels/cuda/recurrent_run.hpp"

namespace packrnn::kernels::cuda {

inline constexpr unsigned kNothing = 0xFFFFFFFFU;

/// The bits of a float that is to be published.
__device__ __forceinline__ unsigned message(float h) {
  return h == h ? __float_as_uint(h) : 0x7FFFFFFFU;
}

/// Notices that a wait lasts longer than any honest one. Then the fault is reported, every thread
/// of the launch stops waiting soon after, and the kernel ends with results that nobody will see.
struct Watchdog {
  DeviceFault* fault;
  std::uint64_t limit_ns;  // of one wait; 0: none
  std::uint64_t since = 0;
  bool expired = false;

  __device__ Watchdog(DeviceFault* where, std::uint64_t limit) : fault(where), limit_ns(limit) {}

  /// To be called after the misses-th fruitless look, counted from 0. Returns false when there is
  /// no point in looking again. `step`, `row` (of the sorted batch) and `part` say what is missing.
  __device__ bool look_again(int misses, long long step, long long row, long long part) {
    constexpr int kPatience = 64;  // misses between two looks at the clock
    if (expired) return false;
    backoff(misses);
    if (limit_ns == 0 || misses % kPatience != 0) return true;
    const std::uint64_t now = now_ns();
    if (misses == 0) since = now;
    if (misses > 0 && ld_relaxed(&fault->code) != 0U) {
      expired = true;
    } else if (now - since > limit_ns) {
      report(fault, FaultCode::watchdog, step, row, blockIdx.x, part);
      expired = true;
    }
    return !expired;
  }
};

/// Deals chunks of rows to groups, longest first, each to the group with the fewest steps so far.
/// Every block does all of it in the same way and keeps what is its own group's, so that nothing
/// has to be planned on the host, which may not know the lengths. Lives in shared memory.
struct ChunkDealer {
  long long load[kMostGroups];
  int next;  // chunk
  int answer;

  /// By all threads of the block.
  __device__ void start(int groups) {
    for (int g = static_cast<int>(threadIdx.x); g < groups; g += static_cast<int>(blockDim.x))
      load[g] = 0;
    if (threadIdx.x == 0) next = 0;
  }

  /// The first row of the group's next chunk of `chunk` rows, -1 when there is none left. By all
  /// threads of the block, with the same arguments; a barrier for them. Only rows that are alive in
  /// steps [first, last) are dealt.
  __device__ int deal(const DeviceLayout& layout, int first, int last, int chunk, int groups,
                      int group) {
    __syncthreads();  // start() is done, and the answer before has been read
    if (threadIdx.x < 32) {
      const int lane = static_cast<int>(threadIdx.x);
      const int rows = ChunkStep::alive(layout, first, 0, layout.batch);
      int mine = -1, index = next;
      __syncwarp();  // all have read `next`
      for (; mine < 0 && index < (rows + chunk - 1) / chunk; ++index) {
        long long least = 0x7FFFFFFFFFFFFFFFLL;
        int owner = kMostGroups;
        for (int g = lane; g < groups; g += 32)
          if (load[g] < least) {
            least = load[g];
            owner = g;
          }
        for (int distance = 16; distance > 0; distance /= 2) {
          const long long other = __shfl_xor_sync(0xFFFFFFFFU, least, distance);
          const int other_owner = __shfl_xor_sync(0xFFFFFFFFU, owner, distance);
          if (other < least || (other == least && other_owner < owner)) {
            least = other;
            owner = other_owner;
          }
        }
        const int row = index * chunk;
        if (owner % 32 == lane) load[owner] += min(layout.lengths[row], last) - first;
        if (owner == group) mine = row;
      }
      if (lane == 0) {
        next = index;
        answer = mine;
      }
    }
    __syncthreads();  // the answer is there
    return answer;
  }
};

}  // namespace packrnn::kernels::cuda

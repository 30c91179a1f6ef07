// What device code sees of the simt engine: the thread that runs it, and every operation that a
// plain C++ compiler cannot be taught. device.cuh is the only one to include it; with cuda.hpp,
// below, a kernel source compiles as host C++.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tests/simt/simt.hpp"

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};

namespace packrnn::simt {

/// A line of kernel source; as a default argument it is that of the call.
struct Site {
  const char* file;
  int line;
};
#define PACKRNN_SITE ::packrnn::simt::Site site = {__builtin_FILE(), __builtin_LINE()}

/// The CUDA thread that is running. The engine keeps more about it, see machine.hpp.
struct Thread {
  uint3 thread, block;
  dim3 block_size, grid_size;
  unsigned linear, lane, warp;
  char* shared;  // dynamic shared memory of its block
};
extern constinit thread_local Thread* self;

/// Ends the launch with a report about the running thread.
[[noreturn]] void fail(const char* why, Site site);

// ---- barriers ---------------------------------------------------------------------------------
/// Threads: 0 for all of the block that have not returned.
void block_barrier(unsigned id, unsigned threads, bool wait, const char* what, Site site);
void cluster_arrive(Site site);
void cluster_wait(Site site);
unsigned cluster_rank();
unsigned cluster_id();
unsigned cluster_size();
void fence();

// ---- polling ----------------------------------------------------------------------------------
/// Lets others run; when only polling threads are left and nothing changes, it is a livelock.
void backoff(Site site);
/// Around every strong or atomic access: a chance to switch, and what the livelock detector counts.
void before_access(const void* address, std::size_t alignment, Site site);
void after_load();
void after_store(bool changed);
/// Virtual nanoseconds: they pass slowly while there is work, and fast while there is only polling,
/// so that watchdogs of kernels expire.
std::uint64_t now_ns();

// ---- shared memory ----------------------------------------------------------------------------
/// The block's own variable for this declaration, named by an address.
void* static_shared(const void* key, std::size_t bytes, std::size_t alignment);
/// Where `local`, in shared memory, lies in the block of that rank of the cluster.
void* map_shared(void* local, unsigned rank, std::size_t alignment, Site site);

// ---- warps ------------------------------------------------------------------------------------
/// Combines the arguments of all lanes that arrived.
using Combine = void (*)(std::uint32_t arrived, void* const* arguments);
void warp_operation(const char* what, std::uint32_t mask, void* argument, Combine combine,
                    bool orders_memory, Site site);
/// The value of lane `source`; poison if that takes no part.
std::uint64_t shuffle(const char* what, std::uint32_t mask, std::uint64_t value, int source,
                      Site site);
std::uint32_t ballot(const char* what, std::uint32_t mask, bool value, Site site);
std::uint32_t match(const char* what, std::uint32_t mask, std::uint64_t value, Site site);

// ---- instructions -----------------------------------------------------------------------------
enum class Fragment { bf16, f16, tf32 };
void mma(Fragment type, float* d, const std::uint32_t* a, const std::uint32_t* b, Site site);
void load_matrix(std::uint32_t* registers, int matrices, bool transpose, const void* row,
                 Site site);
/// The source is read at once, the target is garbage until the group has been waited for.
void copy_async(void* target, const void* source, std::size_t bytes, bool zero, Site site);
void copy_async_commit();
void copy_async_wait(unsigned groups_left);
void mbarrier_init(void* barrier, unsigned count, Site site);
void mbarrier_arrive_expect(void* barrier, unsigned bytes, Site site);
bool mbarrier_try_wait(void* barrier, unsigned parity, Site site);
/// 16 bytes, delivered at some later time and in any order.
void store_async(void* target, void* barrier, const void* value, Site site);

}  // namespace packrnn::simt

#include "tests/simt/cuda.hpp"

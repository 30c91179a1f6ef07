// The one seam between the library and a GPU; private. Three bodies, chosen when linking: cuda/
// (the CUDA runtime), no_cuda/ (throws Unsupported) and tests/simt (runs the kernels on the CPU).
// Nothing outside these bodies calls the CUDA runtime, so whatever works here works on all of them.
//
// Work is put on a stream and done in its order; nothing here waits for the device unless its
// comment says so, and every such wait is counted (waits()). Failures throw DeviceError, a lack of
// memory OutOfMemory. Any thread may call anything; a stream belongs to one thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "packrnn/runtime/dtype.hpp"

namespace packrnn::gpu {

struct Properties {
  std::string name, uuid;
  int major = 0, minor = 0;  // compute capability
  int multiprocessors = 0;
  int driver = 0;                    // as CUDA counts: 13000
  std::size_t memory = 0;            // bytes
  std::size_t shared_per_block = 0;  // the most a block can opt in to
  std::size_t l2 = 0;                // bytes
  int threads_per_multiprocessor = 0;
  int clock_khz = 0;
  bool cooperative = false;  // a launch can ask that all its blocks are resident
  bool clusters = false;     // sm_90 and up
};

/// Never throws; 0 whenever anything is missing.
int device_count() noexcept;
/// "CUDA: ..." without the conclusion ("using the CPU"), which device.cpp draws.
std::string finding();
/// Throws Unsupported when there is no such device, its architecture is not in this build, or the
/// driver is too old; the message says what to do. Cheap after the first call.
const Properties& properties(int device);

// ---- streams and events -----------------------------------------------------------------------
using Stream = struct StreamHandle*;
using Event = struct EventHandle*;

Stream create_stream(int device);
/// A stream of the caller's (a cudaStream_t, not null), which stays theirs.
Stream adopt_stream(int device, void* native);
/// Returns at once; what is on the stream still runs.
void destroy(Stream) noexcept;
int device_of(Stream) noexcept;
void* native(Stream) noexcept;
/// Waits until everything on the stream is done; throws what went wrong there.
void wait(Stream);

/// For ordering, and, if `timed`, for elapsed_ms().
Event create_event(int device, bool timed = false);
void destroy(Event) noexcept;
void record(Event, Stream);
/// The stream goes on when the event's last record is done; no wait of the host. An event that was
/// never recorded holds up nobody.
void wait(Stream, Event);
/// Does not wait.
bool done(Event);
void wait(Event);
/// Both recorded, timed and done.
float elapsed_ms(Event from, Event to);

// ---- memory -----------------------------------------------------------------------------------
/// Uninitialised, aligned to 256 bytes. With a stream: from its device's pool, usable by work that
/// is put on that stream later. Without: usable at once (may wait).
void* allocate(int device, std::size_t bytes, Stream stream = nullptr);
/// With the stream it was allocated on: returns to the pool when the stream gets there; any thread
/// may do that. Without: when the device is done with what it was given (may wait).
void release(int device, void* data, Stream stream = nullptr) noexcept;
/// Host memory that copies without a detour; usable by every device.
void* allocate_pinned(std::size_t bytes);
void release_pinned(void* data) noexcept;

enum class Copy { to_device, to_host, on_device };
/// In stream order. Host memory must stay until the copy is done; pageable host memory may make the
/// call wait (counted).
void copy(void* target, const void* source, std::size_t bytes, Copy kind, Stream stream);
/// From one device's memory to another's, in order on `stream`, which is of either.
void copy_peer(void* target, int target_device, const void* source, int source_device,
               std::size_t bytes, Stream stream);
void fill(void* target, int byte, std::size_t bytes, Stream stream);

// ---- graphs -----------------------------------------------------------------------------------
using Graph = struct GraphHandle*;
/// From here to end_capture() work on the stream is recorded, not done. No waits, no events and no
/// allocations on the stream in between (allocations without one are allowed); what is released on
/// it is released when the capture ends.
void begin_capture(Stream);
Graph end_capture(Stream);
bool capturing(Stream) noexcept;
void launch(Graph, Stream);
void destroy(Graph) noexcept;

// ---- kernels ----------------------------------------------------------------------------------
struct LaunchShape {
  std::array<unsigned, 3> grid{1, 1, 1}, block{1, 1, 1};
  std::size_t shared = 0;    // bytes of dynamic shared memory
  bool cooperative = false;  // all blocks resident at once, or DeviceError
  unsigned cluster = 1;      // blocks of a cluster, along x
};

/// The only place where a kernel starts (kernels/cuda/launch.cuh calls it with typed arguments).
/// Checks the launch, and with PACKRNN_SYNC=1 in the environment also waits, so that an error is
/// reported by the kernel that made it. `arguments` are copied. `name` is a literal: what profilers
/// (NVTX) and messages show. Only in builds for CUDA; the simt body has its own (see launch.cuh).
void launch(Stream, const char* name, const void* kernel, const LaunchShape&, void** arguments);
/// Blocks of this kernel that one multiprocessor holds at once. `block` threads, `shared` bytes.
int resident_blocks(int device, const void* kernel, int block, std::size_t shared);
/// Clusters of `cluster` such blocks that the device holds at once; 0: none fits.
int resident_clusters(int device, const void* kernel, int block, std::size_t shared, int cluster);

// ---- products ---------------------------------------------------------------------------------
/// Plans and workspace of d = a b^T (+ d) (+ bias) for one stream, which everything runs on. One
/// algorithm per (n, k, dtypes), chosen without looking at m: a row has the same bits whatever rows
/// stand beside it (contract C1). Of d = a^T b (+ d), the sums over all rows that gradients of
/// weights are, one algorithm per (m, n, dtypes): two runs give the same bits.
using Products = struct ProductsHandle*;
/// Throws Unsupported when the library (cuBLASLt) is missing, naming it.
Products create_products(Stream);
void destroy(Products) noexcept;

struct Product {
  std::int64_t m = 0, n = 0, k = 0;
  Dtype in = Dtype::bf16;  // of a [m, k] and b [n, k]: f16, bf16 or, rounded to tf32, f32
  Dtype out = Dtype::f32;  // of d [m, n]: f32, or `in`
  std::int64_t lda = 0, ldb = 0, ldd = 0;  // elements between rows; 0: no gap
  bool accumulate = false;                 // adds to d, not with bias
  bool transposed = false;                 // a is [k, m], b is [k, n]: d = a^T b; not with bias
};
/// Throws InvalidArgument unless a body can compute it; fills in the gaps. In runtime/product.cpp.
Product checked(const Product& product, bool bias);
/// Sums are in f32. bias [n] is f32, for out f32 only (null: none).
void multiply(Products, const Product&, const void* a, const void* b, const float* bias, void* d);

// ---- for tests --------------------------------------------------------------------------------
/// Says that these bytes, part of an allocation, may or may not be touched by work that is put on
/// the stream from here on; what becomes usable is uninitialised. Only tests/simt does anything.
void mark(void* data, std::size_t bytes, bool usable, Stream) noexcept;
/// How often the host has waited for a device, in this process.
std::int64_t waits() noexcept;

}  // namespace packrnn::gpu

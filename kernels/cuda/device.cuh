// All that kernels need of the hardware and CUDA C++ does not say portably: tensor cores, strong
// and asynchronous memory accesses, clusters, named barriers, storage types. Two bodies: PTX for
// nvcc (sm_80 and up), and the simt engine, which runs the same kernel sources on the CPU.
//
// Spelled as CUDA does, and understood by both: __global__, __device__, __launch_bounds__,
// threadIdx and its kin, __syncthreads, __syncwarp, __shfl_*_sync, __ballot_sync, __any_sync,
// __all_sync, atomics, fmaf, fma, __fdiv_rn, rintf, __float_as_uint, min, max ...
#pragma once

#include <cstdint>

// PACKRNN_SHARED(float, tile, [32][33]);  PACKRNN_DYNAMIC_SHARED(float, scratch);  // a float*
#if defined(PACKRNN_SIMT)
#include "packrnn/runtime/element.hpp"
#include PACKRNN_SIMT  // the engine's header: nothing of the product names what lies in tests/
#define PACKRNN_HAS_CLUSTER 1
#define PACKRNN_UNROLL
#define PACKRNN_DEVICE inline
#define PACKRNN_SHARED(type, name, ...)             \
  using name##_array = type __VA_ARGS__;            \
  static const char name##_key = 0;                 \
  name##_array& name = *static_cast<name##_array*>( \
      ::packrnn::simt::static_shared(&name##_key, sizeof(name##_array), alignof(name##_array)))
#define PACKRNN_DYNAMIC_SHARED(type, name) \
  type* const name = reinterpret_cast<type*>(::packrnn::simt::self->shared)
// A call's own line, for reports, of functions that are built from others.
#define PACKRNN_CALLER , PACKRNN_SITE
#define PACKRNN_CALLER_ONLY PACKRNN_SITE
#define PACKRNN_CALL , site
#define PACKRNN_CALL_ONLY site
#else
#include <cuda_runtime.h>
// Clusters, distributed shared memory and transaction barriers; code that uses them stands inside
// #if PACKRNN_HAS_CLUSTER.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define PACKRNN_HAS_CLUSTER 1
#else
#define PACKRNN_HAS_CLUSTER 0
#endif
#define PACKRNN_UNROLL _Pragma("unroll")
#define PACKRNN_DEVICE __device__ __forceinline__
#define PACKRNN_SHARED(type, name, ...) __shared__ __align__(16) type name __VA_ARGS__
#define PACKRNN_DYNAMIC_SHARED(type, name)                                 \
  extern __shared__ __align__(128) unsigned char packrnn_dynamic_shared[]; \
  type* const name = reinterpret_cast<type*>(packrnn_dynamic_shared)
#define PACKRNN_CALLER
#define PACKRNN_CALLER_ONLY
#define PACKRNN_CALL
#define PACKRNN_CALL_ONLY
#endif

namespace packrnn::kernels::cuda {

struct alignas(8) U32x2 {
  std::uint32_t x, y;
};
struct alignas(16) U32x4 {
  std::uint32_t x, y, z, w;
};
struct alignas(16) F32x4 {
  float x, y, z, w;
};

/// Storage only: arithmetic is in float.
struct Bf16 {
  std::uint16_t bits;
};
struct F16 {
  std::uint16_t bits;
};

/// T from_float<T>(float): to the nearest, ties to even, beyond the largest to Inf. Every NaN
/// becomes 0x7FFF, so that no pair of results is 0xFFFFFFFF, which marks an unwritten word of a
/// mailbox.
template <class T>
PACKRNN_DEVICE T from_float(float value) = delete;

#if defined(PACKRNN_SIMT)

PACKRNN_DEVICE float to_float(Bf16 value) { return bfloat16_value(value.bits); }
PACKRNN_DEVICE float to_float(F16 value) { return half_value(value.bits); }
template <>
PACKRNN_DEVICE Bf16 from_float<Bf16>(float value) {
  return Bf16{value != value ? std::uint16_t{0x7FFF} : bfloat16_bits(value)};
}
template <>
PACKRNN_DEVICE F16 from_float<F16>(float value) {
  return F16{value != value ? std::uint16_t{0x7FFF} : half_bits(value)};
}
/// Bits of the nearest tf32, ties away from zero.
PACKRNN_DEVICE std::uint32_t to_tf32(float value) {
  return value != value ? 0x7FFFFFFFU : (__float_as_uint(value) + 0x1000U) & 0xFFFFE000U;
}
/// The same value, of which the compiler knows nothing: what is computed from it stays inside a
/// loop.
PACKRNN_DEVICE std::uint32_t opaque(std::uint32_t value) { return value; }
/// 2^x and 1/x with an error of a few ulp; not the same bits on every device.
PACKRNN_DEVICE float ex2_approx(float x) { return exp2f(x); }
PACKRNN_DEVICE float rcp_approx(float x) { return 1 / x; }

// ---- tensor cores: d += a b, with the whole warp. Fragments are those of the PTX manual: with
// g = lane / 4, q = lane % 4, register r of a is of row g + 8 (r & 1), of b of column g, and d[r]
// is row g + 8 (r / 2), column 2q + r % 2.
/// 16 x 16 times 16 x 8: a's register r holds columns 2q, 2q + 1 (+ 8 if r & 2), b's rows likewise.
PACKRNN_DEVICE void mma_bf16_16816(float (&d)[4], const U32x4& a, std::uint32_t b0,
                                   std::uint32_t b1, PACKRNN_SITE) {
  const std::uint32_t b[2] = {b0, b1};
  simt::mma(simt::Fragment::bf16, d, &a.x, b, site);
}
PACKRNN_DEVICE void mma_f16_16816(float (&d)[4], const U32x4& a, std::uint32_t b0, std::uint32_t b1,
                                  PACKRNN_SITE) {
  const std::uint32_t b[2] = {b0, b1};
  simt::mma(simt::Fragment::f16, d, &a.x, b, site);
}
/// 16 x 8 times 8 x 8: a's register r holds column q (+ 4 if r & 2), b's register r row q + 4r;
/// both from to_tf32(), for the lowest 13 bits are ignored.
PACKRNN_DEVICE void mma_tf32_1688(float (&d)[4], const U32x4& a, std::uint32_t b0, std::uint32_t b1,
                                  PACKRNN_SITE) {
  const std::uint32_t b[2] = {b0, b1};
  simt::mma(simt::Fragment::tf32, d, &a.x, b, site);
}

// ---- 8 x 8 matrices of 16-bit elements from shared memory: lane 8m + i gives row i of matrix m
// (16 bytes, aligned); register m holds elements 2q, 2q + 1 of row g of matrix m, or with _trans of
// column g.
PACKRNN_DEVICE U32x2 ldmatrix_x2(const void* row, PACKRNN_SITE) {
  U32x2 r;
  simt::load_matrix(&r.x, 2, false, row, site);
  return r;
}
PACKRNN_DEVICE U32x4 ldmatrix_x4(const void* row, PACKRNN_SITE) {
  U32x4 r;
  simt::load_matrix(&r.x, 4, false, row, site);
  return r;
}
PACKRNN_DEVICE U32x2 ldmatrix_x2_trans(const void* row, PACKRNN_SITE) {
  U32x2 r;
  simt::load_matrix(&r.x, 2, true, row, site);
  return r;
}
PACKRNN_DEVICE U32x4 ldmatrix_x4_trans(const void* row, PACKRNN_SITE) {
  U32x4 r;
  simt::load_matrix(&r.x, 4, true, row, site);
  return r;
}

// ---- 16 bytes from global to shared memory, or zeros. The thread that copied sees them after
// cp_async_wait<N>(), which leaves the N latest committed groups; others after a barrier too.
PACKRNN_DEVICE void cp_async16(void* target, const void* source, bool valid = true, PACKRNN_SITE) {
  simt::copy_async(target, source, 16, !valid, site);
}
PACKRNN_DEVICE void cp_async_commit() { simt::copy_async_commit(); }
template <int N>
PACKRNN_DEVICE void cp_async_wait() {
  simt::copy_async_wait(N);
}

// ---- words that other blocks write or poll. Relaxed accesses order nothing. A v4 is four accesses
// of 32 bits, in any order.
template <class T>
PACKRNN_DEVICE T simt_load(const T* address, int order, simt::Site site) {
  simt::before_access(address, sizeof(T), site);
  const T value = __atomic_load_n(address, order);
  simt::after_load();
  return value;
}
template <class T>
PACKRNN_DEVICE void simt_store(T* address, T value, int order, simt::Site site) {
  simt::before_access(address, sizeof(T), site);
  const T old = __atomic_load_n(address, __ATOMIC_RELAXED);
  __atomic_store_n(address, value, order);
  simt::after_store(old != value);
}
PACKRNN_DEVICE std::uint32_t ld_relaxed(const std::uint32_t* address, PACKRNN_SITE) {
  return simt_load(address, __ATOMIC_RELAXED, site);
}
PACKRNN_DEVICE std::uint64_t ld_relaxed(const std::uint64_t* address, PACKRNN_SITE) {
  return simt_load(address, __ATOMIC_RELAXED, site);
}
PACKRNN_DEVICE U32x4 ld_relaxed_v4(const void* address, PACKRNN_SITE) {
  simt::before_access(address, 16, site);
  const auto* words = static_cast<const std::uint32_t*>(address);
  U32x4 value;
  value.w = simt_load(words + 3, __ATOMIC_RELAXED, site);
  value.x = simt_load(words, __ATOMIC_RELAXED, site);
  value.z = simt_load(words + 2, __ATOMIC_RELAXED, site);
  value.y = simt_load(words + 1, __ATOMIC_RELAXED, site);
  return value;
}
PACKRNN_DEVICE void st_relaxed(std::uint32_t* address, std::uint32_t value, PACKRNN_SITE) {
  simt_store(address, value, __ATOMIC_RELAXED, site);
}
PACKRNN_DEVICE void st_relaxed(std::uint64_t* address, std::uint64_t value, PACKRNN_SITE) {
  simt_store(address, value, __ATOMIC_RELAXED, site);
}
PACKRNN_DEVICE void st_relaxed_v4(void* address, const U32x4& value, PACKRNN_SITE) {
  simt::before_access(address, 16, site);
  auto* words = static_cast<std::uint32_t*>(address);
  simt_store(words + 2, value.z, __ATOMIC_RELAXED, site);
  simt_store(words + 1, value.y, __ATOMIC_RELAXED, site);
  simt_store(words + 3, value.w, __ATOMIC_RELAXED, site);
  simt_store(words, value.x, __ATOMIC_RELAXED, site);
}
PACKRNN_DEVICE std::uint32_t ld_acquire(const std::uint32_t* address, PACKRNN_SITE) {
  return simt_load(address, __ATOMIC_ACQUIRE, site);
}
PACKRNN_DEVICE void st_release(std::uint32_t* address, std::uint32_t value, PACKRNN_SITE) {
  simt_store(address, value, __ATOMIC_RELEASE, site);
}
/// Gives the old value.
PACKRNN_DEVICE std::uint32_t add_release(std::uint32_t* address, std::uint32_t value,
                                         PACKRNN_SITE) {
  simt::before_access(address, 4, site);
  const std::uint32_t old = __atomic_fetch_add(address, value, __ATOMIC_RELEASE);
  simt::after_store(value != 0);
  return old;
}
/// In every round of a spin; `spins` counts them from 0.
PACKRNN_DEVICE void backoff(int /*spins*/, PACKRNN_SITE) { simt::backoff(site); }
/// Of a clock that all blocks share.
PACKRNN_DEVICE std::uint64_t now_ns() { return simt::now_ns(); }

// ---- barriers 1 to 15 of a block; `threads`, a multiple of 32, counts those that sync and those
// that arrive, which only say that they were here. __syncthreads is barrier 0.
PACKRNN_DEVICE void named_barrier_sync(int id, int threads, PACKRNN_SITE) {
  simt::block_barrier(static_cast<unsigned>(id), static_cast<unsigned>(threads), true,
                      "named_barrier_sync", site);
}
PACKRNN_DEVICE void named_barrier_arrive(int id, int threads, PACKRNN_SITE) {
  simt::block_barrier(static_cast<unsigned>(id), static_cast<unsigned>(threads), false,
                      "named_barrier_arrive", site);
}

// ---- clusters: cluster_arrive() releases, cluster_wait() acquires; by all threads of the cluster,
// in turn. A block must not return while others may still touch its shared memory.
PACKRNN_DEVICE std::uint32_t cluster_rank() { return simt::cluster_rank(); }
PACKRNN_DEVICE std::uint32_t cluster_id() { return simt::cluster_id(); }
PACKRNN_DEVICE void cluster_arrive(PACKRNN_SITE) { simt::cluster_arrive(site); }
PACKRNN_DEVICE void cluster_wait(PACKRNN_SITE) { simt::cluster_wait(site); }
/// Stores to where `local` lies in the shared memory of that block of the cluster.
PACKRNN_DEVICE void dsmem_store_v4(void* local, std::uint32_t rank, const U32x4& value,
                                   PACKRNN_SITE) {
  *static_cast<U32x4*>(simt::map_shared(local, rank, 16, site)) = value;
}
/// The same later, and then 16 bytes are noted on that block's transaction barrier.
PACKRNN_DEVICE void st_async_v4(void* local, std::uint64_t* local_barrier, std::uint32_t rank,
                                const U32x4& value, PACKRNN_SITE) {
  simt::store_async(simt::map_shared(local, rank, 16, site),
                    simt::map_shared(local_barrier, rank, 8, site), &value, site);
}

// ---- transaction barriers in shared memory: a phase ends when `count` arrivals and all expected
// bytes have come. try_wait(parity) says whether the phase of that parity has ended, the first one
// being 0.
PACKRNN_DEVICE void mbarrier_init(std::uint64_t* barrier, std::uint32_t count, PACKRNN_SITE) {
  simt::mbarrier_init(barrier, count, site);
}
/// After all mbarrier_init() of a thread, before the cluster barrier that makes them known.
PACKRNN_DEVICE void mbarrier_init_fence() {}
PACKRNN_DEVICE void mbarrier_arrive_expect(std::uint64_t* barrier, std::uint32_t bytes,
                                           PACKRNN_SITE) {
  simt::mbarrier_arrive_expect(barrier, bytes, site);
}
PACKRNN_DEVICE bool mbarrier_try_wait(std::uint64_t* barrier, std::uint32_t parity, PACKRNN_SITE) {
  return simt::mbarrier_try_wait(barrier, parity, site);
}

#else  // PTX; see above for what each does

PACKRNN_DEVICE float to_float(Bf16 value) {
  return __uint_as_float(static_cast<std::uint32_t>(value.bits) << 16);
}
PACKRNN_DEVICE float to_float(F16 value) {
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(value.bits));
  return result;
}
template <>
PACKRNN_DEVICE Bf16 from_float<Bf16>(float value) {
  Bf16 result;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
  return result;
}
template <>
PACKRNN_DEVICE F16 from_float<F16>(float value) {
  F16 result;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
  return result;
}
PACKRNN_DEVICE std::uint32_t to_tf32(float value) {
  std::uint32_t result;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(result) : "f"(value));
  return result;
}
PACKRNN_DEVICE std::uint32_t opaque(std::uint32_t value) {
  asm volatile("" : "+r"(value));
  return value;
}
PACKRNN_DEVICE float ex2_approx(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
PACKRNN_DEVICE float rcp_approx(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

#define PACKRNN_MMA(name, instruction)                                                           \
  PACKRNN_DEVICE void name(float(&d)[4], const U32x4& a, std::uint32_t b0, std::uint32_t b1) {   \
    asm("mma.sync.aligned." instruction " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                         \
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));                             \
  }
PACKRNN_MMA(mma_bf16_16816, "m16n8k16.row.col.f32.bf16.bf16.f32")
PACKRNN_MMA(mma_f16_16816, "m16n8k16.row.col.f32.f16.f16.f32")
PACKRNN_MMA(mma_tf32_1688, "m16n8k8.row.col.f32.tf32.tf32.f32")
#undef PACKRNN_MMA

PACKRNN_DEVICE std::uint32_t shared_address(const void* data) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(data));
}
PACKRNN_DEVICE U32x2 ldmatrix_x2(const void* row) {
  U32x2 r;
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
               : "=r"(r.x), "=r"(r.y)
               : "r"(shared_address(row))
               : "memory");
  return r;
}
PACKRNN_DEVICE U32x4 ldmatrix_x4(const void* row) {
  U32x4 r;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
               : "r"(shared_address(row))
               : "memory");
  return r;
}
PACKRNN_DEVICE U32x2 ldmatrix_x2_trans(const void* row) {
  U32x2 r;
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
               : "=r"(r.x), "=r"(r.y)
               : "r"(shared_address(row))
               : "memory");
  return r;
}
PACKRNN_DEVICE U32x4 ldmatrix_x4_trans(const void* row) {
  U32x4 r;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
               : "r"(shared_address(row))
               : "memory");
  return r;
}

PACKRNN_DEVICE void cp_async16(void* target, const void* source, bool valid = true) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(target)),
               "l"(__cvta_generic_to_global(source)), "r"(valid ? 16 : 0)
               : "memory");
}
PACKRNN_DEVICE void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N>
PACKRNN_DEVICE void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

PACKRNN_DEVICE std::uint32_t ld_relaxed(const std::uint32_t* address) {
  std::uint32_t value;
  asm volatile("ld.relaxed.gpu.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}
PACKRNN_DEVICE std::uint64_t ld_relaxed(const std::uint64_t* address) {
  std::uint64_t value;
  asm volatile("ld.relaxed.gpu.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
  return value;
}
PACKRNN_DEVICE U32x4 ld_relaxed_v4(const void* address) {
  U32x4 v;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(__cvta_generic_to_global(address))
               : "memory");
  return v;
}
PACKRNN_DEVICE void st_relaxed(std::uint32_t* address, std::uint32_t value) {
  asm volatile("st.relaxed.gpu.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}
PACKRNN_DEVICE void st_relaxed(std::uint64_t* address, std::uint64_t value) {
  asm volatile("st.relaxed.gpu.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
}
PACKRNN_DEVICE void st_relaxed_v4(void* address, const U32x4& v) {
  asm volatile(
      "st.relaxed.gpu.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(__cvta_generic_to_global(address)),
      "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
      : "memory");
}
PACKRNN_DEVICE std::uint32_t ld_acquire(const std::uint32_t* address) {
  std::uint32_t value;
  asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}
PACKRNN_DEVICE void st_release(std::uint32_t* address, std::uint32_t value) {
  asm volatile("st.release.gpu.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}
PACKRNN_DEVICE std::uint32_t add_release(std::uint32_t* address, std::uint32_t value) {
  std::uint32_t old;
  asm volatile("atom.add.release.gpu.u32 %0, [%1], %2;"
               : "=r"(old)
               : "l"(address), "r"(value)
               : "memory");
  return old;
}
PACKRNN_DEVICE void backoff(int spins) {
  if (spins >= 64) __nanosleep(64);  // before that, what is awaited is probably under way
}
PACKRNN_DEVICE std::uint64_t now_ns() {
  std::uint64_t time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}

PACKRNN_DEVICE void named_barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
PACKRNN_DEVICE void named_barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

#if PACKRNN_HAS_CLUSTER
PACKRNN_DEVICE std::uint32_t cluster_rank() {
  std::uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
PACKRNN_DEVICE std::uint32_t cluster_id() {
  std::uint32_t id;
  asm("mov.u32 %0, %%clusterid.x;" : "=r"(id));
  return id;
}
PACKRNN_DEVICE void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
PACKRNN_DEVICE void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
PACKRNN_DEVICE std::uint32_t map_shared(const void* local, std::uint32_t rank) {
  std::uint32_t address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(address)
      : "r"(shared_address(local)), "r"(rank));
  return address;
}
PACKRNN_DEVICE void dsmem_store_v4(void* local, std::uint32_t rank, const U32x4& v) {
  asm volatile("st.shared::cluster.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(map_shared(local, rank)),
               "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}
PACKRNN_DEVICE void st_async_v4(void* local, std::uint64_t* local_barrier, std::uint32_t rank,
                                const U32x4& v) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.u32 [%0], {%1,%2,%3,%4}, [%5];" ::
          "r"(map_shared(local, rank)),
      "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "r"(map_shared(local_barrier, rank))
      : "memory");
}
PACKRNN_DEVICE void mbarrier_init(std::uint64_t* barrier, std::uint32_t count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count)
               : "memory");
}
PACKRNN_DEVICE void mbarrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
PACKRNN_DEVICE void mbarrier_arrive_expect(std::uint64_t* barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(
                   shared_address(barrier)),
               "r"(bytes)
               : "memory");
}
PACKRNN_DEVICE bool mbarrier_try_wait(std::uint64_t* barrier, std::uint32_t parity) {
  std::uint32_t done;
  asm volatile(
      "{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2; "
      "selp.u32 %0, 1, 0, p; }"
      : "=r"(done)
      : "r"(shared_address(barrier)), "r"(parity)
      : "memory");
  return done != 0;
}
#endif

#endif

#if PACKRNN_HAS_CLUSTER
PACKRNN_DEVICE void cluster_sync(PACKRNN_CALLER_ONLY) {
  cuda::cluster_arrive(PACKRNN_CALL_ONLY);
  cuda::cluster_wait(PACKRNN_CALL_ONLY);
}
#endif

/// All threads of a cooperative launch meet: what any did before, all see after. *counter is 0 when
/// the kernel starts and used for nothing else; generation is 1 at the first call, then 2, 3 ...
PACKRNN_DEVICE void grid_barrier(std::uint32_t* counter, std::uint32_t generation PACKRNN_CALLER) {
  __syncthreads(PACKRNN_CALL_ONLY);
  if (threadIdx.x == 0 && threadIdx.y == 0 && threadIdx.z == 0) {
    cuda::add_release(counter, 1 PACKRNN_CALL);
    const std::uint32_t target = generation * (gridDim.x * gridDim.y * gridDim.z);
    for (int spins = 0;; ++spins) {
      const std::uint32_t missing = target - cuda::ld_acquire(counter PACKRNN_CALL);
      if (missing == 0 || missing > 0x80000000U) break;  // others may be at the next one already
      cuda::backoff(spins PACKRNN_CALL);
    }
  }
  __syncthreads(PACKRNN_CALL_ONLY);
}

}  // namespace packrnn::kernels::cuda

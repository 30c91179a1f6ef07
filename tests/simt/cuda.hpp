// The words of CUDA C++ that our kernels use, for a host compiler. Included by engine.hpp only.
#pragma once

#include <math.h>  // C++'s: with fma(float, float, float) and the like in the global namespace

#include <bit>
#include <cstring>
#include <type_traits>

// ---- words that mean nothing on the host ------------------------------------------------------
#define __global__
#define __device__
#define __host__
#define __grid_constant__
#define __launch_bounds__(...)
#define __forceinline__ inline __attribute__((always_inline))

#define threadIdx (::packrnn::simt::self->thread)
#define blockIdx (::packrnn::simt::self->block)
#define blockDim (::packrnn::simt::self->block_size)
#define gridDim (::packrnn::simt::self->grid_size)

// ---- barriers and warps -----------------------------------------------------------------------
inline void __syncthreads(PACKRNN_SITE) {
  packrnn::simt::block_barrier(0, 0, true, "__syncthreads", site);
}
inline void __syncwarp(unsigned mask = 0xFFFFFFFFU, PACKRNN_SITE) {
  packrnn::simt::warp_operation("__syncwarp", mask, nullptr, nullptr, true, site);
}
inline void __threadfence() { packrnn::simt::fence(); }
inline void __threadfence_block() { packrnn::simt::fence(); }

namespace packrnn::simt {

template <class T>
T shuffle_value(const char* what, unsigned mask, T value, int source, Site site) {
  static_assert(std::is_trivially_copyable_v<T> && (sizeof(T) == 4 || sizeof(T) == 8));
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = shuffle(what, mask, bits, source, site);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}
inline int my_lane() { return static_cast<int>(self->lane); }

}  // namespace packrnn::simt

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, PACKRNN_SITE) {
  const int lane = packrnn::simt::my_lane();
  source = (lane & ~(width - 1)) | (source & (width - 1));
  return packrnn::simt::shuffle_value("__shfl_sync", mask, value, source, site);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, PACKRNN_SITE) {
  const int lane = packrnn::simt::my_lane(), d = static_cast<int>(delta);
  const int source = (lane & (width - 1)) + d < width ? lane + d : lane;
  return packrnn::simt::shuffle_value("__shfl_down_sync", mask, value, source, site);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, PACKRNN_SITE) {
  const int lane = packrnn::simt::my_lane(), d = static_cast<int>(delta);
  const int source = (lane & (width - 1)) >= d ? lane - d : lane;
  return packrnn::simt::shuffle_value("__shfl_up_sync", mask, value, source, site);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32, PACKRNN_SITE) {
  const int lane = packrnn::simt::my_lane(), other = lane ^ bits;
  const int source = other < (lane & ~(width - 1)) + width ? other : lane;
  return packrnn::simt::shuffle_value("__shfl_xor_sync", mask, value, source, site);
}
inline unsigned __ballot_sync(unsigned mask, int predicate, PACKRNN_SITE) {
  return packrnn::simt::ballot("__ballot_sync", mask, predicate != 0, site);
}
inline int __any_sync(unsigned mask, int predicate, PACKRNN_SITE) {
  return packrnn::simt::ballot("__any_sync", mask, predicate != 0, site) != 0;
}
inline int __all_sync(unsigned mask, int predicate, PACKRNN_SITE) {
  return packrnn::simt::ballot("__all_sync", mask, predicate == 0, site) == 0;
}
template <class T>
unsigned __match_any_sync(unsigned mask, T value, PACKRNN_SITE) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  return packrnn::simt::match("__match_any_sync", mask, bits, site);
}

// ---- atomics: relaxed, and each a chance to switch ----------------------------------------------
namespace packrnn::simt {

template <class T, class Function>
T atomic_update(T* address, Site site, Function function) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  before_access(address, sizeof(T), site);
  T old, next;
  __atomic_load(address, &old, __ATOMIC_RELAXED);
  do {
    next = function(old);
  } while (
      !__atomic_compare_exchange(address, &old, &next, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  after_store(std::memcmp(&old, &next, sizeof(T)) != 0);
  return old;
}

}  // namespace packrnn::simt

#define PACKRNN_SIMT_ATOMIC(name, expression)                                                   \
  template <class T>                                                                            \
  T name(T* address, std::type_identity_t<T> value, PACKRNN_SITE) {                             \
    return packrnn::simt::atomic_update(address, site,                                          \
                                        [value](T old) { return static_cast<T>(expression); }); \
  }
PACKRNN_SIMT_ATOMIC(atomicAdd, old + value)
PACKRNN_SIMT_ATOMIC(atomicSub, old - value)
PACKRNN_SIMT_ATOMIC(atomicMax, old > value ? old : value)
PACKRNN_SIMT_ATOMIC(atomicMin, old < value ? old : value)
PACKRNN_SIMT_ATOMIC(atomicOr, old | value)
PACKRNN_SIMT_ATOMIC(atomicAnd, old& value)
PACKRNN_SIMT_ATOMIC(atomicXor, old ^ value)
PACKRNN_SIMT_ATOMIC(atomicExch, (static_cast<void>(old), value))
#undef PACKRNN_SIMT_ATOMIC
template <class T>
T atomicCAS(T* address, std::type_identity_t<T> expected, std::type_identity_t<T> value,
            PACKRNN_SITE) {
  return packrnn::simt::atomic_update(
      address, site, [expected, value](T old) { return old == expected ? value : old; });
}

// ---- numbers ----------------------------------------------------------------------------------
template <class T>
T __ldg(const T* address) {
  return *address;
}
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __frcp_rn(float a) { return 1 / a; }
inline float __fsqrt_rn(float a) { return sqrtf(a); }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dsub_rn(double a, double b) { return a - b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline double __drcp_rn(double a) { return 1 / a; }
inline double __dsqrt_rn(double a) { return sqrt(a); }
inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
inline int __float2int_rn(float a) { return static_cast<int>(rintf(a)); }
inline int __double2int_rn(double a) { return static_cast<int>(rint(a)); }
inline float __int2float_rn(int a) { return static_cast<float>(a); }

inline unsigned __float_as_uint(float a) { return std::bit_cast<unsigned>(a); }
inline float __uint_as_float(unsigned a) { return std::bit_cast<float>(a); }
inline int __float_as_int(float a) { return std::bit_cast<int>(a); }
inline float __int_as_float(int a) { return std::bit_cast<float>(a); }
inline long long __double_as_longlong(double a) { return std::bit_cast<long long>(a); }
inline double __longlong_as_double(long long a) { return std::bit_cast<double>(a); }

inline int __popc(unsigned a) { return std::popcount(a); }
inline int __clz(int a) { return std::countl_zero(static_cast<unsigned>(a)); }
inline int __ffs(int a) { return __builtin_ffs(a); }
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(static_cast<unsigned long long>(a) * b >> 32);
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  shift &= 31;
  return shift == 0 ? high : high << shift | low >> (32 - shift);
}

// CUDA has these in the global namespace for every pair of arithmetic types; ours take one type.
#define PACKRNN_SIMT_MIN_MAX(T)                    \
  inline T min(T a, T b) { return b < a ? b : a; } \
  inline T max(T a, T b) { return a < b ? b : a; }
PACKRNN_SIMT_MIN_MAX(int)
PACKRNN_SIMT_MIN_MAX(unsigned)
PACKRNN_SIMT_MIN_MAX(long)
PACKRNN_SIMT_MIN_MAX(unsigned long)
PACKRNN_SIMT_MIN_MAX(long long)
PACKRNN_SIMT_MIN_MAX(unsigned long long)
#undef PACKRNN_SIMT_MIN_MAX
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }

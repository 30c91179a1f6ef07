// exp, sigmoid and tanh on a GPU, in two sets.
//
// ExactMath does, operation by operation, what cpu/activations-inl.hpp does per lane, so that both
// give the same bits (a NaN's payload aside): its comments and coefficients are explained there.
// FastMath is for 16-bit and tf32 layers, whose own rounding hides its error: f32 only, about 2e-7
// absolute, and 2e-6 relative where tanh is small.
#pragma once

#include "packrnn/kernels/cuda/device.cuh"

namespace packrnn::kernels::cuda {

/// c0 + x (c1 + x (...)) by Horner's rule.
template <class A>
__device__ __forceinline__ A polynomial(A, A last) {
  return last;
}
template <class A, class... Rest>
__device__ __forceinline__ A polynomial(A x, A first, Rest... rest) {
  return fma(polynomial(x, rest...), x, first);
}

/// min and max that return x when x is NaN.
template <class A>
__device__ __forceinline__ A at_most(A limit, A x) {
  return limit < x ? limit : x;
}
template <class A>
__device__ __forceinline__ A at_least(A limit, A x) {
  return x < limit ? limit : x;
}

struct ExactMath {
  /// Adding and subtracting kMagic rounds to an integer n, ties to even, as rint() does, and leaves
  /// n in the low bits of the sum, where the exponent of 2^n is made from it.
  __device__ static __forceinline__ float exp(float x) {
    constexpr float kMagic = 0x1.8p23F;
    x = at_most(88.0F, at_least(-87.0F, x));
    const float shifted = x * 1.44269504F + kMagic, n = shifted - kMagic;
    float r = fma(-n, 0.693359375F, x);
    r = fma(-n, -2.12194440e-4F, r);
    const float tail =
        polynomial(r, 0.500000001F, 0.166665768F, 0.0416664646F, 0.00836320547F, 0.00139336884F);
    return fma(r * r, tail, 1.0F + r) *
           __uint_as_float((__float_as_uint(shifted) << 23) + 0x3F800000U);
  }

  __device__ static __forceinline__ double exp(double x) {
    constexpr double kMagic = 0x1.8p52;
    x = at_most(709.0, at_least(-708.0, x));
    const double shifted = x * 1.4426950408889634 + kMagic, n = shifted - kMagic;
    double r = fma(-n, 0.69314718036912382, x);
    r = fma(-n, 1.9082149292705877e-10, r);
    const double tail =
        polynomial(r, 0.50000000000000022, 0.16666666666666505, 0.041666666666682527,
                   0.0083333333335712592, 0.0013888888877858613, 0.00019841268714196266,
                   2.4801616025270229e-05, 2.7559557762039046e-06, 2.7526900161532484e-07,
                   2.3096003734462058e-08, 3.2005332640704668e-09, 6.3797714046076721e-09);
    const auto power = static_cast<unsigned long long>(__double_as_longlong(shifted)) << 52;
    return fma(r * r, tail, 1.0 + r) *
           __longlong_as_double(static_cast<long long>(power + 0x3FF0000000000000ULL));
  }

  template <class A>
  __device__ static __forceinline__ A sigmoid(A x) {
    return A(1) / (A(1) + exp(-x));
  }

  __device__ static __forceinline__ float tanh(float x) {
    x = at_most(9.1F, at_least(-9.1F, x));
    const float square = x * x;
    const float p = polynomial(square, 0.999999979F, 0.133797175F, 0.00349403404F, 2.05834737e-05F,
                               1.33190631e-08F);
    const float q =
        polynomial(square, 1.0F, 0.467130327F, 0.0258710712F, 0.000328309204F, 7.76201548e-07F);
    return at_most(1.0F, at_least(-1.0F, x * p / q));
  }

  __device__ static __forceinline__ double tanh(double x) {
    const double size = fabs(x), square = x * x;
    const double p =
        polynomial(square, 1.0, 0.12808779743582566, 0.0027841832931730843, 7.2769845869312862e-06);
    const double q =
        polynomial(square, 1.0, 0.4614211307691562, 0.023257893549636924, 0.00020534469929897419);
    const double small = x * p / q;
    const double large = 1.0 - 2.0 / (exp(size + size) + 1.0);
    return size < 0.625 ? small : copysign(large, x);
  }
};

struct FastMath {
  __device__ static __forceinline__ float sigmoid(float x) {
    return rcp_approx(1.0F + ex2_approx(-1.44269504F * x));
  }

  /// 1 - 2 / (1 + e^2x) loses relative accuracy near 0, where a polynomial takes over.
  __device__ static __forceinline__ float tanh(float x) {
    const float square = x * x;
    const float small = x * polynomial(square, 1.0F, -0.333333333F, 0.133333333F, -0.0539682540F);
    const float large = 1.0F - 2.0F * rcp_approx(1.0F + ex2_approx(2.88539008F * x));
    return square < 0.015625F ? small : large;  // NaN compares false and comes out of `large`
  }
};

}  // namespace packrnn::kernels::cuda

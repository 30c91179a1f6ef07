// exp, sigmoid and tanh for one vector of f32 or f64; included once per instruction set.
//
// Each lane is a pure function of its input, NaN stays NaN, and the result does not depend on what
// the other lanes hold. The coefficients are those that fit_activations.py prints; the largest
// errors, found by activations_test (in f32 over every float of interest), are
//   f32: sigmoid 3.2 ulp, tanh 6.6 ulp   f64: sigmoid 3 ulp, tanh 4 ulp.

#if defined(PACKRNN_CPU_ACTIVATIONS_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef PACKRNN_CPU_ACTIVATIONS_INL
#undef PACKRNN_CPU_ACTIVATIONS_INL
#else
#define PACKRNN_CPU_ACTIVATIONS_INL
#endif

#include <hwy/highway.h>

#include <type_traits>

HWY_BEFORE_NAMESPACE();
namespace packrnn::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// c[0] + x c[1] + ... by Horner's rule.
template <class D, class T, std::size_t kTerms>
HWY_INLINE hn::Vec<D> polynomial(D d, hn::Vec<D> x, const T (&c)[kTerms]) {
  hn::Vec<D> sum = hn::Set(d, c[kTerms - 1]);
  for (std::size_t i = kTerms - 1; i-- > 0;) sum = hn::MulAdd(sum, x, hn::Set(d, c[i]));
  return sum;
}

/// min and max that return x when x is NaN or they are equal (zeros of either sign are). On x86
/// that is what one instruction does with its operands in this order; elsewhere a comparison, false
/// for NaN, has x as its second choice.
template <class V>
HWY_INLINE V at_most(V limit, V x) {
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
  return hn::Min(limit, x);
#else
  return hn::IfThenElse(hn::Lt(limit, x), limit, x);
#endif
}
template <class V>
HWY_INLINE V at_least(V limit, V x) {
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
  return hn::Max(limit, x);
#else
  return hn::IfThenElse(hn::Lt(x, limit), limit, x);
#endif
}

template <class T>
struct ExpConstants;
template <>
struct ExpConstants<float> {
  // ln 2 in two parts: n * kLn2High is exact for |n| < 2^10.
  static constexpr float kLog2e = 1.44269504F, kLn2High = 0.693359375F, kLn2Low = -2.12194440e-4F;
  static constexpr float kLow = -87.0F, kHigh = 88.0F;
  // (e^r - 1 - r) / r^2 on |r| <= ln(2) / 2
  static constexpr float kTail[] = {0.500000001F, 0.166665768F, 0.0416664646F, 0.00836320547F,
                                    0.00139336884F};
  static constexpr int kBias = 127, kMantissaBits = 23;
};
template <>
struct ExpConstants<double> {
  static constexpr double kLog2e = 1.4426950408889634, kLn2High = 0.69314718036912382,
                          kLn2Low = 1.9082149292705877e-10;
  static constexpr double kLow = -708.0, kHigh = 709.0;
  static constexpr double kTail[] = {
      0.50000000000000022,    0.16666666666666505,    0.041666666666682527,
      0.0083333333335712592,  0.0013888888877858613,  0.00019841268714196266,
      2.4801616025270229e-05, 2.7559557762039046e-06, 2.7526900161532484e-07,
      2.3096003734462058e-08, 3.2005332640704668e-09, 6.3797714046076721e-09};
  static constexpr int kBias = 1023, kMantissaBits = 52;
};

/// e^x = 2^n e^r with n = round(x / ln 2); arguments are limited so that 2^n is a normal number.
template <class D, class T = hn::TFromD<D>>
HWY_INLINE hn::Vec<D> exp(D d, hn::Vec<D> x) {
  using C = ExpConstants<T>;
  const hn::RebindToSigned<D> di;
  x = at_most(hn::Set(d, C::kHigh), at_least(hn::Set(d, C::kLow), x));
  const auto n = hn::Round(hn::Mul(x, hn::Set(d, C::kLog2e)));
  auto r = hn::NegMulAdd(n, hn::Set(d, C::kLn2High), x);
  r = hn::NegMulAdd(n, hn::Set(d, C::kLn2Low), r);
  const auto one = hn::Set(d, T{1});
  const auto power = hn::MulAdd(hn::Mul(r, r), polynomial(d, r, C::kTail), hn::Add(one, r));
  const auto exponent = hn::Add(hn::ConvertTo(di, n), hn::Set(di, C::kBias));
  return hn::Mul(power, hn::BitCast(d, hn::ShiftLeft<C::kMantissaBits>(exponent)));
}

/// 1 / (1 + e^-x)
template <class D, class T = hn::TFromD<D>>
HWY_INLINE hn::Vec<D> sigmoid(D d, hn::Vec<D> x) {
  const auto one = hn::Set(d, T{1});
  return hn::Div(one, hn::Add(one, exp(d, hn::Neg(x))));
}

/// f32: x P(x^2) / Q(x^2), which is within 2.1e-8 of tanh up to where tanh rounds to 1; beyond
/// the limit it is past 1, which the last line makes exactly 1.
template <class D, std::enable_if_t<std::is_same_v<hn::TFromD<D>, float>, int> = 0>
HWY_INLINE hn::Vec<D> tanh(D d, hn::Vec<D> x) {
  constexpr float kP[] = {0.999999979F, 0.133797175F, 0.00349403404F, 2.05834737e-05F,
                          1.33190631e-08F};
  constexpr float kQ[] = {1.0F, 0.467130327F, 0.0258710712F, 0.000328309204F, 7.76201548e-07F};
  const auto limit = hn::Set(d, 9.1F);
  x = at_most(limit, at_least(hn::Neg(limit), x));
  const auto square = hn::Mul(x, x);
  const auto ratio = hn::Div(hn::Mul(x, polynomial(d, square, kP)), polynomial(d, square, kQ));
  const auto one = hn::Set(d, 1.0F);
  return at_most(one, at_least(hn::Neg(one), ratio));
}

/// f64: the same form below 0.625, and 1 - 2 / (e^2|x| + 1) above.
template <class D, std::enable_if_t<std::is_same_v<hn::TFromD<D>, double>, int> = 0>
HWY_INLINE hn::Vec<D> tanh(D d, hn::Vec<D> x) {
  constexpr double kP[] = {1.0, 0.12808779743582566, 0.0027841832931730843, 7.2769845869312862e-06};
  constexpr double kQ[] = {1.0, 0.4614211307691562, 0.023257893549636924, 0.00020534469929897419};
  const auto one = hn::Set(d, 1.0), size = hn::Abs(x), square = hn::Mul(x, x);
  const auto small = hn::Div(hn::Mul(x, polynomial(d, square, kP)), polynomial(d, square, kQ));
  const auto e = exp(d, hn::Add(size, size));
  const auto large = hn::Sub(one, hn::Div(hn::Set(d, 2.0), hn::Add(e, one)));
  return hn::IfThenElse(hn::Lt(size, hn::Set(d, 0.625)), small, hn::CopySign(large, x));
}

}  // namespace packrnn::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard

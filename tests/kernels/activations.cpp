#include "tests/kernels/activations.hpp"

#include "packrnn/kernels/cpu/targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/kernels/activations.cpp"
#include <hwy/foreach_target.h>
// After foreach_target:
#include "packrnn/kernels/cpu/activations-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace packrnn::kernels::HWY_NAMESPACE {
namespace {

template <class T, class Function>
HWY_INLINE void apply(const T* x, T* y, std::size_t count, Function&& function) {
  const hn::ScalableTag<T> d;
  constexpr std::size_t kN = hn::MaxLanes(d);
  HWY_ALIGN T lanes[kN] = {};
  for (std::size_t i = 0; i < count; i += kN) {
    const std::size_t part = count - i < kN ? count - i : kN;
    for (std::size_t j = 0; j < part; ++j) lanes[j] = x[i + j];
    hn::Store(function(d, hn::Load(d, lanes)), d, lanes);
    for (std::size_t j = 0; j < part; ++j) y[i + j] = lanes[j];
  }
}

struct SigmoidOf {
  template <class D>
  HWY_INLINE hn::Vec<D> operator()(D d, hn::Vec<D> x) const {
    return sigmoid(d, x);
  }
};
struct TanhOf {
  template <class D>
  HWY_INLINE hn::Vec<D> operator()(D d, hn::Vec<D> x) const {
    return tanh(d, x);
  }
};

void SigmoidF32(const float* x, float* y, std::size_t n) { apply(x, y, n, SigmoidOf()); }
void SigmoidF64(const double* x, double* y, std::size_t n) { apply(x, y, n, SigmoidOf()); }
void TanhF32(const float* x, float* y, std::size_t n) { apply(x, y, n, TanhOf()); }
void TanhF64(const double* x, double* y, std::size_t n) { apply(x, y, n, TanhOf()); }

}  // namespace
}  // namespace packrnn::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace packrnn::kernels {
namespace {
HWY_EXPORT(SigmoidF32);
HWY_EXPORT(SigmoidF64);
HWY_EXPORT(TanhF32);
HWY_EXPORT(TanhF64);
}  // namespace

void apply_sigmoid(const float* x, float* y, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(SigmoidF32)(x, y, count);
}
void apply_sigmoid(const double* x, double* y, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(SigmoidF64)(x, y, count);
}
void apply_tanh(const float* x, float* y, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(TanhF32)(x, y, count);
}
void apply_tanh(const double* x, double* y, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(TanhF64)(x, y, count);
}

}  // namespace packrnn::kernels
#endif  // HWY_ONCE

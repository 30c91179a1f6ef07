#include "packrnn/kernels/cpu/activation.hpp"

#include <algorithm>

#include "packrnn/kernels/cpu/parallel_for.hpp"
#include "packrnn/kernels/cpu/targets.hpp"
#include "packrnn/kernels/cpu/with_real.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "packrnn/kernels/cpu/activation.cpp"
#include <hwy/foreach_target.h>
// After foreach_target:
#include "packrnn/kernels/cpu/activations-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace packrnn::kernels::HWY_NAMESPACE {
namespace {

struct Relu {
  template <class D>
  static HWY_INLINE hn::Vec<D> apply(D d, hn::Vec<D> x) {
    return at_least(hn::Zero(d), x);
  }
};
struct Tanh {
  template <class D>
  static HWY_INLINE hn::Vec<D> apply(D d, hn::Vec<D> x) {
    return tanh(d, x);
  }
};
struct Sigmoid {
  template <class D>
  static HWY_INLINE hn::Vec<D> apply(D d, hn::Vec<D> x) {
    return sigmoid(d, x);
  }
};

// The last elements go through a whole vector too, so that their bits are those of any others.
template <class Function, class T>
HWY_NOINLINE void part(const T* x, std::int64_t count, T* y) {
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes)
    hn::StoreU(Function::apply(d, hn::LoadU(d, x + i)), d, y + i);
  if (i == count) return;
  HWY_ALIGN T rest[hn::MaxLanes(hn::ScalableTag<T>())] = {};
  std::copy(x + i, x + count, rest);
  hn::Store(Function::apply(d, hn::Load(d, rest)), d, rest);
  std::copy(rest, rest + (count - i), y + i);
}

template <class Function>
void run(ThreadPool& pool, const TensorView& x, const TensorSpan& y) {
  cpu::with_real(x.dtype(), [&]<class T>(std::type_identity<T>) {
    const T* const from = x.data<T>();
    T* const to = y.data<T>();
    cpu::parallel_for(pool, x.elements(), 2 * std::int64_t{sizeof(T)},
                      [&](std::int64_t begin, std::int64_t end) {
                        part<Function>(from + begin, end - begin, to + begin);
                      });
  });
}

void Activate(ThreadPool& pool, Activation activation, const TensorView& x, const TensorSpan& y) {
  switch (activation) {
    case Activation::relu:
      return run<Relu>(pool, x, y);
    case Activation::tanh:
      return run<Tanh>(pool, x, y);
    case Activation::sigmoid:
      return run<Sigmoid>(pool, x, y);
  }
}

}  // namespace
}  // namespace packrnn::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace packrnn::kernels {
namespace {

HWY_EXPORT(Activate);

}  // namespace

namespace cpu {

void activate(ThreadPool& pool, Activation activation, const TensorView& x, const TensorSpan& y) {
  HWY_DYNAMIC_DISPATCH(Activate)(pool, activation, x, y);
}

}  // namespace cpu
}  // namespace packrnn::kernels
#endif  // HWY_ONCE

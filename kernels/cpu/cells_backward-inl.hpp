// The way back through the pointwise part of one step of each cell, for one vector of units of one
// row; included once per instruction set. `kept` is what the forward stored of them, plane after
// plane as ReserveMap says; the gates are replaced by d loss / d (their sums).

#if defined(PACKRNN_CPU_CELLS_BACKWARD_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef PACKRNN_CPU_CELLS_BACKWARD_INL
#undef PACKRNN_CPU_CELLS_BACKWARD_INL
#else
#define PACKRNN_CPU_CELLS_BACKWARD_INL
#endif

#include "packrnn/kernels/cpu/activations-inl.hpp"
#include "packrnn/kernels/cpu/cells-inl.hpp"
#include "packrnn/kernels/cpu/panel-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace packrnn::kernels::HWY_NAMESPACE {

/// grad x (1 - x): through a sigmoid whose result is x.
template <class V>
HWY_INLINE V through_sigmoid(V grad, V x) {
  return hn::Mul(grad, hn::NegMulAdd(x, x, x));
}

/// grad (1 - x^2): through a tanh whose result is x.
template <class V>
HWY_INLINE V through_tanh(V grad, V x) {
  return hn::NegMulAdd(hn::Mul(grad, x), x, grad);
}

/// dh is of o tanh(c), dc comes back from the step after and becomes that of the step before. With
/// a projection, o tanh(c) takes the place of c, which no other step reads any more.
template <bool kProjected, class T>
HWY_INLINE void lstm_back(hn::Vec<Tag<T>> dh, hn::Vec<Tag<T>> c_before, T* kept, std::int64_t plane,
                          T* dc) {
  const Tag<T> d;
  const auto i = hn::LoadU(d, kept), f = hn::LoadU(d, kept + plane);
  const auto g = hn::LoadU(d, kept + 2 * plane), o = hn::LoadU(d, kept + 3 * plane);
  const auto tanh_c = tanh(d, hn::LoadU(d, kept + 4 * plane));
  const auto cell = hn::Add(hn::LoadU(d, dc), through_tanh(hn::Mul(dh, o), tanh_c));
  store_planes(kept, plane, through_sigmoid(hn::Mul(cell, g), i),
               through_sigmoid(hn::Mul(cell, c_before), f), through_tanh(hn::Mul(cell, i), g),
               through_sigmoid(hn::Mul(dh, tanh_c), o));
  if constexpr (kProjected) hn::StoreU(hn::Mul(o, tanh_c), d, kept + 4 * plane);
  hn::StoreU(hn::Mul(cell, f), d, dc);
}

/// Returns what reaches h_before past the products.
template <class T>
HWY_INLINE hn::Vec<Tag<T>> gru_back(hn::Vec<Tag<T>> dh, hn::Vec<Tag<T>> h_before, T* kept,
                                    std::int64_t plane) {
  const Tag<T> d;
  const auto n = hn::LoadU(d, kept), r = hn::LoadU(d, kept + plane);
  const auto z = hn::LoadU(d, kept + 2 * plane), state_n = hn::LoadU(d, kept + 3 * plane);
  const auto dn = through_tanh(hn::NegMulAdd(dh, z, dh), n);
  store_planes(kept, plane, dn, through_sigmoid(hn::Mul(dn, state_n), r),
               through_sigmoid(hn::Mul(dh, hn::Sub(h_before, n)), z), hn::Mul(dn, r));
  return hn::Mul(dh, z);
}

/// Reset before, first half: z and n. Returns what reaches h_before through neither product.
template <class T>
HWY_INLINE hn::Vec<Tag<T>> gru_update_back(hn::Vec<Tag<T>> dh, hn::Vec<Tag<T>> h_before, T* kept,
                                           std::int64_t plane) {
  const Tag<T> d;
  const auto z = hn::LoadU(d, kept + plane), n = hn::LoadU(d, kept + 2 * plane);
  store_planes(kept + plane, plane, through_sigmoid(hn::Mul(dh, hn::Sub(h_before, n)), z),
               through_tanh(hn::NegMulAdd(dh, z, dh), n));
  return hn::Mul(dh, z);
}

/// Reset before, second half: r, from the gradient of r h. Stores r h. Returns what reaches
/// h_before by r h.
template <class T>
HWY_INLINE hn::Vec<Tag<T>> gru_reset_back(hn::Vec<Tag<T>> d_reset, hn::Vec<Tag<T>> h_before,
                                          T* kept, std::int64_t plane) {
  const Tag<T> d;
  const auto r = hn::LoadU(d, kept);
  hn::StoreU(through_sigmoid(hn::Mul(d_reset, h_before), r), d, kept);
  hn::StoreU(hn::Mul(r, h_before), d, kept + 3 * plane);
  return hn::Mul(d_reset, r);
}

/// As PyTorch: what was NaN, relu lets through.
template <bool kRelu, class T>
HWY_INLINE void rnn_back(hn::Vec<Tag<T>> dh, T* kept) {
  const Tag<T> d;
  const auto h = hn::LoadU(d, kept);
  if constexpr (kRelu)
    hn::StoreU(hn::IfThenElse(hn::Le(h, hn::Zero(d)), hn::Zero(d), dh), d, kept);
  else
    hn::StoreU(through_tanh(dh, h), d, kept);
}

}  // namespace packrnn::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard

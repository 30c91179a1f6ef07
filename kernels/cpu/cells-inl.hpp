// The pointwise part of one step of each cell, for one row of one block of units (one vector wide);
// included once per instruction set. `sum` holds the gate pre-activations of the row, gate by gate.

#if defined(PACKRNN_CPU_CELLS_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef PACKRNN_CPU_CELLS_INL
#undef PACKRNN_CPU_CELLS_INL
#else
#define PACKRNN_CPU_CELLS_INL
#endif

#include "packrnn/kernels/cpu/activations-inl.hpp"
#include "packrnn/kernels/cpu/panel-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace packrnn::kernels::HWY_NAMESPACE {

/// sum: i f g o. Assigns c' to cell and returns o tanh(c').
template <class T>
HWY_INLINE hn::Vec<Tag<T>> lstm_cell(const T* sum, T* cell) {
  const Tag<T> d;
  constexpr std::int64_t kN = kLanes<T>;
  const auto i = sigmoid(d, hn::Load(d, sum));
  const auto f = sigmoid(d, hn::Load(d, sum + kN));
  const auto g = tanh(d, hn::Load(d, sum + 2 * kN));
  const auto o = sigmoid(d, hn::Load(d, sum + 3 * kN));
  const auto c = hn::MulAdd(f, hn::LoadU(d, cell), hn::Mul(i, g));
  hn::StoreU(c, d, cell);
  return hn::Mul(o, tanh(d, c));
}

/// sum: r, z, W_hn h + b_hn; input_n: W_in x + b_in. Returns (1 - z) n + z h.
template <class T>
HWY_INLINE hn::Vec<Tag<T>> gru_cell(const T* sum, const T* input_n, const T* h) {
  const Tag<T> d;
  constexpr std::int64_t kN = kLanes<T>;
  const auto r = sigmoid(d, hn::Load(d, sum));
  const auto z = sigmoid(d, hn::Load(d, sum + kN));
  const auto n = tanh(d, hn::MulAdd(r, hn::Load(d, sum + 2 * kN), hn::LoadU(d, input_n)));
  return hn::MulAdd(z, hn::Sub(hn::LoadU(d, h), n), n);
}

/// Reset before, first half. sum: r z. Assigns z and r h.
template <class T>
HWY_INLINE void gru_reset(const T* sum, const T* h, T* z, T* reset_h) {
  const Tag<T> d;
  hn::StoreU(sigmoid(d, hn::Load(d, sum + kLanes<T>)), d, z);
  hn::StoreU(hn::Mul(sigmoid(d, hn::Load(d, sum)), hn::LoadU(d, h)), d, reset_h);
}

/// Reset before, second half. sum: W_in x + W_hn (r h) + both biases.
template <class T>
HWY_INLINE hn::Vec<Tag<T>> gru_update(const T* sum, const T* z, const T* h) {
  const Tag<T> d;
  const auto n = tanh(d, hn::Load(d, sum));
  return hn::MulAdd(hn::LoadU(d, z), hn::Sub(hn::LoadU(d, h), n), n);
}

/// PyTorch's relu: NaN stays NaN.
template <bool kRelu, class T>
HWY_INLINE hn::Vec<Tag<T>> rnn_cell(const T* sum) {
  const Tag<T> d;
  const auto x = hn::Load(d, sum);
  if constexpr (kRelu)
    return at_least(hn::Zero(d), x);
  else
    return tanh(d, x);
}

}  // namespace packrnn::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard

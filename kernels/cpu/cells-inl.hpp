// The pointwise part of one step of each cell, for one row of one block of units (one vector wide);
// included once per instruction set. `sum` holds the gate pre-activations of the row, gate by gate.
// What a backward needs goes to `kept`, unless that is null: plane after plane, as ReserveMap says.

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

/// One vector to each of as many planes.
template <class T, class... V>
HWY_INLINE void store_planes(T* to, std::int64_t plane, V... v) {
  const Tag<T> d;
  std::int64_t index = 0;
  (hn::StoreU(v, d, to + plane * index++), ...);
}

/// sum: i f g o. Assigns c' to cell and returns o tanh(c').
template <class T>
HWY_INLINE hn::Vec<Tag<T>> lstm_cell(const T* sum, T* cell, T* kept, std::int64_t plane) {
  const Tag<T> d;
  constexpr std::int64_t kN = kLanes<T>;
  const auto i = sigmoid(d, hn::Load(d, sum));
  const auto f = sigmoid(d, hn::Load(d, sum + kN));
  const auto g = tanh(d, hn::Load(d, sum + 2 * kN));
  const auto o = sigmoid(d, hn::Load(d, sum + 3 * kN));
  const auto c = hn::MulAdd(f, hn::LoadU(d, cell), hn::Mul(i, g));
  hn::StoreU(c, d, cell);
  if (kept) store_planes(kept, plane, i, f, g, o, c);
  return hn::Mul(o, tanh(d, c));
}

/// sum: r, z, W_hn h + b_hn; input_n: W_in x + b_in. Returns (1 - z) n + z h.
template <class T>
HWY_INLINE hn::Vec<Tag<T>> gru_cell(const T* sum, const T* input_n, const T* h, T* kept,
                                    std::int64_t plane) {
  const Tag<T> d;
  constexpr std::int64_t kN = kLanes<T>;
  const auto r = sigmoid(d, hn::Load(d, sum));
  const auto z = sigmoid(d, hn::Load(d, sum + kN));
  const auto n = tanh(d, hn::MulAdd(r, hn::Load(d, sum + 2 * kN), hn::LoadU(d, input_n)));
  if (kept) store_planes(kept, plane, n, r, z, hn::Load(d, sum + 2 * kN));
  return hn::MulAdd(z, hn::Sub(hn::LoadU(d, h), n), n);
}

/// Reset before, first half. sum: r z. Assigns z and r h.
template <class T>
HWY_INLINE void gru_reset(const T* sum, const T* h, T* z, T* reset_h, T* kept, std::int64_t plane) {
  const Tag<T> d;
  const auto r = sigmoid(d, hn::Load(d, sum)), update = sigmoid(d, hn::Load(d, sum + kLanes<T>));
  hn::StoreU(update, d, z);
  hn::StoreU(hn::Mul(r, hn::LoadU(d, h)), d, reset_h);
  if (kept) store_planes(kept, plane, r, update);
}

/// Reset before, second half. sum: W_in x + W_hn (r h) + both biases.
template <class T>
HWY_INLINE hn::Vec<Tag<T>> gru_update(const T* sum, const T* z, const T* h, T* kept,
                                      std::int64_t plane) {
  const Tag<T> d;
  const auto n = tanh(d, hn::Load(d, sum));
  if (kept) store_planes(kept + 2 * plane, plane, n);
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

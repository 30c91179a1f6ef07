// The packed weights of recurrent layers, from weights in the device's memory. A thread assigns one
// element at a time: zero unless a weight belongs there. Bound by memory; the transposed ones read
// a sector per element, which a training step does not notice.
#include "packrnn/kernels/cuda/launch.cuh"
#include "packrnn/kernels/cuda/pack_panels.hpp"
#include "packrnn/kernels/cuda/rows.cuh"
#include "packrnn/kernels/cuda/storage.cuh"

namespace packrnn::kernels::cuda {
namespace {

template <class T>
struct Weights {
  const T *w_ih, *w_hh, *b_ih, *b_hh, *w_hr;

  explicit Weights(const RecurrentWeights& w)
      : w_ih(data(w.w_ih)),
        w_hh(data(w.w_hh)),
        b_ih(data(w.b_ih)),
        b_hh(data(w.b_hh)),
        w_hr(data(w.w_hr)) {}

 private:
  static const T* data(const TensorView& view) { return static_cast<const T*>(view.raw()); }
};

/// Element i of the matrices, which end where the biases begin.
template <class T>
__device__ T forward_element(const RecurrentShape& s, const RecurrentPanels& p, const Weights<T>& w,
                             std::int64_t i) {
  const std::int64_t H = s.hidden;
  if (i >= p.w_hr) {
    const std::int64_t row = (i - p.w_hr) / p.pitch_hr, k = (i - p.w_hr) % p.pitch_hr;
    return row < s.projection && k < H ? w.w_hr[row * H + k] : T{};
  }
  const bool input = i < p.w_hh;
  const std::int64_t j = input ? i : i - p.w_hh, pitch = input ? p.pitch_ih : p.pitch_hh;
  const std::int64_t width = input ? s.input : s.state(), row = j / pitch, k = j % pitch;
  const std::int64_t unit = row / p.gates, gate = row % p.gates;
  if (unit >= H || k >= width) return T{};
  return (input ? w.w_ih : w.w_hh)[(gate * H + unit) * width + k];
}

/// Element i of the biases.
template <class T>
__device__ Sum<T> forward_bias(const RecurrentShape& s, const RecurrentPanels& p,
                               const Weights<T>& w, std::int64_t i) {
  using A = Sum<T>;
  const std::int64_t first_n =
      (p.bias_n - p.bias) * std::int64_t{sizeof(T)} / std::int64_t{sizeof(A)};
  const bool gru = s.cell == Cell::gru;
  const bool n = i >= first_n;
  const std::int64_t unit = n ? i - first_n : i / p.gates, gate = n ? 2 : i % p.gates;
  if (unit >= s.hidden || (n && !gru)) return A(0);
  const std::int64_t row = gate * s.hidden + unit;
  const A ih = w.b_ih != nullptr ? value_of(w.b_ih[row]) : A(0);
  const A hh = w.b_hh != nullptr ? value_of(w.b_hh[row]) : A(0);
  if (gru && gate == 2) return n ? hh : ih;  // b_hn stays inside r * (.)
  return ih + hh;
}

template <class T>
__global__ void __launch_bounds__(kRowThreads)
    pack_forward_kernel(RecurrentShape s, RecurrentPanels p, Weights<T> w, T* panels) {
  for (std::int64_t i = first_item(); i < p.bias; i += item_stride())
    panels[i] = forward_element(s, p, w, i);
  Sum<T>* const bias = reinterpret_cast<Sum<T>*>(panels + p.bias);
  const std::int64_t count =
      (p.elements - p.bias) * std::int64_t{sizeof(T)} / std::int64_t{sizeof(Sum<T>)};
  for (std::int64_t i = first_item(); i < count; i += item_stride())
    bias[i] = forward_bias(s, p, w, i);
}

template <class T>
__device__ T backward_element(const RecurrentShape& s, const RecurrentBackwardPanels& p,
                              const Weights<T>& w, std::int64_t i) {
  const std::int64_t H = s.hidden;
  if (i >= p.w_hr) {
    const std::int64_t row = (i - p.w_hr) / p.pitch_hr, k = (i - p.w_hr) % p.pitch_hr;
    return row < H && k < s.projection ? w.w_hr[k * H + row] : T{};
  }
  const bool input = i >= p.w_ih;
  const std::int64_t j = input ? i - p.w_ih : i, pitch = input ? p.pitch_ih : p.pitch_hh;
  const std::int64_t width = input ? s.input : s.state(), row = j / pitch, k = j % pitch;
  const std::int64_t part = k / p.units, unit = k % p.units;
  if (row >= width || part >= p.gates || unit >= H) return T{};
  const std::int64_t gate = !input && s.cell == Cell::gru ? (part + 2) % 3 : part;
  return (input ? w.w_ih : w.w_hh)[(gate * H + unit) * width + row];
}

template <class T>
__global__ void __launch_bounds__(kRowThreads)
    pack_backward_kernel(RecurrentShape s, RecurrentBackwardPanels p, Weights<T> w, T* panels) {
  for (std::int64_t i = first_item(); i < p.forward; i += item_stride())
    panels[i] = backward_element(s, p, w, i);
}

}  // namespace

void pack_panels(gpu::Stream stream, const RecurrentShape& s, const RecurrentWeights& weights,
                 void* panels) {
  const RecurrentPanels p = RecurrentPanels::of(s);
  with_floating(s.dtype, [&]<class T>(std::type_identity<T>) {
    launch(stream, PACKRNN_KERNEL(pack_forward_kernel<T>), strided_shape(stream, p.elements), s, p,
           Weights<T>(weights), static_cast<T*>(panels));
  });
}

void pack_backward_panels(gpu::Stream stream, const RecurrentShape& s,
                          const RecurrentWeights& weights, void* panels) {
  const RecurrentBackwardPanels p = RecurrentBackwardPanels::of(s);
  with_floating(s.dtype, [&]<class T>(std::type_identity<T>) {
    launch(stream, PACKRNN_KERNEL(pack_backward_kernel<T>), strided_shape(stream, p.forward), s, p,
           Weights<T>(weights), static_cast<T*>(panels));
    pack_panels(stream, s, weights, static_cast<T*>(panels) + p.forward);
  });
}

}  // namespace packrnn::kernels::cuda

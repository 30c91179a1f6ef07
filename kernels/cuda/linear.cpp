// The packed form of a Linear layer's weights.
#include "packrnn/kernels/cuda/linear.hpp"

#include <cstring>
#include <type_traits>

#include "packrnn/runtime/element.hpp"

namespace packrnn::kernels::cuda {
namespace {

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

LinearPanels LinearPanels::of(std::int64_t outputs, std::int64_t k, Dtype dtype) {
  const auto size = static_cast<std::int64_t>(size_of(dtype));
  const std::int64_t sum_size = dtype == Dtype::f64 ? 8 : 4;
  LinearPanels p{};
  p.pitch = round_up(k, 16 / size);
  p.bias = round_up(outputs * p.pitch, 64 / size);
  p.elements = p.bias + round_up(outputs * sum_size, 64) / size;
  return p;
}

void fill_panels(const TensorView& weight, const TensorView& bias, void* panels) {
  const std::int64_t outputs = weight.size(0), k = weight.size(1);
  const LinearPanels p = LinearPanels::of(outputs, k, weight.dtype());
  std::memset(panels, 0, static_cast<std::size_t>(p.elements) * size_of(weight.dtype()));
  with_dtype(weight.dtype(), [&]<class T>(std::type_identity<T>) {
    using Sum = std::conditional_t<std::is_same_v<T, double>, double, float>;
    T* const data = static_cast<T*>(panels);
    const T* const from = weight.data<T>();
    for (std::int64_t o = 0; o < outputs; ++o)
      std::memcpy(data + o * p.pitch, from + o * k, static_cast<std::size_t>(k) * sizeof(T));
    if (!bias.defined()) return;
    Sum* const sums = reinterpret_cast<Sum*>(data + p.bias);
    for (std::int64_t o = 0; o < outputs; ++o) sums[o] = convert_element<Sum>(bias.data<T>()[o]);
  });
}

}  // namespace packrnn::kernels::cuda

// Dropout of packed rows: a thread makes four random numbers and drops the four elements they are
// for. Bound by memory: elements are read and written once, as one vector where rows allow it.
#include <type_traits>

#include "packrnn/kernels/cuda/dropout.hpp"
#include "packrnn/kernels/cuda/launch.cuh"
#include "packrnn/kernels/cuda/rows.cuh"
#include "packrnn/runtime/element.hpp"

namespace packrnn::kernels::cuda {
namespace {

template <class T>
struct alignas(sizeof(T) == 8 ? 16 : 4 * sizeof(T)) Four {
  T value[4];
};

template <class T, class A>
__device__ T dropped(T value, std::uint32_t bits, float p, A scale) {
  return uniform01(bits) < p ? T{} : convert_element<T>(convert_element<A>(value) * scale);
}

template <class T, class A>
__global__ void __launch_bounds__(kRowThreads)
    dropout_kernel(DeviceLayout layout, PhiloxKey key, float p, A scale, std::int64_t width,
                   bool whole, T* rows) {
  const std::int64_t fours = (width + 3) / 4;
  const std::int64_t count = rows_of(layout) * fours;
  for (std::int64_t i = first_item(); i < count; i += item_stride()) {
    const std::int64_t row = i / fours, four = i - row * fours;
    const std::int32_t t = step_of(layout, row);
    const auto id = static_cast<std::uint64_t>(
        layout.sequence_ids[layout.sorted_indices[row - layout.offsets[t]]]);
    const PhiloxCounter bits =
        philox4x32_10({static_cast<std::uint32_t>(four), static_cast<std::uint32_t>(t),
                       static_cast<std::uint32_t>(id), static_cast<std::uint32_t>(id >> 32)},
                      key);
    T* const at = rows + row * width + 4 * four;
    if (whole) {
      Four<T> values = *reinterpret_cast<const Four<T>*>(at);
      PACKRNN_UNROLL
      for (int j = 0; j < 4; ++j) values.value[j] = dropped(values.value[j], bits[j], p, scale);
      *reinterpret_cast<Four<T>*>(at) = values;
    } else {
      PACKRNN_UNROLL
      for (int j = 0; j < 4; ++j)
        if (4 * four + j < width) at[j] = dropped(at[j], bits[j], p, scale);
    }
  }
}

}  // namespace

void dropout(gpu::Stream stream, const DeviceLayout& layout, PhiloxKey key, double p, Dtype dtype,
             std::int64_t width, void* rows) {
  const gpu::LaunchShape shape = strided_shape(stream, layout.rows_capacity * ((width + 3) / 4));
  with_dtype(dtype, [&]<class T>(std::type_identity<T>) {
    if constexpr (!std::is_integral_v<T>) {  // refused by the caller
      using A = std::conditional_t<std::is_same_v<T, double>, double, float>;
      const A scale = p < 1.0 ? static_cast<A>(1.0 / (1.0 - p)) : A{0};
      const bool whole =
          width % 4 == 0 && reinterpret_cast<std::uintptr_t>(rows) % alignof(Four<T>) == 0;
      launch(stream, PACKRNN_KERNEL(dropout_kernel<T, A>), shape, layout, key,
             static_cast<float>(p), scale, width, whole, static_cast<T*>(rows));
    }
  });
}

}  // namespace packrnn::kernels::cuda

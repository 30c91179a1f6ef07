#include "packrnn/kernels/fill_value.hpp"

#include <cmath>
#include <cstring>
#include <type_traits>

#include "packrnn/runtime/element.hpp"
#include "packrnn/runtime/expects.hpp"

namespace packrnn::kernels {

FillValue fill_value(double value, Dtype dtype, std::string_view argument) {
  return with_dtype(dtype, [&]<class T>(std::type_identity<T>) {
    if constexpr (std::is_integral_v<T>) {
      // -2^k and 2^k are exact doubles, so these comparisons are too; a NaN fails the first.
      const double limit = std::ldexp(1.0, 8 * static_cast<int>(sizeof(T)) - 1);
      expects(value >= -limit && value < limit && value == std::trunc(value),
              "{} is {}, which dtype {} cannot hold", argument, value, dtype);
    }
    const T element = convert_element<T>(value);
    FillValue result;
    result.size = sizeof(T);
    std::memcpy(result.bytes.data(), &element, sizeof(T));
    return result;
  });
}

}  // namespace packrnn::kernels

// A number as one element of a run-time dtype, ready to be copied; private to the library.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

#include "packrnn/runtime/dtype.hpp"

namespace packrnn::kernels {

struct FillValue {
  alignas(8) std::array<std::byte, 8> bytes{};
  std::size_t size = 0;  // 2, 4 or 8
};

/// `value` rounded to nearest even in a floating dtype (overflow gives Inf). An integer dtype must
/// hold it exactly, or InvalidArgument names `argument` and the value.
FillValue fill_value(double value, Dtype dtype, std::string_view argument);

}  // namespace packrnn::kernels

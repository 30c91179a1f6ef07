// Checks of a caller's arguments; private to the library (public headers do not need fmt).
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string_view>
#include <utility>

#include "packrnn/runtime/error.hpp"
#include "packrnn/runtime/tensor.hpp"

namespace packrnn {

/// Throws InvalidArgument with the formatted message unless `ok`. Always on; the message is only
/// formatted on failure, so pass a Shape, Dtype or Device itself, not its str() or name(), which
/// would be made every time. Name the argument, its value, and what was expected.
template <class... Args>
void expects(bool ok, fmt::format_string<Args...> message, Args&&... args) {
  if (!ok) [[unlikely]]
    throw InvalidArgument(fmt::format(message, std::forward<Args>(args)...));
}

}  // namespace packrnn

template <>
struct fmt::formatter<packrnn::Shape> : fmt::formatter<std::string_view> {
  template <class Context>
  auto format(const packrnn::Shape& shape, Context& context) const {
    return fmt::formatter<std::string_view>::format(shape.str(), context);
  }
};

template <>
struct fmt::formatter<packrnn::Dtype> : fmt::formatter<std::string_view> {
  template <class Context>
  auto format(packrnn::Dtype dtype, Context& context) const {
    return fmt::formatter<std::string_view>::format(packrnn::name_of(dtype), context);
  }
};

template <>
struct fmt::formatter<packrnn::Device> : fmt::formatter<std::string_view> {
  template <class Context>
  auto format(packrnn::Device device, Context& context) const {
    return fmt::formatter<std::string_view>::format(device.name(), context);
  }
};

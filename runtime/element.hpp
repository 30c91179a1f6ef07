// Single elements: exact conversions between dtypes, and from a run-time Dtype to a C++ type.
// Private to the library. The conversions are constexpr so that kernels can call them too: a GPU
// gives the same bits.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "packrnn/runtime/dtype.hpp"

namespace packrnn {

/// Bits of the binary16 nearest to `value`, ties to even.
constexpr std::uint16_t half_bits(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits >> 16 & 0x8000U;
  std::uint32_t x = bits & 0x7FFFFFFFU;
  if (x > 0x7F800000U) {  // NaN: keep the payload's top, but never let it become Inf
    const std::uint32_t payload = x >> 13 & 0x3FFU;
    return static_cast<std::uint16_t>(sign | 0x7C00U | (payload != 0 ? payload : 0x200U));
  }
  if (x >= 0x47800000U)  // 2^16 and more
    return static_cast<std::uint16_t>(sign | 0x7C00U);
  if (x < 0x38800000U) {
    // Below 2^-14: neighbours of 0.5 lie as far apart in float as half's subnormals, so the
    // addition does the rounding.
    const float shifted = std::bit_cast<float>(x) + 0.5F;
    x = std::bit_cast<std::uint32_t>(shifted) - 0x3F000000U;
  } else {
    x += 0xFFFU + (x >> 13 & 1U);  // a carry into the exponent is right, up to Inf
    x = (x - (112U << 23)) >> 13;
  }
  return static_cast<std::uint16_t>(sign | x);
}

constexpr float half_value(std::uint16_t bits) noexcept {
  const std::uint32_t sign = (bits & 0x8000U) << 16;
  const std::uint32_t exponent = bits >> 10 & 0x1FU;
  const std::uint32_t mantissa = bits & 0x3FFU;
  std::uint32_t x = 0;
  if (exponent == 0)
    x = std::bit_cast<std::uint32_t>(static_cast<float>(mantissa) * 0x1p-24F);
  else if (exponent == 0x1FU)
    x = 0x7F800000U | mantissa << 13;
  else
    x = (exponent + 112U) << 23 | mantissa << 13;
  return std::bit_cast<float>(sign | x);
}

/// Bits of the bfloat16 nearest to `value`, ties to even.
constexpr std::uint16_t bfloat16_bits(float value) noexcept {
  const auto x = std::bit_cast<std::uint32_t>(value);
  if ((x & 0x7FFFFFFFU) > 0x7F800000U) {  // NaN whose payload may lie in the lower half only
    const std::uint32_t quiet = (x >> 16 & 0x7FU) != 0 ? 0U : 0x40U;
    return static_cast<std::uint16_t>(x >> 16 | quiet);
  }
  return static_cast<std::uint16_t>((x + 0x7FFFU + (x >> 16 & 1U)) >> 16);
}

constexpr float bfloat16_value(std::uint16_t bits) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

/// The float beside `value` whose last bit is 1, or `value` itself where it is a float. Rounding
/// that again to 16 bits equals rounding `value` once; to nearest float first would round twice.
constexpr float round_to_odd(double value) noexcept {
  const auto nearest = static_cast<float>(value);
  if (static_cast<double>(nearest) == value || value != value) return nearest;
  auto bits = std::bit_cast<std::uint32_t>(nearest);
  if (value < 0 ? static_cast<double>(nearest) < value : static_cast<double>(nearest) > value)
    --bits;  // toward zero; from Inf to the largest float
  return std::bit_cast<float>(bits | 1U);
}

template <class T>
inline constexpr bool kIs16Bit = std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>;

/// `value` as a T, rounded to nearest even. The caller has excluded what does not fit (floating to
/// integer, i64 beyond i32).
template <class T, class S>
constexpr T convert_element(S value) noexcept {
  if constexpr (std::is_same_v<T, S>) {
    return value;
  } else if constexpr (std::is_same_v<S, Half>) {
    return convert_element<T>(half_value(value.bits));
  } else if constexpr (std::is_same_v<S, BFloat16>) {
    return convert_element<T>(bfloat16_value(value.bits));
  } else if constexpr (kIs16Bit<T>) {
    float single = 0;
    if constexpr (std::is_same_v<S, float>)
      single = value;
    else
      single = round_to_odd(static_cast<double>(value));
    T result;
    result.bits = std::is_same_v<T, Half> ? half_bits(single) : bfloat16_bits(single);
    return result;
  } else {
    return static_cast<T>(value);
  }
}

/// Calls function(std::type_identity<T>{}) with the C++ type of `dtype`.
template <class Function>
decltype(auto) with_dtype(Dtype dtype, Function&& function) {
  switch (dtype) {
    case Dtype::f32:
      return function(std::type_identity<float>{});
    case Dtype::f64:
      return function(std::type_identity<double>{});
    case Dtype::f16:
      return function(std::type_identity<Half>{});
    case Dtype::bf16:
      return function(std::type_identity<BFloat16>{});
    case Dtype::i32:
      return function(std::type_identity<std::int32_t>{});
    case Dtype::i64:
      break;
  }
  return function(std::type_identity<std::int64_t>{});
}

}  // namespace packrnn

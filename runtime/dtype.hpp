// Element types and the 16-bit storage formats. Half and BFloat16 only store: arithmetic is done in
// float.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace packrnn {

enum class Dtype : std::uint8_t { f32, f64, f16, bf16, i32, i64 };

/// Bytes of one element.
std::size_t size_of(Dtype dtype) noexcept;
/// "f32", "bf16", ...
std::string_view name_of(Dtype dtype) noexcept;
/// True for f32, f64, f16, bf16.
bool is_floating(Dtype dtype) noexcept;

/// IEEE binary16. Conversion from float rounds to nearest even; NaN stays NaN, overflow is Inf.
struct Half {
  std::uint16_t bits = 0;

  Half() = default;
  explicit Half(float value) noexcept;
  explicit operator float() const noexcept;
};

/// The upper half of an IEEE binary32. Same rounding rules as Half.
struct BFloat16 {
  std::uint16_t bits = 0;

  BFloat16() = default;
  explicit BFloat16(float value) noexcept;
  explicit operator float() const noexcept;
};

template <class T>
struct DtypeOf;
template <>
struct DtypeOf<float> {
  static constexpr Dtype value = Dtype::f32;
};
template <>
struct DtypeOf<double> {
  static constexpr Dtype value = Dtype::f64;
};
template <>
struct DtypeOf<Half> {
  static constexpr Dtype value = Dtype::f16;
};
template <>
struct DtypeOf<BFloat16> {
  static constexpr Dtype value = Dtype::bf16;
};
template <>
struct DtypeOf<std::int32_t> {
  static constexpr Dtype value = Dtype::i32;
};
template <>
struct DtypeOf<std::int64_t> {
  static constexpr Dtype value = Dtype::i64;
};

/// The Dtype of a C++ element type.
template <class T>
inline constexpr Dtype kDtypeOf = DtypeOf<T>::value;

}  // namespace packrnn

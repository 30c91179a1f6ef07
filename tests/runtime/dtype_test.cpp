#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <packrnn/runtime/dtype.hpp>

#include "tests/catch.hpp"

namespace packrnn {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

Half half_of(std::uint32_t bits) {
  Half value;
  value.bits = static_cast<std::uint16_t>(bits);
  return value;
}

BFloat16 bfloat16_of(std::uint32_t bits) {
  BFloat16 value;
  value.bits = static_cast<std::uint16_t>(bits);
  return value;
}

/// What the pattern means, by the definition of the format.
double meaning(std::uint32_t bits, int exponent_bits, int mantissa_bits) {
  const auto mantissa = bits & ((1U << mantissa_bits) - 1);
  const auto exponent = bits >> mantissa_bits & ((1U << exponent_bits) - 1);
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const double sign = (bits >> 15 & 1U) != 0 ? -1 : 1;
  if (exponent == (1U << exponent_bits) - 1)
    return mantissa != 0 ? std::nan("") : sign * static_cast<double>(kInf);
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1U << mantissa_bits),
                           static_cast<int>(exponent) - bias - mantissa_bits);
}

bool same(double a, double b) {
  return (std::isnan(a) && std::isnan(b)) || (a == b && std::signbit(a) == std::signbit(b));
}

/// Checks every gap between neighbours of a format: what lies below its middle goes down, above it
/// up, and the middle itself to the even pattern.
template <class T, class FromBits>
int wrong_roundings(FromBits from_bits, std::uint32_t infinity) {
  int wrong = 0;
  for (std::uint32_t bits = 0; bits < infinity; ++bits) {
    const auto low = static_cast<float>(from_bits(bits));
    // The gap above the largest finite value is as wide as the one below it.
    const float gap = bits + 1 < infinity ? static_cast<float>(from_bits(bits + 1)) - low
                                          : low - static_cast<float>(from_bits(bits - 1));
    const double exact_middle = static_cast<double>(low) + static_cast<double>(gap) / 2;
    const auto middle = static_cast<float>(exact_middle);
    if (static_cast<double>(middle) != exact_middle) ++wrong;  // the test itself would be off
    const std::uint32_t even = bits % 2 == 0 ? bits : bits + 1;
    for (const std::uint32_t sign : {0U, 0x8000U}) {
      const float s = sign != 0 ? -1.0F : 1.0F;
      wrong += T(s * middle).bits != (sign | even);
      wrong += T(s * std::nextafterf(middle, 0.0F)).bits != (sign | bits);
      wrong += T(s * std::nextafterf(middle, kInf)).bits != (sign | (bits + 1));
    }
  }
  return wrong;
}

}  // namespace

TEST_CASE("sizes and names of dtypes") {
  CHECK(size_of(Dtype::f32) == 4);
  CHECK(size_of(Dtype::f64) == 8);
  CHECK(size_of(Dtype::f16) == 2);
  CHECK(size_of(Dtype::bf16) == 2);
  CHECK(size_of(Dtype::i32) == 4);
  CHECK(size_of(Dtype::i64) == 8);
  CHECK(name_of(Dtype::f32) == "f32");
  CHECK(name_of(Dtype::bf16) == "bf16");
  CHECK(name_of(Dtype::i64) == "i64");
  CHECK(is_floating(Dtype::f16));
  CHECK(is_floating(Dtype::f64));
  CHECK_FALSE(is_floating(Dtype::i32));
  CHECK_FALSE(is_floating(Dtype::i64));
  STATIC_REQUIRE(kDtypeOf<BFloat16> == Dtype::bf16);
}

TEST_CASE("all 65536 patterns of f16 and bf16 have their value and come back") {
  int wrong = 0;
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<float>(half_of(bits));
    const auto bfloat16 = static_cast<float>(bfloat16_of(bits));
    wrong += !same(static_cast<double>(half), meaning(bits, 5, 10));
    wrong += !same(static_cast<double>(bfloat16), meaning(bits, 8, 7));
    wrong += Half(half).bits != bits;
    wrong += BFloat16(bfloat16).bits != bits;
  }
  CHECK(wrong == 0);
}

TEST_CASE("float rounds to the nearest f16, ties to even, subnormals included") {
  CHECK(wrong_roundings<Half>(half_of, 0x7C00) == 0);
}

TEST_CASE("float rounds to the nearest bf16, ties to even, subnormals included") {
  CHECK(wrong_roundings<BFloat16>(bfloat16_of, 0x7F80) == 0);
}

TEST_CASE("ends of the 16-bit ranges") {
  CHECK(Half(65504.0F).bits == 0x7BFF);
  CHECK(Half(65519.996F).bits == 0x7BFF);
  CHECK(Half(65520.0F).bits == 0x7C00);
  CHECK(Half(-1e30F).bits == 0xFC00);
  CHECK(Half(kInf).bits == 0x7C00);
  CHECK(Half(0x1p-24F).bits == 1);
  CHECK(Half(0x1p-25F).bits == 0);  // a tie between 0 and 1
  CHECK(Half(0x1.000002p-25F).bits == 1);
  CHECK(Half(-0.0F).bits == 0x8000);
  CHECK(Half(std::numeric_limits<float>::denorm_min()).bits == 0);
  CHECK(BFloat16(std::numeric_limits<float>::max()).bits == 0x7F80);
  CHECK(BFloat16(-kInf).bits == 0xFF80);
  CHECK(BFloat16(-0.0F).bits == 0x8000);
}

TEST_CASE("NaN stays NaN, whatever its payload") {
  for (const std::uint32_t payload : {1U, 0x1000U, 0x1FFFU, 0xFFFFU, 0x400000U, 0x7FFFFFU}) {
    for (const std::uint32_t sign : {0U, 0x80000000U}) {
      const auto nan = std::bit_cast<float>(sign | 0x7F800000U | payload);
      CHECK(std::isnan(static_cast<float>(Half(nan))));
      CHECK(std::isnan(static_cast<float>(BFloat16(nan))));
    }
  }
}

}  // namespace packrnn

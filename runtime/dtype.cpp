#include "packrnn/runtime/dtype.hpp"

#include "packrnn/runtime/element.hpp"

namespace packrnn {

std::size_t size_of(Dtype dtype) noexcept {
  switch (dtype) {
    case Dtype::f16:
    case Dtype::bf16:
      return 2;
    case Dtype::f32:
    case Dtype::i32:
      return 4;
    case Dtype::f64:
    case Dtype::i64:
      break;
  }
  return 8;
}

std::string_view name_of(Dtype dtype) noexcept {
  switch (dtype) {
    case Dtype::f32:
      return "f32";
    case Dtype::f64:
      return "f64";
    case Dtype::f16:
      return "f16";
    case Dtype::bf16:
      return "bf16";
    case Dtype::i32:
      return "i32";
    case Dtype::i64:
      return "i64";
  }
  return "unknown";
}

bool is_floating(Dtype dtype) noexcept { return dtype != Dtype::i32 && dtype != Dtype::i64; }

Half::Half(float value) noexcept : bits(half_bits(value)) {}
Half::operator float() const noexcept { return half_value(bits); }

BFloat16::BFloat16(float value) noexcept : bits(bfloat16_bits(value)) {}
BFloat16::operator float() const noexcept { return bfloat16_value(bits); }

}  // namespace packrnn

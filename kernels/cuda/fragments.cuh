// How the recurrent product is put to the tensor cores: pre-activations = W h^T, 16 gate rows of W,
// 8 sequences and 32 elements of K at a time.
//
// The tensor cores want K spread over the lanes of a warp, but do not care which element is called
// k = 0. We name them so that each lane owns 8 elements that lie side by side: with g = lane / 4
// and q = lane % 4, a lane owns elements 8q .. 8q + 7 of a chunk, of rows g and g + 8 of W and of
// sequence g. So operands come from row-major memory by 16-byte loads, without shuffles and without
// a copy in another order.
//
// An output is summed in an order that depends on nothing but K: a warp takes some chunks, one
// after the other, in two chains of even and of odd instructions, which are added at the end.
#pragma once

#include "packrnn/kernels/cuda/device.cuh"
#include "packrnn/kernels/cuda/mailbox.cuh"

namespace packrnn::kernels::cuda {

inline constexpr int kChunk = 32;                       // elements of K that a warp takes at once
inline constexpr int kTileRows = 16, kTileColumns = 8;  // of pre-activations: gate rows, sequences

/// The kinds of product. Bytes are of an element in memory; weight() and state() make operands of
/// words that were loaded from there; bits() rounds h to an element that may be published, and
/// value() reads it.
struct Bf16Product {
  static constexpr int kBytes = 2;
  PACKRNN_DEVICE static std::uint32_t weight(std::uint32_t word) { return word; }
  PACKRNN_DEVICE static std::uint32_t state(std::uint32_t word) { return word; }
  PACKRNN_DEVICE static void multiply(float (&sum)[4], const U32x4& a, std::uint32_t b0,
                                      std::uint32_t b1) {
    mma_bf16_16816(sum, a, b0, b1);
  }
  PACKRNN_DEVICE static std::uint32_t bits(float h) { return from_float<Bf16>(h).bits; }
  PACKRNN_DEVICE static float value(std::uint32_t bits) {
    return to_float(Bf16{static_cast<std::uint16_t>(bits)});
  }
};

struct F16Product {
  static constexpr int kBytes = 2;
  PACKRNN_DEVICE static std::uint32_t weight(std::uint32_t word) { return word; }
  PACKRNN_DEVICE static std::uint32_t state(std::uint32_t word) { return word; }
  PACKRNN_DEVICE static void multiply(float (&sum)[4], const U32x4& a, std::uint32_t b0,
                                      std::uint32_t b1) {
    mma_f16_16816(sum, a, b0, b1);
  }
  PACKRNN_DEVICE static std::uint32_t bits(float h) { return from_float<F16>(h).bits; }
  PACKRNN_DEVICE static float value(std::uint32_t bits) {
    return to_float(F16{static_cast<std::uint16_t>(bits)});
  }
};

struct Tf32Product {
  static constexpr int kBytes = 4;
  PACKRNN_DEVICE static std::uint32_t weight(std::uint32_t word) {
    return to_tf32(__uint_as_float(word));
  }
  PACKRNN_DEVICE static std::uint32_t state(std::uint32_t word) { return weight(word); }
  PACKRNN_DEVICE static void multiply(float (&sum)[4], const U32x4& a, std::uint32_t b0,
                                      std::uint32_t b1) {
    mma_tf32_1688(sum, a, b0, b1);
  }
  PACKRNN_DEVICE static std::uint32_t bits(float h) { return message(h); }
  PACKRNN_DEVICE static float value(std::uint32_t bits) { return __uint_as_float(bits); }
};

/// Each factor in two parts, high by cutting off what tf32 does not hold, so that low is exact; the
/// product of the low parts is left out. An infinite factor gives NaN.
struct Tf32x3Product {
  static constexpr int kBytes = 4;
  PACKRNN_DEVICE static std::uint32_t weight(std::uint32_t word) { return word; }
  PACKRNN_DEVICE static std::uint32_t state(std::uint32_t word) { return word; }
  PACKRNN_DEVICE static void multiply(float (&sum)[4], const U32x4& a, std::uint32_t b0,
                                      std::uint32_t b1) {
    // Split anew in every step: the parts of all weights would need twice the registers.
    const std::uint32_t mask = opaque(0xFFFFE000U);
    const auto low = [mask](std::uint32_t word) {
      return mask & __float_as_uint(__uint_as_float(word) - __uint_as_float(word & mask));
    };
    const U32x4 high_a{a.x & mask, a.y & mask, a.z & mask, a.w & mask};
    const U32x4 low_a{low(a.x), low(a.y), low(a.z), low(a.w)};
    mma_tf32_1688(sum, low_a, b0 & mask, b1 & mask);
    mma_tf32_1688(sum, high_a, low(b0), low(b1));
    mma_tf32_1688(sum, high_a, b0 & mask, b1 & mask);
  }
  PACKRNN_DEVICE static std::uint32_t bits(float h) { return message(h); }
  PACKRNN_DEVICE static float value(std::uint32_t bits) { return __uint_as_float(bits); }
};

/// What a lane owns of one row and one chunk of K.
template <class Product>
struct Fragment {
  static constexpr int kVectors = Product::kBytes * 8 / 16;
  U32x4 vector[kVectors];
};

template <class Product>
PACKRNN_DEVICE Fragment<Product> zero_fragment() {
  Fragment<Product> f;
  PACKRNN_UNROLL
  for (int v = 0; v < f.kVectors; ++v) f.vector[v] = U32x4{0, 0, 0, 0};
  return f;
}

/// Of memory that nobody writes meanwhile.
template <class Product>
PACKRNN_DEVICE Fragment<Product> load_fragment(const void* from) {
  Fragment<Product> f;
  PACKRNN_UNROLL
  for (int v = 0; v < f.kVectors; ++v) f.vector[v] = static_cast<const U32x4*>(from)[v];
  return f;
}

/// Of a mailbox.
template <class Product>
PACKRNN_DEVICE Fragment<Product> look_at_fragment(const void* from) {
  Fragment<Product> f;
  PACKRNN_UNROLL
  for (int v = 0; v < f.kVectors; ++v)
    f.vector[v] = ld_relaxed_v4(static_cast<const U32x4*>(from) + v);
  return f;
}

template <class Product>
PACKRNN_DEVICE bool incomplete(const Fragment<Product>& f) {
  bool missing = false;
  PACKRNN_UNROLL
  for (const U32x4& v : f.vector)
    missing |= v.x == kNothing || v.y == kNothing || v.z == kNothing || v.w == kNothing;
  return missing;
}

template <class Product, std::uint32_t (*kChange)(std::uint32_t)>
PACKRNN_DEVICE void change_words(Fragment<Product>& f) {
  PACKRNN_UNROLL
  for (U32x4& v : f.vector) v = U32x4{kChange(v.x), kChange(v.y), kChange(v.z), kChange(v.w)};
}

/// Adds one chunk to the two chains of a tile; low and high are the gate rows g and g + 8.
template <class Product>
PACKRNN_DEVICE void multiply_chunk(float (&sum)[2][4], const Fragment<Product>& low,
                                   const Fragment<Product>& high, const Fragment<Product>& state) {
  PACKRNN_UNROLL
  for (int v = 0; v < low.kVectors; ++v) {
    const U32x4 &a = low.vector[v], &b = high.vector[v], &s = state.vector[v];
    Product::multiply(sum[0], U32x4{a.x, b.x, a.y, b.y}, s.x, s.y);
    Product::multiply(sum[1], U32x4{a.z, b.z, a.w, b.w}, s.z, s.w);
  }
}

}  // namespace packrnn::kernels::cuda

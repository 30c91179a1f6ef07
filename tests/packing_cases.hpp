// What the tests of packing share: random length vectors, tensors of arbitrary bits, targets with
// guard bytes, and packing written down the obvious way. The naive functions use nothing of the
// product but its dtypes' sizes.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "packrnn/runtime/context.hpp"
#include "packrnn/runtime/error.hpp"
#include "packrnn/runtime/tensor.hpp"
#include "tests/catch.hpp"

namespace packrnn::tests {

using Bytes = std::vector<std::byte>;
using Ints = std::vector<std::int64_t>;

inline constexpr std::array kAllDtypes = {Dtype::f32,  Dtype::f64, Dtype::f16,
                                          Dtype::bf16, Dtype::i32, Dtype::i64};
// None, one and two trailing dimensions.
inline const std::vector<Shape> kRowShapes = {Shape{}, Shape{3}, Shape{2, 3}};

inline Context cpu_context(int threads = 1) { return Context(Device::cpu(), {.threads = threads}); }

// splitmix64: fixed numbers on every platform, which std::uniform_int_distribution does not
// promise.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t bits() {
    std::uint64_t z = (state_ += 0x9E3779B97F4A7C15U);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
    return z ^ (z >> 31);
  }
  std::int64_t below(std::int64_t limit) {
    return static_cast<std::int64_t>(bits() % static_cast<std::uint64_t>(limit));
  }
  /// -1 .. 1
  double number() { return static_cast<double>(bits() >> 11) * 0x1p-52 - 1.0; }

 private:
  std::uint64_t state_;
};

// Vectors of 0 .. 9 lengths of 0 .. 7: ties and zeros abound, and one of twenty is all zero.
inline std::vector<Ints> random_length_vectors(int count = 200) {
  Random random(20240229);
  std::vector<Ints> all;
  for (int i = 0; i < count; ++i) {
    Ints lengths(static_cast<std::size_t>(random.below(10)));
    const std::int64_t limit = i % 20 == 0 ? 1 : random.below(8) + 1;
    for (auto& length : lengths) length = random.below(limit);
    all.push_back(std::move(lengths));
  }
  return all;
}

inline std::int64_t longest(const Ints& lengths) {
  return lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
}
inline std::int64_t sum(const Ints& values) {
  return std::accumulate(values.begin(), values.end(), std::int64_t{0});
}

inline Bytes bytes_of(const TensorView& tensor) {
  const auto* data = static_cast<const std::byte*>(tensor.raw());
  return tensor.bytes() == 0 ? Bytes{} : Bytes(data, data + tensor.bytes());
}

// Empty when equal; Catch2 would take minutes to print a megabyte.
inline std::string difference(const Bytes& got, const Bytes& expected) {
  if (got.size() != expected.size())
    return std::to_string(got.size()) + " bytes instead of " + std::to_string(expected.size());
  const auto [a, b] = std::mismatch(got.begin(), got.end(), expected.begin());
  if (a == got.end()) return {};
  return "byte " + std::to_string(a - got.begin()) + " of " + std::to_string(got.size()) + ": " +
         std::to_string(std::to_integer<int>(*a)) + " instead of " +
         std::to_string(std::to_integer<int>(*b));
}

// Arbitrary bits, NaN patterns among them: rows must arrive as they are.
inline Tensor scrambled(const Shape& shape, Dtype dtype, std::uint64_t seed) {
  Tensor tensor = Tensor::empty(shape, dtype);
  Random random(seed);
  auto* out = static_cast<std::byte*>(tensor.span().raw());
  for (std::size_t i = 0; i < tensor.view().bytes(); i += 2) {
    const auto word = static_cast<std::uint16_t>(random.bits());
    std::memcpy(out + i, &word, 2);
  }
  return tensor;
}

// A target full of poison (0xFF is NaN in every floating dtype) between guard bytes.
class Poisoned {
 public:
  Poisoned(const Shape& shape, Dtype dtype, std::byte poison = std::byte{0xFF})
      : bytes_(static_cast<std::size_t>(shape.elements()) * size_of(dtype)),
        memory_(bytes_ + 2 * kGuard, kMark),
        span_(memory_.data() + kGuard, shape, dtype) {
    std::fill_n(memory_.begin() + kGuard, bytes_, poison);
  }
  Poisoned(const Poisoned&) = delete;
  Poisoned& operator=(const Poisoned&) = delete;

  const TensorSpan& span() const { return span_; }
  Bytes bytes() const { return bytes_of(span_); }
  bool guards_intact() const {
    const auto is_mark = [](std::byte b) { return b == kMark; };
    return std::all_of(memory_.begin(), memory_.begin() + kGuard, is_mark) &&
           std::all_of(memory_.end() - kGuard, memory_.end(), is_mark);
  }

 private:
  static constexpr std::ptrdiff_t kGuard = 64;
  static constexpr std::byte kMark{0xA5};
  std::size_t bytes_;
  Bytes memory_;
  TensorSpan span_;
};

// The message of the E that `function` throws; a test fails when it throws none.
template <class E = InvalidArgument, class Function>
std::string thrown(Function&& function) {
  try {
    function();
  } catch (const E& error) {
    return error.what();
  }
  return "(nothing was thrown)";
}

// Checks that `function` throws an E whose message contains every part.
template <class E = InvalidArgument, class Function>
void check_throws(Function&& function, std::initializer_list<const char*> parts) {
  const std::string message = thrown<E>(function);
  INFO("message: " << message);
  CHECK(message != "(nothing was thrown)");
  for (const char* part : parts) {
    INFO("should contain: " << part);
    CHECK(message.find(part) != std::string::npos);
  }
}

// Sequence indices by decreasing length, equal lengths in the caller's order.
inline Ints naive_order(const Ints& lengths) {
  Ints order;
  for (std::int64_t length = longest(lengths); length >= 0; --length)
    for (std::size_t n = 0; n < lengths.size(); ++n)
      if (lengths[n] == length) order.push_back(static_cast<std::int64_t>(n));
  return order;
}

// (sequence, step) of every packed row.
struct Cell {
  std::int64_t sequence, step;
};
inline std::vector<Cell> naive_rows(const Ints& lengths) {
  std::vector<Cell> rows;
  for (std::int64_t t = 0; t < longest(lengths); ++t)
    for (const std::int64_t n : naive_order(lengths))
      if (t < lengths[static_cast<std::size_t>(n)]) rows.push_back({n, t});
  return rows;
}

inline std::int64_t naive_place(Cell cell, std::int64_t T, std::int64_t N, bool batch_first) {
  return batch_first ? cell.sequence * T + cell.step : cell.step * N + cell.sequence;
}

inline Bytes naive_pack(const Bytes& padded, const Ints& lengths, std::int64_t T, bool batch_first,
                        std::size_t row) {
  Bytes packed;
  for (const Cell cell : naive_rows(lengths)) {
    const auto place = static_cast<std::size_t>(
        naive_place(cell, T, static_cast<std::int64_t>(lengths.size()), batch_first));
    for (std::size_t b = 0; b < row; ++b) packed.push_back(padded[place * row + b]);
  }
  return packed;
}

inline Bytes naive_unpack(const Bytes& packed, const Ints& lengths, std::int64_t T,
                          bool batch_first, std::size_t row, const Bytes& element) {
  Bytes padded;
  const auto N = static_cast<std::int64_t>(lengths.size());
  while (padded.size() < static_cast<std::size_t>(T * N) * row)
    padded.insert(padded.end(), element.begin(), element.end());
  std::size_t next = 0;
  for (const Cell cell : naive_rows(lengths)) {
    const auto place = static_cast<std::size_t>(naive_place(cell, T, N, batch_first));
    for (std::size_t b = 0; b < row; ++b) padded[place * row + b] = packed[next++];
  }
  return padded;
}

// The bytes of one element of `value`, by the test's own conversion (value must be exact in f16).
inline Bytes element_bytes(double value, Dtype dtype) {
  Bytes bytes(size_of(dtype));
  const auto put = [&](auto v) { std::memcpy(bytes.data(), &v, sizeof v); };
  if (dtype == Dtype::f32)
    put(static_cast<float>(value));
  else if (dtype == Dtype::f64)
    put(value);
  else if (dtype == Dtype::f16)
    put(Half(static_cast<float>(value)).bits);
  else if (dtype == Dtype::bf16)
    put(BFloat16(static_cast<float>(value)).bits);
  else if (dtype == Dtype::i32)
    put(static_cast<std::int32_t>(value));
  else
    put(static_cast<std::int64_t>(value));
  return bytes;
}

}  // namespace packrnn::tests

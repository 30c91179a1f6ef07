#include "packrnn/kernels/elementwise.hpp"

#include <bit>
#include <cmath>
#include <type_traits>

#include "tests/catch.hpp"
#include "tests/kernels/device_tensors.hpp"
#include "tests/packing_cases.hpp"

namespace packrnn::kernels {
namespace {

using namespace packrnn::tests;

constexpr std::array kFloating = {Dtype::f32, Dtype::f64, Dtype::f16, Dtype::bf16};

double element(const TensorView& tensor, std::int64_t i) {
  const Tensor wide = convert(tensor, Dtype::f64);
  return wide.values<double>()[static_cast<std::size_t>(i)];
}

TEST_CASE("floating dtypes convert to each other with the host's bits") {
  Context context;
  for (const Dtype from : kFloating)
    for (const Dtype to : kFloating)
      for (const std::int64_t count : {0, 1, 7, 8, 1003, 40000})
        for (const std::size_t shift : {std::size_t{0}, size_of(from)}) {
          if (count > 2000 && shift > 0) continue;
          CAPTURE(from, to, count, shift);
          const Tensor source = scrambled({count}, from, 9);  // NaN, Inf and denormals among them
          const Tensor expected = convert(source, to);
          const Target in(context, {count}, from, std::byte{0}, shift);
          context.copy(context.to_device(source), in.span());
          const Target out(context, {count}, to);
          convert_elements(context, in.span(), out.span());
          const Tensor got = context.to_host(out.span());
          const Bytes a = bytes_of(got), b = bytes_of(expected);
          std::int64_t wrong = -1;
          for (std::int64_t i = 0; i < count && wrong < 0; ++i) {
            const auto size = static_cast<std::ptrdiff_t>(size_of(to));
            const bool same =
                std::equal(a.begin() + i * size, a.begin() + (i + 1) * size, b.begin() + i * size);
            // Hardware may choose another payload of a NaN.
            if (!same && !(std::isnan(element(got.view().rows(i, i + 1), 0)) &&
                           std::isnan(element(expected.view().rows(i, i + 1), 0))))
              wrong = i;
          }
          CHECK(wrong == -1);
          CHECK(out.guards_intact());
        }
}

TEST_CASE("integers are copied; other conversions of them stay on the host") {
  Context context;
  const Tensor source = scrambled({30}, Dtype::i32, 9);
  const Target same(context, {30}, Dtype::i32);
  convert_elements(context, context.to_device(source), same.span());
  CHECK(same.bytes() == bytes_of(source));
  const Target wide(context, {30}, Dtype::i64);
  const auto run = [&] { convert_elements(context, context.to_device(source), wide.span()); };
  if (on_gpu(context)) {
    check_throws<Unsupported>(run, {"i32", "i64", "floating"});
  } else {
    run();
    CHECK(wide.bytes() == bytes_of(convert(source, Dtype::i64)));
  }
}

TEST_CASE("the first two axes are swapped") {
  Context context;
  for (const Dtype dtype : kAllDtypes)
    for (const Shape& row : {Shape{}, Shape{1}, Shape{3}, Shape{8}, Shape{2, 3}, Shape{0}})
      for (const auto& [a_count, b_count] :
           {std::pair<std::int64_t, std::int64_t>{1, 1}, {2, 3}, {4, 9}, {0, 3}, {3, 0}, {70, 5}}) {
        CAPTURE(dtype, row.str(), a_count, b_count);
        const Tensor source = scrambled(row.prepend(b_count).prepend(a_count), dtype, 4);
        const Bytes from = bytes_of(source);
        const auto size = row.elements() * static_cast<std::int64_t>(size_of(dtype));
        Bytes expected;
        for (std::int64_t b = 0; b < b_count; ++b)
          for (std::int64_t a = 0; a < a_count; ++a) {
            const auto at = from.begin() + (a * b_count + b) * size;
            if (!from.empty()) expected.insert(expected.end(), at, at + size);
          }
        const Target target(context, row.prepend(a_count).prepend(b_count), dtype);
        swap_axes(context, context.to_device(source), target.span());
        CHECK(target.bytes() == expected);
        CHECK(target.guards_intact());
      }
  const Target wrong(context, {2, 3, 4}, Dtype::f32);
  check_throws(
      [&] {
        swap_axes(context, context.zeros({2, 3, 4}, Dtype::f32), wrong.span());
      },
      {"target", "[2, 3, 4]", "[3, 2, 4]"});
}

template <class T>
void check_arithmetic(Context& context, std::int64_t count, std::size_t shift) {
  // In the arithmetic of the dtype, 16-bit ones in float and rounded once.
  using A = std::conditional_t<std::is_same_v<T, double>, double, float>;
  constexpr Dtype kDtype = kDtypeOf<T>;
  CAPTURE(kDtype, count, shift);
  Tensor a = Tensor::empty({count}, kDtype), b = Tensor::empty({count}, kDtype);
  Random random(5);
  for (T& value : a.values<T>()) value = static_cast<T>(static_cast<A>(random.number()));
  for (T& value : b.values<T>()) value = static_cast<T>(static_cast<A>(random.number()));
  const auto check = [&](auto&& run, auto&& expected) {
    const Target left(context, {count}, kDtype, std::byte{0xFF}, shift),
        right(context, {count}, kDtype, std::byte{0xFF}, shift),
        y(context, {count}, kDtype, std::byte{0xFF}, shift);
    context.copy(context.to_device(a), left.span());
    context.copy(context.to_device(b), right.span());
    run(left.span(), right.span(), y.span());
    Tensor want = Tensor::empty({count}, kDtype);
    for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i)
      want.values<T>()[i] = static_cast<T>(
          expected(static_cast<A>(a.values<T>()[i]), static_cast<A>(b.values<T>()[i])));
    CHECK(y.bytes() == bytes_of(want));
    CHECK(y.guards_intact());
    run(left.span(), right.span(), left.span());  // in place
    CHECK(left.bytes() == bytes_of(want));
  };
  const A factor = static_cast<A>(-1.7);
  check([&](const TensorSpan& l, const TensorSpan& r,
            const TensorSpan& y) { add_scaled(context, l, -1.7, r, y); },
        [&](A l, A r) { return l + factor * r; });
  check([&](const TensorSpan& l, const TensorSpan& r,
            const TensorSpan& y) { multiply(context, l, r, y); },
        [](A l, A r) { return l * r; });
  check([&](const TensorSpan& l, const TensorSpan&,
            const TensorSpan& y) { scale(context, l, -1.7, y); },
        [&](A l, A) { return factor * l; });
}

TEST_CASE("sums and products of elements are rounded as their definition") {
  Context context;
  for (const std::int64_t count : {0, 1, 3, 16, 1001, 50000})
    for (const bool aligned : {true, false}) {
      if (count > 2000 && !aligned) continue;
      check_arithmetic<float>(context, count, aligned ? 0 : 4);
      check_arithmetic<double>(context, count, aligned ? 0 : 8);
      if (!on_gpu(context)) continue;
      check_arithmetic<Half>(context, count, aligned ? 0 : 2);
      check_arithmetic<BFloat16>(context, count, aligned ? 0 : 2);
    }
  const Tensor a = context.zeros({3}, Dtype::f32), b = context.zeros({4}, Dtype::f32);
  Tensor y = context.zeros({3}, Dtype::f32);
  check_throws([&] { add_scaled(context, a, 1.0, b, y); }, {"second", "[4]", "[3]"});
}

TEST_CASE("tensors are filled with one value") {
  Context context;
  for (const Dtype dtype : kAllDtypes)
    for (const std::int64_t count : {0, 1, 2, 3, 8, 17, 1000})
      for (const std::size_t shift : {std::size_t{0}, size_of(dtype)}) {
        CAPTURE(dtype, count, shift);
        const Target target(context, {count}, dtype, std::byte{0xFF}, shift);
        fill(context, -3.0, target.span());
        Bytes expected;
        for (std::int64_t i = 0; i < count; ++i) {
          const Bytes value = element_bytes(-3.0, dtype);
          expected.insert(expected.end(), value.begin(), value.end());
        }
        CHECK(target.bytes() == expected);
        CHECK(target.guards_intact());
      }
  const Target integers(context, {2}, Dtype::i32);
  check_throws([&] { fill(context, 0.5, integers.span()); }, {"value", "0.5", "i32"});
}

}  // namespace
}  // namespace packrnn::kernels

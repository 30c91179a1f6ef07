#include "packrnn/kernels/cuda/gradient_product.hpp"

#include <cmath>
#include <vector>

#include "packrnn/kernels/recurrent.hpp"
#include "tests/catch.hpp"
#include "tests/kernels/numbers.hpp"
#include "tests/reference/tolerance.hpp"
#include "tests/shapes.hpp"

namespace packrnn::kernels {
namespace {

using namespace packrnn::tests;

constexpr std::int64_t kGap = 3;  // elements between rows

// A target of `initial`, a tensor of the host.
void start(Context& context, const Target& target, const Tensor& initial) {
  context.copy(context.to_device(initial), target.span());
}

// Each of the roundings of a sum of K products of at most 1 is below one unit of sqrt(K).
double allowed_error(double unit, std::int64_t terms) {
  const double root = std::sqrt(static_cast<double>(terms));
  return unit * (root + 2) * root * 2;
}

TEST_CASE("gradient products on a GPU are those of their definition") {
  struct Case {
    std::int64_t rows, m, n;
  };
  // One part and several, whole tiles and not, small tiles and large.
  const auto shape = GENERATE(Case{1, 1, 1}, Case{5, 70, 3}, Case{130, 1, 65}, Case{300, 33, 7},
                              Case{17, 97, 130}, Case{270, 130, 97}, Case{1100, 3, 4});
  const auto dtype = GENERATE(Dtype::f32, Dtype::f64, Dtype::f16, Dtype::bf16);
  const auto math = GENERATE(F32Math::exact, F32Math::tf32x3, F32Math::tf32);
  if (dtype != Dtype::f32 && math != F32Math::exact) return;
  Context context(Device::best(), {.f32_math = math});
  if (!on_gpu(context)) PACKRNN_SKIP("the device under test is the CPU");
  CAPTURE(shape.rows, shape.m, shape.n, dtype, name_of(math));
  const std::int64_t lda = shape.m + kGap, ldb = shape.n + kGap, ld = shape.n + kGap;
  const Tensor a = random_tensor({shape.rows, lda}, dtype, 1, 1.0),
               b = random_tensor({shape.rows, ldb}, dtype, 2, 1.0);
  const Tensor before = random_tensor({shape.m, ld}, cell_dtype(dtype), 3, 1.0);
  const std::vector<double> as = doubles_of(a), bs = doubles_of(b);
  std::vector<double> expected = doubles_of(before);
  for (std::int64_t r = 0; r < shape.rows; ++r)
    for (std::int64_t i = 0; i < shape.m; ++i)
      for (std::int64_t j = 0; j < shape.n; ++j)
        expected[at(i * ld + j)] += as[at(r * lda + i)] * bs[at(r * ldb + j)];

  const Tensor a_there = context.to_device(a), b_there = context.to_device(b);
  Bytes first;
  for (const int run : {1, 2}) {
    const Target sums(context, {shape.m, ld}, cell_dtype(dtype));
    start(context, sums, before);
    {  // what earlier work left in the scratch memory is no number
      Workspace::Scope scope(context.workspace());
      const std::span<std::int32_t> old = scope.take<std::int32_t>(std::int64_t{1} << 18);
      context.copy(context.to_device(Tensor::from<std::int32_t>(
                       std::vector<std::int32_t>(old.size(), -run), {std::ssize(old)})),
                   TensorSpan(old.data(), {std::ssize(old)}, Dtype::i32, context.device()));
    }
    cuda::gradient_product(context, {.dtype = dtype,
                                     .rows = shape.rows,
                                     .m = shape.m,
                                     .n = shape.n,
                                     .a = a_there.view().raw(),
                                     .b = b_there.view().raw(),
                                     .sums = sums.span().raw(),
                                     .lda = lda,
                                     .ldb = ldb,
                                     .ldsums = ld});
    const double unit = dtype == Dtype::f64 ? 0x1p-53 : 0x1p-24;
    // tf32 rounds both factors of each product.
    const double rounded =
        math == F32Math::tf32 ? 2 * 0x1p-11 * static_cast<double>(shape.rows) : 0;
    CHECK(worst(doubles_of(context.to_host(sums.span())), expected) <=
          allowed_error(unit, shape.rows + 1) + rounded);
    CHECK(sums.guards_intact());
    if (run == 1) first = sums.bytes();
    CHECK(sums.bytes() == first);
    // What lies between rows was not touched.
    const Tensor after = context.to_host(sums.span());
    for (std::int64_t i = 0; i < shape.m; ++i)
      CHECK(bytes_of(after.view().rows(i, i + 1).reshape({ld}).rows(shape.n, ld)) ==
            bytes_of(before.view().rows(i, i + 1).reshape({ld}).rows(shape.n, ld)));
  }
}

TEST_CASE("column sums on a GPU are those of their definition") {
  const auto rows = GENERATE(1, 9, 130, 700);
  const auto columns = GENERATE(1, 33, 64);
  const auto dtype = GENERATE(Dtype::f32, Dtype::f64, Dtype::f16, Dtype::bf16);
  Context context;
  if (!on_gpu(context)) PACKRNN_SKIP("the device under test is the CPU");
  CAPTURE(rows, columns, dtype);
  const std::int64_t ld = columns + kGap;
  const Tensor values = random_tensor({rows, ld}, dtype, 1, 1.0);
  const Tensor before = random_tensor({columns}, cell_dtype(dtype), 2, 1.0);
  const std::vector<double> from = doubles_of(values);
  std::vector<double> expected = doubles_of(before);
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t i = 0; i < columns; ++i) expected[at(i)] += from[at(r * ld + i)];
  const Target sums(context, {columns}, cell_dtype(dtype));
  start(context, sums, before);
  const Tensor there = context.to_device(values);
  cuda::column_sums(context, {.dtype = dtype,
                              .rows = rows,
                              .columns = columns,
                              .values = there.view().raw(),
                              .sums = sums.span().raw(),
                              .ld = ld});
  CHECK(worst(doubles_of(context.to_host(sums.span())), expected) <=
        allowed_error(dtype == Dtype::f64 ? 0x1p-53 : 0x1p-24, rows + 1));
  CHECK(sums.guards_intact());
}

TEST_CASE("sums over no rows are left as they are") {
  Context context;
  if (!on_gpu(context)) PACKRNN_SKIP("the device under test is the CPU");
  const Target sums(context, {4}, Dtype::f32);
  cuda::gradient_product(context, {.rows = 0, .m = 2, .n = 2, .sums = sums.span().raw()});
  cuda::gradient_product(context, {.rows = 2, .m = 0, .n = 2, .sums = sums.span().raw()});
  cuda::column_sums(context, {.rows = 0, .columns = 4, .sums = sums.span().raw()});
  for (const std::byte b : sums.bytes()) CHECK(b == std::byte{0xFF});
}

}  // namespace
}  // namespace packrnn::kernels

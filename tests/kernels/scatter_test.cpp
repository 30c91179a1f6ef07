#include "packrnn/kernels/scatter.hpp"

#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "tests/catch.hpp"
#include "tests/kernels/numbers.hpp"
#include "tests/packing_cases.hpp"

namespace packrnn::kernels {
namespace {

using namespace packrnn::tests;

Tensor as_indices(const Ints& values, Dtype dtype) {
  if (dtype == Dtype::i64) return Tensor::from(values, {std::ssize(values)});
  return Tensor::from(std::vector<std::int32_t>(values.begin(), values.end()),
                      {std::ssize(values)});
}

/// The definition: per index and column, parts of positions in double, then one sum in the target's
/// own arithmetic.
template <class Target>
Tensor naive(const Tensor& before, const Tensor& rows, const Ints& indices, std::int64_t skip) {
  const std::int64_t count = before.size(0), width = before.size(1);
  const Tensor wide = convert(rows, Dtype::f64);
  std::vector<double> sum(at(count * width)), part(at(count * width));
  Ints uses(at(count));
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const std::int64_t r = indices[i];
    if (r == skip) continue;
    for (std::int64_t c = 0; c < width; ++c) {
      double& own = part[at(r * width + c)];
      if (uses[at(r)] % kScatterPart == 0) {
        sum[at(r * width + c)] += own;
        own = 0;
      }
      own += wide.values<double>()[i * at(width) + at(c)];
    }
    ++uses[at(r)];
  }
  Tensor result = before.clone();
  using Sum = std::conditional_t<std::is_same_v<Target, double>, double, float>;
  const auto to = result.values<Target>();
  for (std::size_t i = 0; i < sum.size(); ++i)
    if (uses[i / at(width)] > 0)
      to[i] = static_cast<Target>(static_cast<Sum>(to[i]) + static_cast<Sum>(sum[i] + part[i]));
  return result;
}

Tensor naive(const Tensor& before, const Tensor& rows, const Ints& indices, std::int64_t skip) {
  switch (before.dtype()) {
    case Dtype::f64:
      return naive<double>(before, rows, indices, skip);
    case Dtype::f16:
      return naive<Half>(before, rows, indices, skip);
    case Dtype::bf16:
      return naive<BFloat16>(before, rows, indices, skip);
    default:
      return naive<float>(before, rows, indices, skip);
  }
}

struct Case {
  std::int64_t total, count, width;
};

void check_sums(Context& context, const Case& shape, Dtype dtype, Dtype target_dtype,
                Dtype index_dtype, std::int64_t skip) {
  CAPTURE(shape.total, shape.count, shape.width, dtype, target_dtype, index_dtype, skip);
  Random random(7);
  Ints indices(at(shape.total));
  for (auto& index : indices) {
    // One index has half of them, a few are used some times, others rarely.
    const std::int64_t kind = random.below(4);
    index = kind < 2
                ? shape.count / 2
                : random.below(kind == 2 ? std::min<std::int64_t>(shape.count, 3) : shape.count);
    if (random.below(9) == 0) index = skip;
  }
  Tensor rows = random_tensor({shape.total, shape.width}, dtype, 1, 1.0);
  for (std::int64_t i = 0; i < shape.total; ++i)  // what is left out is not read
    if (indices[at(i)] == skip)
      std::memset(rows.span().rows(i, i + 1).raw(), 0xFF, rows.view().rows(i, i + 1).bytes());
  const Tensor before = random_tensor({shape.count, shape.width}, target_dtype, 2, 1.0);
  const Target target(context, before.shape(), target_dtype);
  context.copy(context.to_device(before), target.span());
  scatter_add_rows(context, context.to_device(rows),
                   context.to_device(as_indices(indices, index_dtype)), target, skip);
  CHECK(difference(target.bytes(), bytes_of(naive(before, rows, indices, skip))) == "");
  CHECK(target.guards_intact());
}

TEST_CASE("sums by index are those of their definition, bit for bit") {
  const auto shape = GENERATE(Case{0, 3, 2}, Case{1, 1, 1}, Case{5, 3, 33}, Case{700, 1, 5},
                              Case{1500, 300, 3}, Case{2500, 70000, 1}, Case{40, 4, 0});
  const auto dtype = GENERATE(Dtype::f32, Dtype::f64, Dtype::f16, Dtype::bf16);
  Context context;
  if (!on_gpu(context) && size_of(dtype) == 2) return;
  check_sums(context, shape, dtype, dtype, Dtype::i64, -1);
  check_sums(context, shape, dtype, dtype, Dtype::i32, 0);
  if (size_of(dtype) == 2) check_sums(context, shape, dtype, Dtype::f32, Dtype::i64, 0);
}

TEST_CASE("sums by index do not depend on threads, also of an index used very often") {
  for (const int threads : {1, 2, 3}) {
    Context context(Device::best(), {.threads = threads});
    if (on_gpu(context) && threads > 1) continue;
    check_sums(context, {12000, 50, 70}, Dtype::f32, Dtype::f32, Dtype::i64, -1);
  }
}

TEST_CASE("an index out of range is named, and what else there is stays usable") {
  Context context;
  const Tensor rows = context.to_device(random_tensor({4, 2}, Dtype::f32, 1, 1.0));
  const Tensor before = random_tensor({3, 2}, Dtype::f32, 2, 1.0);
  for (const std::int64_t bad : {std::int64_t{3}, std::int64_t{-2}, std::int64_t{1} << 40}) {
    const Target target(context, {3, 2}, Dtype::f32);
    context.copy(context.to_device(before), target.span());
    check_throws(
        [&] {
          scatter_add_rows(context, rows,
                           context.to_device(as_indices({1, -1, bad, 1}, Dtype::i64)), target);
          context.synchronize();
        },
        {std::to_string(bad).c_str(), on_gpu(context) ? "less than 3" : "0 to 2"});
    if (on_gpu(context)) {
      const Tensor expected =
          naive(before, context.to_host(rows), {1, -1, -1, 1}, -1);  // the row is left out
      CHECK(target.bytes() == bytes_of(expected));
    } else {
      CHECK(target.bytes() == bytes_of(before));
    }
  }
}

TEST_CASE("sums by index refuse what does not fit") {
  Context context;
  const Tensor rows = context.zeros({4, 2}, Dtype::f32);
  const Tensor indices = context.to_device(as_indices({0, 0, 0, 0}, Dtype::i64));
  Tensor target = context.zeros({3, 2}, Dtype::f32), wide = context.zeros({3, 2}, Dtype::f64),
         other = context.zeros({3, 5}, Dtype::f32);
  check_throws([&] { scatter_add_rows(context, rows, indices, other); },
               {"rows", "[4, 2]", "[4, 5]"});
  check_throws([&] { scatter_add_rows(context, rows, indices, wide); }, {"rows", "f32", "f64"});
  check_throws([&] { scatter_add_rows(context, rows, rows, target); }, {"rows"});
  check_throws([&] { scatter_add_rows(context, {}, indices, target); }, {"rows are not defined"});
}

}  // namespace
}  // namespace packrnn::kernels

#include "packrnn/kernels/reduce.hpp"

#include <cmath>
#include <limits>
#include <type_traits>

#include "tests/catch.hpp"
#include "tests/kernels/device_tensors.hpp"
#include "tests/packing_cases.hpp"

namespace packrnn::kernels {
namespace {

using namespace packrnn::tests;

template <class T>
using Accumulator = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <class T>
Accumulator<T> number(T value) {
  return static_cast<Accumulator<T>>(value);
}

// One sequence and one feature at a time, in time order.
template <class T>
std::vector<T> naive_reduce(Reduction reduction, std::span<const T> packed, const Ints& lengths,
                            std::int64_t features, double empty_value) {
  using A = Accumulator<T>;
  std::vector<T> result;
  const std::vector<Cell> rows = naive_rows(lengths);
  for (std::size_t n = 0; n < lengths.size(); ++n) {
    for (std::int64_t f = 0; f < features; ++f) {
      A value = static_cast<A>(empty_value);
      for (std::size_t r = 0; r < rows.size(); ++r) {
        if (rows[r].sequence != static_cast<std::int64_t>(n)) continue;
        const A x =
            number(packed[r * static_cast<std::size_t>(features) + static_cast<std::size_t>(f)]);
        if (rows[r].step == 0)
          value = x;
        else if (reduction != Reduction::max)
          value = value + x;
        else if (std::isnan(x) || (!std::isnan(value) && x > value))
          value = x;
      }
      if (reduction == Reduction::mean && lengths[n] > 0)
        value = value / static_cast<A>(lengths[n]);
      result.push_back(static_cast<T>(value));
    }
  }
  return result;
}

template <class T>
Tensor random_numbers(const Shape& shape, std::uint64_t seed) {
  Tensor tensor = Tensor::empty(shape, kDtypeOf<T>);
  Random random(seed);
  for (T& value : tensor.values<T>())
    value = static_cast<T>(static_cast<Accumulator<T>>(4.0 * random.number()));
  return tensor;
}

constexpr Reduction kAll[] = {Reduction::sum, Reduction::mean, Reduction::max};

TEMPLATE_TEST_CASE("reductions equal a loop over each sequence, bit for bit", "", float, double,
                   Half, BFloat16) {
  using T = TestType;
  Context context;
  std::uint64_t seed = 0;
  for (const Ints& lengths : random_length_vectors()) {
    const Shape row = kRowShapes[++seed % kRowShapes.size()];
    const auto layout = PackedLayout::make(lengths);
    const Tensor packed = random_numbers<T>(row.prepend(layout->total()), seed);
    for (const Reduction reduction : kAll) {
      CAPTURE(lengths, row.str(), static_cast<int>(reduction));
      const Target target(context, row.prepend(layout->batch()), kDtypeOf<T>);
      reduce_sequences(context, reduction, context.to_device(packed), *layout, -7.0, target);
      const auto expected =
          naive_reduce<T>(reduction, packed.values<T>(), lengths, row.elements(), -7.0);
      REQUIRE(target.bytes() ==
              bytes_of(TensorView(expected.data(), target.span().shape(), kDtypeOf<T>)));
      REQUIRE(target.guards_intact());
    }
  }
}

TEMPLATE_TEST_CASE("reductions have the same bits with 1, 2 and 5 threads and alone", "", float,
                   double, Half, BFloat16) {
  using T = TestType;
  for (const std::int64_t features : {1, 5, 64, 3000}) {
    Random random(static_cast<std::uint64_t>(features));
    Ints lengths;
    std::int64_t total = 0;
    while (total * features < (on_gpu(Context()) ? 60000 : 300000)) {
      lengths.push_back(random.below(features == 3000 ? 40 : 200));
      total += lengths.back();
    }
    const auto layout = PackedLayout::make(lengths);
    const Tensor packed = random_numbers<T>({total, features}, 8);
    for (const Reduction reduction : kAll) {
      CAPTURE(features, static_cast<int>(reduction));
      Bytes first;
      for (const int threads : {1, 2, 5}) {
        Context context(Device::best(), {.threads = threads});
        if (on_gpu(context) && threads > 1) continue;
        const Target target(context, {layout->batch(), features}, kDtypeOf<T>);
        reduce_sequences(context, reduction, context.to_device(packed), *layout, 0.0, target);
        if (threads == 1) first = target.bytes();
        CHECK(difference(target.bytes(), first) == "");
      }
      // A few sequences by themselves.
      Context context;
      for (std::size_t n = 0; n < lengths.size(); n += lengths.size() / 3 + 1) {
        const auto alone = PackedLayout::make({lengths[n]});
        Tensor own = Tensor::empty({lengths[n], features}, kDtypeOf<T>);
        for (std::int64_t t = 0; t < lengths[n]; ++t) {
          const std::int64_t r = layout->row(static_cast<std::int64_t>(n), t);
          std::ranges::copy(packed.view().rows(r, r + 1).values<T>(),
                            own.span().rows(t, t + 1).values<T>().begin());
        }
        const Target target(context, {1, features}, kDtypeOf<T>);
        reduce_sequences(context, reduction, context.to_device(own), *alone, 0.0, target);
        const auto size = static_cast<std::ptrdiff_t>(target.bytes().size());
        const auto at = first.begin() + static_cast<std::ptrdiff_t>(n) * size;
        CHECK(target.bytes() == Bytes(at, at + size));
      }
    }
  }
}

TEMPLATE_TEST_CASE("gradients of reductions equal a loop over each sequence, bit for bit", "",
                   float, double, Half, BFloat16) {
  using T = TestType;
  using A = Accumulator<T>;
  Context context;
  if (!on_gpu(context) && sizeof(T) == 2) return;
  std::uint64_t seed = 0;
  for (const Ints& lengths : random_length_vectors(80)) {
    const Shape row = kRowShapes[++seed % kRowShapes.size()];
    const std::int64_t features = row.elements();
    const auto layout = PackedLayout::make(lengths);
    Tensor packed = random_numbers<T>(row.prepend(layout->total()), seed);
    for (T& value : packed.values<T>())  // ties, and a few that are no number
      value = static_cast<T>(std::round(number(value)));
    if (seed % 4 == 0 && packed.elements() > 0)
      packed.values<T>()[packed.values<T>().size() / 2] = static_cast<T>(static_cast<A>(NAN));
    const Tensor gradient = random_numbers<T>(row.prepend(layout->batch()), seed + 1);
    for (const Reduction reduction : kAll) {
      CAPTURE(lengths, row.str(), static_cast<int>(reduction));
      Tensor expected = Tensor::zeros(packed.shape(), packed.dtype());
      const auto value = [&](std::int64_t n, std::int64_t t, std::int64_t f) {
        return static_cast<std::size_t>(layout->row(n, t) * features + f);
      };
      for (std::int64_t n = 0; n < layout->batch(); ++n)
        for (std::int64_t f = 0; f < features; ++f) {
          const std::int64_t length = lengths[static_cast<std::size_t>(n)];
          const T from = gradient.values<T>()[static_cast<std::size_t>(n * features + f)];
          std::int64_t best = 0;
          for (std::int64_t t = 0; t < length; ++t) {
            const A here = number(packed.values<T>()[value(n, t, f)]);
            const A most = number(packed.values<T>()[value(n, best, f)]);
            if (!std::isnan(most) && (std::isnan(here) || here > most)) best = t;
            if (reduction == Reduction::sum) expected.values<T>()[value(n, t, f)] = from;
            if (reduction == Reduction::mean)
              expected.values<T>()[value(n, t, f)] =
                  static_cast<T>(number(from) / static_cast<A>(length));
          }
          if (reduction == Reduction::max && length > 0)
            expected.values<T>()[value(n, best, f)] = from;
        }
      const Target target(context, packed.shape(), packed.dtype());
      reduce_sequences_backward(context, reduction,
                                reduction == Reduction::max ? context.to_device(packed) : Tensor(),
                                *layout, context.to_device(gradient), target);
      REQUIRE(target.bytes() == bytes_of(expected));
      REQUIRE(target.guards_intact());
    }
  }
}

TEST_CASE("known sums, means and maxima") {
  Context context;
  const auto layout = PackedLayout::make({1, 0, 3});
  // Packed: sequence 2 first.  c0 a0 | c1 | c2
  const Tensor packed =
      context.to_device(Tensor::from<float>({1, 10, 4, 40, -2, 20, 6, 30}, {4, 2}));
  const auto run = [&](Reduction reduction, double empty) {
    Tensor on_device = context.empty({3, 2}, Dtype::f32);
    reduce_sequences(context, reduction, packed, *layout, empty, on_device);
    const Tensor target = context.to_host(on_device);
    return std::vector<float>(target.values<float>().begin(), target.values<float>().end());
  };
  CHECK(run(Reduction::sum, 0.0) == std::vector<float>{4, 40, 0, 0, 5, 60});
  CHECK(run(Reduction::mean, 0.5) == std::vector<float>{4, 40, 0.5F, 0.5F, 5.0F / 3, 20});
  CHECK(run(Reduction::max, -1.0) == std::vector<float>{4, 40, -1, -1, 6, 30});
  const auto infinite = run(Reduction::max, -std::numeric_limits<double>::infinity());
  CHECK(infinite[2] == -std::numeric_limits<float>::infinity());
}

TEST_CASE("B43: NaN stays within its own feature of its own sequence") {
  Context context;
  const Ints lengths = {9, 9, 4, 1};
  const auto layout = PackedLayout::make(lengths);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const Reduction reduction : kAll) {
    for (const std::int64_t step : {0, 2, 3}) {
      Tensor packed = random_numbers<float>({layout->total(), 3}, 6);
      const auto run = [&] {
        Tensor target = context.empty({4, 3}, Dtype::f32);
        reduce_sequences(context, reduction, context.to_device(packed), *layout, 0.0, target);
        return context.to_host(target);
      };
      const Tensor clean = run();
      packed.values<float>()[static_cast<std::size_t>(layout->row(2, step) * 3 + 1)] = nan;
      const Tensor dirty = run();
      for (std::size_t i = 0; i < 12; ++i) {
        CAPTURE(i, step, static_cast<int>(reduction));
        if (i == 2 * 3 + 1)
          CHECK(std::isnan(dirty.values<float>()[i]));
        else
          CHECK(dirty.values<float>()[i] == clean.values<float>()[i]);
      }
    }
  }
}

TEST_CASE("16-bit data are summed in float and rounded once") {
  Context context;
  const auto layout = PackedLayout::make({4097});
  Tensor packed = Tensor::empty({4097}, Dtype::bf16);
  for (BFloat16& value : packed.values<BFloat16>()) value = BFloat16(1.0F);
  const auto run = [&](Reduction reduction) {
    Tensor target = context.empty({1}, Dtype::bf16);
    reduce_sequences(context, reduction, context.to_device(packed), *layout, 0.0, target);
    return static_cast<float>(context.to_host(target).values<BFloat16>()[0]);
  };
  // Summed in bfloat16 it would stop at 256.
  CHECK(run(Reduction::sum) == 4096.0F);
  CHECK(run(Reduction::mean) == 1.0F);
}

TEST_CASE("reductions refuse what does not fit") {
  Context context;
  const auto layout = PackedLayout::make({2, 1});
  const Tensor packed = context.zeros({3, 4}, Dtype::f32);
  Tensor target = context.zeros({2, 4}, Dtype::f32);
  const auto run = [&](const TensorView& from, const TensorSpan& to) {
    return [&context, &layout, from, to] {
      reduce_sequences(context, Reduction::sum, from, *layout, 0.0, to);
    };
  };
  const Tensor integers = context.zeros({3, 4}, Dtype::i32);
  const Tensor rows = context.zeros({4, 4}, Dtype::f32);
  Tensor batch = context.zeros({3, 4}, Dtype::f32), wide = context.zeros({2, 4}, Dtype::f64);
  check_throws(run(integers, target), {"packed", "i32", "floating"});
  check_throws(run(rows, target), {"packed", "[4, 4]", "[3, 4]"});
  check_throws(run(packed, batch), {"target", "[3, 4]", "[2, 4]"});
  check_throws(run(packed, wide), {"target", "f64", "f32"});
  check_throws(run(TensorView{}, target), {"packed", "not defined"});
}

}  // namespace
}  // namespace packrnn::kernels

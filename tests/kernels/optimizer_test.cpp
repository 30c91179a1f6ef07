// Steps against the same arithmetic written down here, bit for bit and so on every device alike;
// the norm against a plain sum.
#include "packrnn/kernels/optimizer.hpp"

#include <array>

#include "tests/kernels/numbers.hpp"
#include "tests/shapes.hpp"

namespace packrnn::kernels {
namespace {

using namespace packrnn::tests;

// More than one round of a grid of the simulated device, and sizes around nothing.
std::vector<std::int64_t> sizes(const Context& context) {
  return {0, 1, 255, on_gpu(context) ? full_or_small<std::int64_t>(20000, 700) : 100'001};
}

template <class T>
Tensor numbers(std::int64_t count, std::uint64_t seed) {
  return random_tensor({count}, kDtypeOf<T>, seed, 2.0);
}

// A target with these values.
Target there(Context& context, const Tensor& values) {
  Target target(context, values.shape(), values.dtype());
  context.copy(context.to_device(values), target.span());
  return target;
}

// CHECKs bytes of `got`, on the device, and what stands around them.
void check_bits(const Target& got, const Tensor& expected) {
  CHECK(difference(got.bytes(), bytes_of(expected)) == "");
  CHECK(got.guards_intact());
}

constexpr std::array kCopies = {Dtype::f32, Dtype::f16, Dtype::bf16};  // f32: none

// The values that a step starts from.
template <class T>
Tensor led(const Tensor& masters, const Tensor& copy) {
  Tensor result = masters.clone();
  if (!copy.defined()) return result;
  const Tensor wide = convert(copy, kDtypeOf<T>), rounded = convert(masters, copy.dtype());
  for (std::int64_t i = 0; i < masters.elements(); ++i) {
    const bool same =
        bytes_of(copy.view().rows(i, i + 1)) == bytes_of(rounded.view().rows(i, i + 1));
    if (!same)
      result.values<T>()[static_cast<std::size_t>(i)] =
          wide.values<T>()[static_cast<std::size_t>(i)];
  }
  return result;
}

Tensor copy_of_masters(const Tensor& masters, Dtype dtype) {
  if (size_of(dtype) != 2) return {};
  Tensor copy = convert(masters, dtype);
  // Somebody has assigned two of them.
  for (const std::int64_t i : {std::int64_t{0}, masters.elements() / 2})
    if (i < masters.elements()) convert_into(Tensor::from({1.75}, {1}), copy.span().rows(i, i + 1));
  return copy;
}

TEMPLATE_TEST_CASE("SGD is the arithmetic of its equations", "", float, double) {
  using T = TestType;
  Context context;
  std::uint64_t seed = 0;
  for (const std::int64_t count : sizes(context))
    for (const Dtype copy_dtype : kCopies)
      for (const double momentum : {0.0, 0.75})
        for (const bool nesterov : {false, true})
          for (const bool decoupled : {false, true}) {
            if (nesterov && momentum == 0.0) continue;
            CAPTURE(count, copy_dtype, momentum, nesterov, decoupled);
            const SgdStep step{0.3, momentum, nesterov, {0.1, decoupled}};
            const Tensor values = numbers<T>(count, ++seed),
                         gradients = numbers<T>(count, 100 + seed),
                         velocity = numbers<T>(count, 200 + seed),
                         copy = copy_of_masters(values, copy_dtype);
            Tensor x = led<T>(values, copy), b = velocity.clone();
            const T rate = static_cast<T>(0.3), m = static_cast<T>(momentum);
            for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
              T& value = x.template values<T>()[i];
              const T g =
                  gradients.values<T>()[i] + (decoupled ? T{0} : static_cast<T>(0.1)) * value;
              T direction = g;
              if (momentum != 0.0) {
                T& v = b.template values<T>()[i];
                v = m * v + g;
                direction = nesterov ? g + m * v : v;
              }
              value = value * (decoupled ? static_cast<T>(1 - 0.3 * 0.1) : T{1}) - rate * direction;
            }
            const Target values_there = there(context, values),
                         velocity_there = there(context, velocity);
            const Target copy_there =
                there(context, copy.defined() ? copy.clone() : values.clone());
            sgd(context, step, values_there, context.to_device(gradients),
                momentum != 0.0 ? velocity_there.span() : TensorSpan{},
                copy.defined() ? copy_there.span() : TensorSpan{});
            check_bits(values_there, x);
            check_bits(velocity_there, b);
            check_bits(copy_there, copy.defined() ? convert(x, copy_dtype) : values.clone());
          }
}

TEMPLATE_TEST_CASE("Adam is the arithmetic of its equations", "", float, double) {
  using T = TestType;
  Context context;
  std::uint64_t seed = 0;
  for (const std::int64_t count : sizes(context))
    for (const Dtype copy_dtype : kCopies)
      for (const std::int64_t number : {1, 12})
        for (const bool decoupled : {false, true}) {
          CAPTURE(count, copy_dtype, number, decoupled);
          const AdamStep step{0.3, 0.9, 0.99, 1e-6, {0.1, decoupled}, number};
          const Tensor values = numbers<T>(count, ++seed),
                       gradients = numbers<T>(count, 100 + seed),
                       first = numbers<T>(count, 200 + seed),
                       copy = copy_of_masters(values, copy_dtype);
          Tensor second = numbers<T>(count, 300 + seed);
          for (T& v : second.template values<T>()) v = std::abs(v);
          Tensor x = led<T>(values, copy), m = first.clone(), v = second.clone();
          const auto n = static_cast<double>(number);
          const T rate = static_cast<T>(0.3 / (1 - std::pow(0.9, n))),
                  root = static_cast<T>(std::sqrt(1 - std::pow(0.99, n)));
          for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
            T& value = x.template values<T>()[i];
            T &mean = m.template values<T>()[i], &square = v.template values<T>()[i];
            const T g = gradients.values<T>()[i] + (decoupled ? T{0} : static_cast<T>(0.1)) * value;
            mean = static_cast<T>(0.9) * mean + static_cast<T>(1 - 0.9) * g;
            square = static_cast<T>(0.99) * square + static_cast<T>(1 - 0.99) * (g * g);
            value = value * (decoupled ? static_cast<T>(1 - 0.3 * 0.1) : T{1}) -
                    rate * (mean / (std::sqrt(square) / root + static_cast<T>(1e-6)));
          }
          const Target values_there = there(context, values), first_there = there(context, first),
                       second_there = there(context, second);
          const Target copy_there = there(context, copy.defined() ? copy.clone() : values.clone());
          adam(context, step, values_there, context.to_device(gradients), first_there, second_there,
               copy.defined() ? copy_there.span() : TensorSpan{});
          check_bits(values_there, x);
          check_bits(first_there, m);
          check_bits(second_there, v);
          check_bits(copy_there, copy.defined() ? convert(x, copy_dtype) : values.clone());
        }
}

TEST_CASE("a thousand small steps of a master move a parameter that could take none of them") {
  Context context;
  const Tensor ones = Tensor::from(Doubles(10, 1.0), {10});
  const Target master = there(context, convert(ones, Dtype::f32)),
               half = there(context, convert(ones, Dtype::bf16));
  const Tensor gradient = context.to_device(convert(ones, Dtype::f32));
  for (int i = 0; i < 1024; ++i)
    sgd(context, {.learning_rate = 0x1p-12}, master, gradient, {}, half);  // 1 - 2^-12 is 1 in bf16
  CHECK(doubles_on(context, half.span()) == Doubles(10, 0.75));
}

TEST_CASE("the squared norm is the sum of squares in double") {
  Context context;
  for (const Dtype dtype : computable_dtypes(context))
    for (const std::int64_t count :
         {std::int64_t{0}, std::int64_t{1}, std::int64_t{9}, std::int64_t{4095}, std::int64_t{4097},
          full_or_small<std::int64_t>(270'000, 9000)}) {
      CAPTURE(dtype, count);
      const Tensor values = random_tensor({count}, dtype, 3),
                   values_there = context.to_device(values);
      double expected = 0;
      for (const double value : doubles_of(values)) expected += value * value;
      const Target result(context, {1}, Dtype::f64), again(context, {}, Dtype::f64);
      squared_norm(context, values_there, result);
      squared_norm(context, values_there, again);
      CHECK(far_off(doubles_on(context, result.span()), {expected},
                    within(Dtype::f64, static_cast<double>(count), 0)) == "");
      CHECK(again.bytes() == result.bytes());
      CHECK(result.guards_intact());
    }
  // What a float's square does not hold, and what is not finite.
  const Target result(context, {1}, Dtype::f64);
  squared_norm(context, context.to_device(tensor_of({1e30, 1e30}, {2}, Dtype::f32)), result);
  CHECK(std::isfinite(doubles_on(context, result.span())[0]));
  for (const double bad : {kNaN, -kInfinity}) {
    squared_norm(context, context.to_device(tensor_of({1, bad, 1}, {3}, Dtype::f32)), result);
    CHECK_FALSE(std::isfinite(doubles_on(context, result.span())[0]));
  }
}

TEST_CASE("scaling and clamping of every dtype round once") {
  Context context;
  for (const Dtype dtype : computable_dtypes(context))
    for (const std::int64_t count : sizes(context)) {
      CAPTURE(dtype, count);
      const Tensor values = random_tensor({count}, dtype, 3);
      Doubles scaled, clamped;
      for (const double value : doubles_of(values)) {
        scaled.push_back(value * 0.3);
        clamped.push_back(std::clamp(value, -1.25, 1.25));
      }
      const Target x = there(context, values), y = there(context, values);
      scale(context, 0.3, x);
      clamp(context, 1.25, y);
      check_bits(x, tensor_of(scaled, {count}, dtype));
      check_bits(y, tensor_of(clamped, {count}, dtype));
    }
  const Target x = there(context, tensor_of({kNaN, kInfinity, -kInfinity, 0}, {4}, Dtype::f32));
  clamp(context, 0.0, x);
  const Doubles got = doubles_on(context, x.span());
  CHECK(std::isnan(got[0]));
  CHECK((got[1] == 0 && got[2] == 0 && got[3] == 0));
}

TEST_CASE("arguments of optimizers that do not fit are refused") {
  Context context;
  Tensor values = context.zeros({3}, Dtype::f32), wide = context.zeros({3}, Dtype::f64),
         four = context.zeros({4}, Dtype::f32), half = context.zeros({3}, Dtype::f16),
         integers = context.zeros({3}, Dtype::i32);
  check_throws([&] { sgd(context, {}, values, wide, {}); }, {"gradients", "f64", "f32"});
  check_throws([&] { sgd(context, {.momentum = 0.5}, values, values, {}); }, {"velocity"});
  check_throws([&] { sgd(context, {}, half, half, {}); }, {"values", "f16", "rounded"});
  check_throws([&] { sgd(context, {}, values, four, {}); }, {"gradients", "[4]", "[3]"});
  check_throws([&] { sgd(context, {}, values, wide.span(), {}, values); }, {"rounded is f32"});
  check_throws([&] { sgd(context, {}, four, four, {}, half); }, {"rounded", "[3]", "[4]"});
  check_throws([&] { sgd(context, {}, {}, four, {}); }, {"values are not defined"});
  check_throws([&] { adam(context, {}, values, values, values, four); }, {"second", "[4]"});
  check_throws([&] { adam(context, {.number = 0}, values, values, values, values); }, {"number 0"});
  check_throws([&] { squared_norm(context, values, values); }, {"result", "3 elements"});
  check_throws([&] { squared_norm(context, values, four.span().rows(0, 1)); }, {"result", "f32"});
  check_throws([&] { clamp(context, -1.0, values); }, {"bound is -1"});
  check_throws<Unsupported>([&] { scale(context, 1.0, integers); }, {"i32"});
  if (!on_gpu(context)) return;
  Tensor here = Tensor::zeros({3}, Dtype::f32);
  check_throws([&] { sgd(context, {}, here, here, {}); }, {"values", "cpu"});
}

}  // namespace
}  // namespace packrnn::kernels

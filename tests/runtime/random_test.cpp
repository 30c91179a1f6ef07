#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <packrnn/runtime/error.hpp>
#include <packrnn/runtime/random.hpp>
#include <set>

#include "tests/catch.hpp"

namespace packrnn {
namespace {

using Catch::Contains;

}  // namespace

TEST_CASE("Philox4x32-10 gives the published known answers") {
  CHECK(philox4x32_10({0, 0, 0, 0}, {0, 0}) ==
        PhiloxCounter{0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8});
  constexpr std::uint32_t kOnes = 0xFFFFFFFF;
  CHECK(philox4x32_10({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}) ==
        PhiloxCounter{0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD});
  CHECK(philox4x32_10({0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344}, {0xA4093822, 0x299F31D0}) ==
        PhiloxCounter{0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1});
}

TEST_CASE("uniform01 covers [0, 1) and never reaches 1") {
  CHECK(uniform01(0) == 0.0F);
  CHECK(uniform01(0x80000000) == 0.5F);
  CHECK(uniform01(0xFFFFFFFF) == 1.0F - 0x1p-24F);
}

TEST_CASE("a generator counts its draws and repeats after reseed") {
  Generator generator(5);
  CHECK(generator.seed() == 5);
  CHECK(generator.draw() == 0);
  CHECK(generator.draw() == 1);
  CHECK(generator.position() == 2);
  generator.reseed(6, 40);
  CHECK(generator.seed() == 6);
  CHECK(generator.draw() == 40);
}

TEST_CASE("fill_uniform: an element depends on seed, draw and place only") {
  for (const Dtype dtype : {Dtype::f32, Dtype::f64, Dtype::bf16}) {
    CAPTURE(name_of(dtype));
    Tensor longer = Tensor::empty({1001}, dtype);
    Tensor shorter = Tensor::empty({7, 11}, dtype);
    Tensor second = Tensor::empty({1001}, dtype);
    Generator a(1234567890123);
    Generator b(1234567890123);
    fill_uniform(a, longer, -0.5, 0.5);
    fill_uniform(b, shorter, -0.5, 0.5);
    fill_uniform(b, second, -0.5, 0.5);
    CHECK(a.position() == 1);
    const Tensor x = convert(longer, Dtype::f64);
    const Tensor y = convert(shorter, Dtype::f64);
    const Tensor z = convert(second, Dtype::f64);
    const auto first = x.values<double>();
    CHECK(std::equal(y.values<double>().begin(), y.values<double>().end(), first.begin()));
    int equal = 0;
    for (std::size_t i = 0; i < first.size(); ++i) equal += first[i] == z.values<double>()[i];
    CHECK(equal < 20);  // bf16 has few values; another draw is another stream all the same
    Generator other(1234567890124);
    fill_uniform(other, second, -0.5, 0.5);
    const Tensor w = convert(second, Dtype::f64);
    CHECK_FALSE(std::equal(first.begin(), first.end(), w.values<double>().begin()));
  }
}

TEST_CASE("fill_uniform stays within its bounds and is uniform") {
  for (const Dtype dtype : {Dtype::f32, Dtype::f64}) {
    Tensor tensor = Tensor::empty({100000}, dtype);
    Generator generator(7);
    fill_uniform(generator, tensor, 2.0, 6.0);
    const Tensor copy = convert(tensor, Dtype::f64);
    double sum = 0;
    double squares = 0;
    for (const double x : copy.values<double>()) {
      if (!(x >= 2.0 && x < 6.0)) FAIL("out of bounds: " << x);
      sum += x - 4;
      squares += (x - 4) * (x - 4);
    }
    // Standard errors: 4 / sqrt(12 n) = 0.0037 and 16 / sqrt(180 n) = 0.0038; five of each.
    CHECK(std::abs(sum / 1e5) < 0.019);
    CHECK(std::abs(squares / 1e5 - 16.0 / 12.0) < 0.019);
  }
  Tensor doubles = Tensor::empty({1000}, Dtype::f64);
  Generator generator(7);
  fill_uniform(generator, doubles, 0, 1);
  const auto values = doubles.values<double>();
  CHECK(std::set<double>(values.begin(), values.end()).size() == 1000);
  CHECK(std::any_of(values.begin(), values.end(),
                    [](double x) { return static_cast<double>(static_cast<float>(x)) != x; }));
}

TEST_CASE("fill_uniform refuses before it draws") {
  Generator generator;
  Tensor integers = Tensor::zeros({2}, Dtype::i32);
  Tensor floats = Tensor::zeros({2}, Dtype::f32);
  CHECK_THROWS_WITH(fill_uniform(generator, integers, 0, 1), Contains("i32"));
  CHECK_THROWS_AS(fill_uniform(generator, TensorSpan(), 0, 1), InvalidArgument);
  CHECK_THROWS_WITH(fill_uniform(generator, floats, 2, 1), Contains("[2, 1)"));
  CHECK_THROWS_AS(fill_uniform(generator, floats, 0, std::nan("")), InvalidArgument);
  CHECK_THROWS_AS(fill_uniform(generator, floats, 0, std::numeric_limits<double>::infinity()),
                  InvalidArgument);
  CHECK(generator.position() == 0);
  Tensor none = Tensor::zeros({0}, Dtype::f32);
  fill_uniform(generator, none, 0, 1);
  CHECK(generator.position() == 1);
}

TEST_CASE("fill_normal is normal, and an element depends on its place and draw alone") {
  for (const Dtype dtype : {Dtype::f32, Dtype::f64}) {
    Tensor longer = Tensor::empty({100001}, dtype), shorter = Tensor::empty({7}, dtype);
    Generator generator(7), again(7);
    fill_normal(generator, longer, 2.0, 3.0);
    fill_normal(again, shorter, 2.0, 3.0);
    CHECK(generator.position() == 1);
    const Tensor x = convert(longer, Dtype::f64), y = convert(shorter, Dtype::f64);
    CHECK(std::equal(y.values<double>().begin(), y.values<double>().end(),
                     x.values<double>().begin()));
    double sum = 0, squares = 0, beyond = 0;
    for (const double value : x.values<double>()) {
      const double z = (value - 2.0) / 3.0;
      sum += z;
      squares += z * z;
      beyond += std::abs(z) > 2.0 ? 1.0 : 0.0;
    }
    // Standard errors: 1 / sqrt(n) = 0.0032, sqrt(2 / n) = 0.0045 and, of the 4.55 percent beyond
    // two deviations, sqrt(0.0455 * 0.9545 / n) = 0.00066; five of each.
    CHECK(std::abs(sum / 1e5) < 0.016);
    CHECK(std::abs(squares / 1e5 - 1.0) < 0.023);
    CHECK(std::abs(beyond / 1e5 - 0.0455) < 0.0033);
    fill_normal(again, shorter, 2.0, 3.0);
    CHECK(convert(shorter, Dtype::f64).values<double>()[0] != y.values<double>()[0]);
  }
}

TEST_CASE("fill_normal refuses before it draws") {
  Generator generator;
  Tensor integers = Tensor::zeros({2}, Dtype::i32), floats = Tensor::zeros({2}, Dtype::f32);
  CHECK_THROWS_WITH(fill_normal(generator, integers), Contains("i32"));
  CHECK_THROWS_WITH(fill_normal(generator, floats, 0.0, -1.0), Contains("-1"));
  CHECK_THROWS_AS(fill_normal(generator, floats, std::nan("")), InvalidArgument);
  CHECK(generator.position() == 0);
}

}  // namespace packrnn

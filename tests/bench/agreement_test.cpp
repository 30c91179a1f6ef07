#include "bench/device/agreement.hpp"

#include <cmath>
#include <limits>
#include <packrnn/runtime/error.hpp>
#include <vector>

#include "tests/catch.hpp"

namespace packrnn::bench {
namespace {

/// Sequences of 1, 3 and 0 steps; the value of a row says whose it is.
struct Example {
  PackedLayoutPtr layout = PackedLayout::make(std::vector<std::int64_t>{1, 3, 0});
  std::vector<float> packed = std::vector<float>(4 * 2);
  std::vector<float> seq_major = std::vector<float>(3 * 3 * 2, NAN);  // padding is not looked at
  std::vector<float> batch_major = seq_major;

  Example() {
    for (std::int64_t n = 0; n < 3; ++n)
      for (std::int64_t t = 0; t < layout->lengths()[static_cast<std::size_t>(n)]; ++t)
        for (std::int64_t u = 0; u < 2; ++u) {
          const auto value = static_cast<float>(100 * n + 10 * t + u);
          packed[static_cast<std::size_t>(layout->row(n, t) * 2 + u)] = value;
          seq_major[static_cast<std::size_t>((t * 3 + n) * 2 + u)] = value;
          batch_major[static_cast<std::size_t>((n * 3 + t) * 2 + u)] = value;
        }
  }
};

TEST_CASE("equal rows agree in every order, whatever the padding holds") {
  const Example example;
  CHECK(compare(*example.layout, 2, example.packed, example.packed, RowOrder::packed).bits);
  CHECK(compare(*example.layout, 2, example.packed, example.seq_major, RowOrder::seq_major).bits);
  CHECK(
      compare(*example.layout, 2, example.packed, example.batch_major, RowOrder::batch_major).bits);
  CHECK_FALSE(
      compare(*example.layout, 2, example.packed, example.batch_major, RowOrder::seq_major).bits);
}

TEST_CASE("the largest difference is found, with its place, and judged") {
  Example example;
  example.batch_major[(1 * 3 + 2) * 2 + 1] += 0.5F;
  example.batch_major[(1 * 3 + 0) * 2 + 0] += 0.25F;
  const Agreement agreement =
      compare(*example.layout, 2, example.packed, example.batch_major, RowOrder::batch_major);
  CHECK_FALSE(agreement.bits);
  CHECK(agreement.largest == 0.5);
  CHECK(agreement.text(0.6) == "5.0e-01");
  CHECK(agreement.text(0.4) == "WRONG: 5.0e-01 at sequence 1, step 2, unit 1");
}

TEST_CASE("a value that is no number is further away than any tolerance") {
  Example example;
  example.packed[3] = std::numeric_limits<float>::quiet_NaN();
  const Agreement agreement =
      compare(*example.layout, 2, example.packed, example.seq_major, RowOrder::seq_major);
  CHECK(std::isinf(agreement.largest));
  CHECK_THAT(agreement.text(1e9), Catch::Matchers::StartsWith("WRONG"));
}

TEST_CASE("outputs of another size are refused") {
  const Example example;
  CHECK_THROWS_AS(compare(*example.layout, 2, example.packed, example.packed, RowOrder::seq_major),
                  InvalidArgument);
  CHECK_THROWS_AS(compare(*example.layout, 3, example.packed, example.packed, RowOrder::packed),
                  InvalidArgument);
}

}  // namespace
}  // namespace packrnn::bench

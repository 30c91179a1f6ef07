#include "bench/length_distribution.hpp"

#include <cstdint>
#include <packrnn/runtime/error.hpp>
#include <string>
#include <vector>

#include "tests/catch.hpp"

namespace packrnn::bench {
namespace {

void refused(const std::string& csv, const std::string& because) {
  INFO(csv);
  CHECK_THROWS_MATCHES(LengthDistribution::parse("table", csv), InvalidArgument,
                       Catch::Matchers::Predicate<InvalidArgument>(
                           [&](const InvalidArgument& error) {
                             const std::string message = error.what();
                             UNSCOPED_INFO(message);
                             return message.starts_with("table") &&
                                    message.find(because) != std::string::npos;
                           },
                           "names the table, and " + because));
}

TEST_CASE("a histogram gives each length its share") {
  const auto lengths = LengthDistribution::parse("table", "# x\nlength,count\n2,1\n5,0\n7,3\n");
  CHECK(lengths.sample(0.0) == 2);
  CHECK(lengths.sample(0.2499) == 2);
  CHECK(lengths.sample(0.25) == 7);
  CHECK(lengths.sample(0.9999) == 7);
  CHECK(lengths.min() == 2);
  CHECK(lengths.max() == 7);
  CHECK_THAT(lengths.mean(), Catch::Matchers::WithinAbs(5.75, 1e-12));
}

TEST_CASE("quantiles are joined by straight lines and seconds become steps") {
  const auto lengths =
      LengthDistribution::parse("table", "quantile,seconds\r\n0,1\r\n0.5,2\r\n1,6\r\n", 10.0);
  CHECK(lengths.sample(0.0) == 10);
  CHECK(lengths.sample(0.25) == 15);
  CHECK(lengths.sample(0.5) == 20);
  CHECK(lengths.sample(0.75) == 40);
  CHECK(lengths.sample(0.999) == 59);
  CHECK(lengths.max() == 60);
  CHECK_THAT(lengths.mean(), Catch::Matchers::WithinAbs(27.5, 1e-12));
}

TEST_CASE("a list of lengths gives each the same share, zeros too") {
  const auto lengths = LengthDistribution::of({9, 0, 4, 4});
  CHECK(lengths.sample(0.1) == 0);
  CHECK(lengths.sample(0.3) == 4);
  CHECK(lengths.sample(0.7) == 4);
  CHECK(lengths.sample(0.8) == 9);
  CHECK_THROWS_AS(LengthDistribution::of({}), InvalidArgument);
  CHECK_THROWS_AS(LengthDistribution::of({3, -1}), InvalidArgument);
}

TEST_CASE("a table that is none is refused with its line") {
  refused("", "columns ''");
  refused("length;count\n1;1\n", "length;count");
  refused("length,count\n", "no lengths");
  refused("length,count\n3,0\n", "no lengths");
  refused("length,count\n3,1\n4\n", "line 3: '4'");
  refused("length,count\n3,x\n", "line 2: '3,x'");
  refused("length,count\n3,1,1\n", "line 2");
  refused("length,count\n3,nan\n", "line 2");
  refused("length,count\n3,1\n3,1\n", "line 3");
  refused("length,count\n2.5,1\n", "line 2: '2.5,1'");
  refused("length,count\n-2,1\n", "line 2: '-2,1'");
  refused("length,count\n2,-1\n", "line 2: '2,-1'");
  refused("quantile,seconds\n0,1\n0.5,2\n", "from 0 to 1");
  refused("quantile,seconds\n0,1\n0.5,3\n1,2\n", "line 4: '1,2'");
  refused("quantile,seconds\n0,1\n0.5,3\n0.5,3\n1,4\n", "line 4");
  refused("quantile,seconds\n0,-1\n1,4\n", "line 2: '0,-1'");
}

}  // namespace
}  // namespace packrnn::bench

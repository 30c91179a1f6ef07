// The series of packrnn_scale, and what it measures of tiny ones. (Times are only looked at for
// being there.)
#include <string>
#include <vector>

#include "bench/scale/latency.hpp"
#include "bench/scale/series.hpp"
#include "tests/catch.hpp"

namespace packrnn::bench {
namespace {

using Catch::Matchers::Contains;

TEST_CASE("each series grows in one number, as far as it should") {
  const std::vector<ScaleSeries> all = all_series(6, false);
  REQUIRE(all.size() == 6);
  const std::vector<double> last = {1024, 100'000, 4096, 8, 6};
  for (std::size_t i = 0; i < all.size(); ++i) {
    CAPTURE(all[i].name);
    for (std::size_t p = 1; p < all[i].points.size(); ++p)
      CHECK(all[i].points[p].value > all[i].points[p - 1].value);
    if (i < last.size()) CHECK(all[i].points.back().value == last[i]);
  }
  CHECK(all[0].points.back().lengths.size() == 1024);
  CHECK(all[0].points.back().lengths.back() == 10);
  CHECK(all[1].points.back().lengths == std::vector<std::int64_t>(8, 100'000));
  CHECK(all[4].points.back().threads == 6);
  CHECK(all[5].points.front().value == 0.0);
  CHECK(all[5].points.back().value > 0.85);
  CHECK(all_series(1, true)[4].points.size() == 1);
}

TEST_CASE("a point says what it cost") {
  const ScalePoint point{
      .value = 3, .input = 5, .hidden = 4, .layers = 2, .lengths = {3, 1}, .padded = true};
  const Measured m = measure_point(point, 2, 0.0);
  CHECK(m.value == 3);
  CHECK(m.tokens == 4);
  CHECK(m.seconds > 0);
  CHECK(m.bound == 1.5);
  CHECK(m.padded_over_packed > 0);
  // Parameters of 4 gates: 4 * 4 * (5 + 4) + 32, and 4 * 4 * (4 + 4) + 32; and more when packed.
  CHECK(m.weight_bytes > 2 * 4 * (144 + 32 + 128 + 32));
  CHECK(m.data_bytes == 4 * 4 * (5 + 4));
  CHECK(m.scratch_bytes > 0);
  CHECK_THAT(series_row(m), Contains("1.50"));
  ScalePoint packed_only = point;
  packed_only.padded = false;
  CHECK_THAT(series_row(measure_point(packed_only, 1, 0.0)), Contains("-"));
}

TEST_CASE("latencies are in order, on a loaded machine too") {
  for (const bool loaded : {false, true}) {
    const Latency l = measure_latency(2, 50, loaded);
    CHECK(l.p50 > 0);
    CHECK(l.p50 <= l.p99);
    CHECK(l.p99 <= l.p999);
    CHECK(l.p999 <= l.max);
    CHECK_THAT(latency_row(l), Contains(loaded ? "loaded" : "quiet"));
  }
  CHECK(call_overhead(20) > 0);
}

}  // namespace
}  // namespace packrnn::bench

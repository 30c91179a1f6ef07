#include "bench/device/roofline.hpp"

#include <cmath>
#include <vector>

#include "tests/catch.hpp"

namespace packrnn::bench {
namespace {

using Catch::Matchers::WithinRel;

TEST_CASE("the work of a batch counts valid tokens and the longest sequence") {
  const std::vector<std::int64_t> lengths{3, 0, 5};
  const Work work = work_of(4, 10, 6, lengths, 2);
  CHECK(work.steps == 5.0);
  CHECK(work.tokens == 8.0);
  CHECK(work.input_flops == 2.0 * 8 * 24 * 10);
  CHECK(work.recurrent_flops == 2.0 * 8 * 24 * 6);
  CHECK(work.bytes == 2.0 * (8 * 16 + 24 * 16));
  CHECK(work.exchanged == 2.0 * 8 * 6);
}

TEST_CASE("the roofline is the higher of what bounds each part, and says which") {
  Work work;
  work.steps = 10.0;
  work.input_flops = 100.0;
  work.recurrent_flops = 200.0;
  work.bytes = 50.0;
  const auto check = [&](const Ceilings& ceilings, double input, double recurrent,
                         std::string_view limit) {
    const Bound bound = bound_of(work, ceilings);
    CHECK_THAT(bound.input_s, WithinRel(input, 1e-12));
    CHECK_THAT(bound.recurrent_s, WithinRel(recurrent, 1e-12));
    CHECK_THAT(bound.seconds(), WithinRel(input + recurrent, 1e-12));
    CHECK(bound.limited_by == limit);
  };
  check({10.0, 100.0, 1.0, 0.0}, 5.0, 10.0, "latency");
  check({10.0, 100.0, 0.1, 0.0}, 5.0, 2.0, "traffic");
  check({100.0, 10.0, 0.1, 0.0}, 10.0, 20.0, "arithmetic");
  check({1e9, 10.0, 0.9, 0.0}, 10.0, 20.0, "arithmetic");
}

TEST_CASE("a ceiling that was not measured bounds nothing") {
  const std::vector<std::int64_t> lengths{2};
  const Bound bound = bound_of(work_of(1, 1, 1, lengths, 4), {});
  CHECK(bound.seconds() == 0.0);
}

TEST_CASE("the model's two constants are found again, and its errors before and after") {
  std::vector<ModelPoint> points;
  for (const double steps : {10.0, 100.0, 1000.0})
    for (const double predicted : {1e-3, 2e-3})
      points.push_back({predicted, predicted + 5e-4 + 2e-6 * steps, steps});
  points.push_back({1.0, 0.0, 7.0});  // a clock that has not moved
  const ModelFit fit = refit_model(points);
  CHECK(fit.points == 6);
  CHECK_THAT(fit.per_call_s, WithinRel(5e-4, 1e-6));
  CHECK_THAT(fit.per_step_s, WithinRel(2e-6, 1e-6));
  CHECK(fit.max_after < 1e-9);
  CHECK(fit.max_before > 0.7);
  CHECK(fit.median_before > 0.1);
  CHECK(fit.median_before <= fit.max_before);
}

TEST_CASE("equal steps leave one constant, and no points none") {
  const std::vector<ModelPoint> equal{{1e-3, 2e-3, 100.0}, {1e-3, 2e-3, 100.0}};
  const ModelFit fit = refit_model(equal);
  CHECK(fit.per_call_s == 0.0);
  CHECK_THAT(fit.per_step_s, WithinRel(1e-5, 1e-9));
  CHECK(refit_model({}).points == 0);
}

}  // namespace
}  // namespace packrnn::bench

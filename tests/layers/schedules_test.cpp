#include "packrnn/layers/schedules.hpp"

#include <cmath>

#include "packrnn/runtime/error.hpp"
#include "tests/catch.hpp"

namespace packrnn::tests {
namespace {

using Catch::Contains;

bool near(double a, double b) { return std::abs(a - b) <= 1e-15; }

TEST_CASE("schedules follow their formulas") {
  CHECK(constant_schedule(0.5)(1'000'000) == 0.5);

  const Schedule steps = step_schedule(0.8, 3, 0.5);
  CHECK(steps(0) == 0.8);
  CHECK(steps(2) == 0.8);
  CHECK(steps(3) == 0.4);
  CHECK(steps(8) == 0.2);

  const Schedule falling = exponential_schedule(1.0, 0.5);
  CHECK(falling(0) == 1.0);
  CHECK(falling(4) == 0.0625);

  const Schedule cosine = cosine_schedule(1.0, 4, 0.2);
  CHECK(near(cosine(0), 1.0));
  CHECK(near(cosine(1), 0.2 + 0.4 * (1.0 + std::sqrt(0.5))));
  CHECK(near(cosine(2), 0.6));
  CHECK(cosine(4) == 0.2);
  CHECK(cosine(1'000) == 0.2);
}

TEST_CASE("a warm-up ends where the schedule behind it begins") {
  const Schedule schedule = warm_up(4, step_schedule(0.8, 2, 0.5));
  CHECK(near(schedule(0), 0.2));
  CHECK(near(schedule(1), 0.4));
  CHECK(schedule(3) == 0.8);
  CHECK(schedule(4) == 0.8);
  CHECK(schedule(5) == 0.8);
  CHECK(schedule(6) == 0.4);
}

TEST_CASE("a plateau lowers the rate after its patience, and not below the lowest") {
  ReduceOnPlateau plateau({.factor = 0.5, .patience = 2, .threshold = 0.1, .lowest = 0.3});
  double rate = 1.0;
  const auto epoch = [&](double loss) { return rate = plateau.next(rate, loss); };
  CHECK(epoch(10.0) == 1.0);
  CHECK(epoch(9.5) == 1.0);  // not a tenth better
  CHECK(epoch(NAN) == 1.0);
  CHECK(epoch(8.9) == 1.0);  // better: patience begins again
  CHECK(epoch(8.9) == 1.0);
  CHECK(plateau.best() == 8.9);
  CHECK(plateau.bad_epochs() == 1);

  ReduceOnPlateau resumed({.factor = 0.5, .patience = 2, .threshold = 0.1, .lowest = 0.3});
  resumed.restore(plateau.best(), plateau.bad_epochs());
  CHECK(resumed.next(1.0, 8.9) == 1.0);
  CHECK(resumed.next(1.0, 8.9) == 0.5);
  for (int i = 0; i < 2; ++i) CHECK(resumed.next(0.5, 8.9) == 0.5);
  CHECK(resumed.next(0.5, 8.9) == 0.3);
  for (int i = 0; i < 2; ++i) CHECK(resumed.next(0.1, 8.9) == 0.1);
  CHECK(resumed.next(0.1, 8.9) == 0.1);  // lower already: it is not raised
}

TEST_CASE("options of schedules out of range are named") {
  CHECK_THROWS_WITH(constant_schedule(-1.0), Contains("rate is -1"));
  CHECK_THROWS_WITH(step_schedule(1.0, 0), Contains("every is 0"));
  CHECK_THROWS_WITH(exponential_schedule(1.0, NAN), Contains("factor is nan"));
  CHECK_THROWS_WITH(cosine_schedule(1.0, -3), Contains("steps is -3"));
  CHECK_THROWS_WITH(cosine_schedule(1.0, 3, INFINITY), Contains("lowest is inf"));
  CHECK_THROWS_WITH(warm_up(0, constant_schedule(1.0)), Contains("steps is 0"));
  CHECK_THROWS_AS(warm_up(1, nullptr), InvalidArgument);
  CHECK_THROWS_WITH(warm_up(2, constant_schedule(1.0))(-1), Contains("step is -1"));
  CHECK_THROWS_WITH(ReduceOnPlateau({.factor = 1.0}), Contains("factor is 1"));
  CHECK_THROWS_WITH(ReduceOnPlateau({.patience = -1}), Contains("patience is -1"));
  CHECK_THROWS_WITH(ReduceOnPlateau({.threshold = 1.5}), Contains("threshold is 1.5"));
  CHECK_THROWS_WITH(ReduceOnPlateau({.lowest = -0.5}), Contains("lowest is -0.5"));
}

}  // namespace
}  // namespace packrnn::tests

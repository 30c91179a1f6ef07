#include "bench/workload.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <packrnn/layers/gru.hpp>
#include <packrnn/layers/lstm.hpp>
#include <packrnn/runtime/error.hpp>
#include <set>
#include <vector>

#include "bench/measure.hpp"
#include "bench/verify.hpp"
#include "tests/catch.hpp"

namespace packrnn::bench {
namespace {

Workload small_workload(Context& context) {
  return make_workload(context, mix_of("small", {3, 7, 1, 0, 4}, 5, 5), 2, 0, {.batch = 5});
}

/// The test's own packing: padding is zero and the rest is equal.
void check_batch(const Batch& batch, std::int64_t features) {
  const PackedLayout& layout = batch.packed.layout();
  const std::int64_t steps = layout.steps(), count = layout.batch();
  REQUIRE(batch.padded.shape() == Shape{steps, count, features});
  const auto padded = batch.padded.values<float>();
  const auto packed = batch.packed.data().values<float>();
  for (std::int64_t t = 0; t < steps; ++t)
    for (std::int64_t n = 0; n < count; ++n)
      for (std::int64_t i = 0; i < features; ++i) {
        const float value = padded[static_cast<std::size_t>((t * count + n) * features + i)];
        const bool valid = t < layout.lengths()[static_cast<std::size_t>(n)];
        const float expected =
            valid ? packed[static_cast<std::size_t>(layout.row(n, t) * features + i)] : 0.0F;
        CHECK(value == expected);
      }
}

TEST_CASE("a mix becomes batches that are equal packed and padded") {
  Context context(Device::cpu(), {.threads = 1});
  const Workload workload = small_workload(context);
  REQUIRE(workload.batches.size() == 2);
  for (const Batch& batch : workload.batches) check_batch(batch, 5);
  const auto values = workload.batches[0].packed.data().values<float>();
  CHECK(std::set<float>(values.begin(), values.end()).size() > 50);

  const Size size = size_of(workload);
  CHECK(size.batches == 2);
  CHECK(size.sequences == 5);
  CHECK(size.steps == 7);
  CHECK(size.tokens == 30);
  CHECK(size.volume == 70);
  CHECK(size.bucketed_volume == 5 * 7 + 3 * 3);  // 7 7 4 4 3 | 3 1 1, the empty ones left out
  CHECK_THAT(size.padding(), Catch::Matchers::WithinAbs(4.0 / 7.0, 1e-12));
  CHECK_THROWS_AS(make_workload(context, mix_of("none", {0, 0}, 5, 5), 1, 0, {.batch = 5}),
                  InvalidArgument);
}

TEST_CASE("bucketed batches hold every sequence once, the longest first") {
  Context context(Device::cpu(), {.threads = 1});
  const Workload workload = make_workload(context, mix_of("two", {2, 1, 3}, 1, 3), 2, 0,
                                          {.batch = 3, .dtype = Dtype::f64});
  REQUIRE(workload.bucketed.size() == 2);
  std::multiset<double> before, after;
  for (const Batch& batch : workload.batches) {
    const auto values = batch.packed.data().values<double>();
    before.insert(values.begin(), values.end());
  }
  std::int64_t longest = 3;
  for (const Tensor& batch : workload.bucketed) {
    CHECK(batch.size(0) == longest);  // 3 3 2 | 2 1 1
    longest = 2;
    for (const double value : batch.values<double>())
      if (value != 0.0) after.insert(value);
  }
  CHECK(before == after);
  CHECK(make_workload(context, mix_of("one", {2, 1}, 1, 2), 1, 0, {.batch = 2}).bucketed.empty());
}

TEST_CASE("recordings are shuffled, each comes once, and the last batch may be smaller") {
  JapaneseVowels data;
  for (int k = 0; k < 7; ++k) {
    const std::vector<float> frames(static_cast<std::size_t>(12 * (k + 1)), static_cast<float>(k));
    (k < 4 ? data.train : data.test).push_back({k + 1, frames, 1});
  }
  Context context(Device::cpu(), {.threads = 1});
  const auto lengths = [&](std::uint64_t seed) {
    const Workload workload = make_workload(context, data, {.batch = 3, .seed = seed});
    std::vector<std::vector<std::int64_t>> all;
    for (const Batch& batch : workload.batches) {
      check_batch(batch, 12);
      const auto some = batch.packed.lengths();
      all.emplace_back(some.begin(), some.end());
    }
    return all;
  };
  const auto first = lengths(1);
  REQUIRE(first.size() == 3);
  CHECK((first[0].size() == 3 && first[1].size() == 3 && first[2].size() == 1));
  std::vector<std::int64_t> flat;
  for (const auto& some : first) flat.insert(flat.end(), some.begin(), some.end());
  CHECK_FALSE(std::is_sorted(flat.begin(), flat.end()));
  std::sort(flat.begin(), flat.end());
  CHECK(flat == std::vector<std::int64_t>{1, 2, 3, 4, 5, 6, 7});
  CHECK(first == lengths(1));
  CHECK(first != lengths(2));
}

TEST_CASE("results are compared before speeds, and a difference is found") {
  Context context(Device::cpu(), {.threads = 2});
  Workload workload = small_workload(context);
  const Lstm lstm({.input_size = 5, .hidden_size = 6, .num_layers = 2});
  const Gru both({.input_size = 5, .hidden_size = 6, .bidirectional = true});
  CHECK_NOTHROW(verify(context, lstm, workload));
  CHECK_NOTHROW(verify(context, both, workload));

  // Another value in the padded batch only, in step 2 of sequence 1.
  workload.batches[1].padded.values<float>()[(2 * 5 + 1) * 5] += 0.5F;
  CHECK_THROWS_AS(verify(context, lstm, workload), Mismatch);
  CHECK_THROWS_WITH(verify(context, lstm, workload),
                    Catch::Matchers::StartsWith("sequence 1, step 2, unit 0: "));
}

TEST_CASE("measuring ends by itself or when told to, with as many samples of each") {
  Context context(Device::cpu(), {.threads = 1});
  const Workload workload = small_workload(context);
  const Lstm lstm({.input_size = 5, .hidden_size = 6});
  const auto run = [&](Limits limits, int stop_after) {
    int asked = 0;
    const Timings timings =
        measure(context, lstm, workload, limits, [&](double) { return asked++ < stop_after; });
    CHECK(timings.padded.seconds.size() == timings.packed.seconds.size());
    CHECK(timings.packing.seconds.size() == timings.packed.seconds.size());
    CHECK(timings.bucketed.seconds.size() == timings.packed.seconds.size());
    return timings;
  };
  const Timings few = run({.seconds = 1e-9, .min_repetitions = 3}, 1000);
  CHECK(few.packed.seconds.size() == 3);
  CHECK(few.packed.min() > 0.0);
  CHECK(few.packed.min() <= few.packed.median());
  CHECK(few.packed.median() <= few.packed.max());
  CHECK(run({.seconds = 60.0, .max_repetitions = 5}, 1000).packed.seconds.size() == 5);
  CHECK(run({.seconds = 60.0}, 2).packed.seconds.size() == 2);
  CHECK(run({.seconds = 60.0}, 0).packed.seconds.empty());
}

TEST_CASE("the median of an even number of samples lies between") {
  CHECK(Samples{{3.0, 1.0, 2.0}}.median() == 2.0);
  CHECK(Samples{{4.0, 1.0, 2.0, 3.0}}.median() == 2.5);
  CHECK(std::isnan(Samples{}.median()));
}

TEST_CASE("speed-ups are those of neighbours, so that a slow phase of the machine cancels") {
  Timings timings{.packed = {{1.0, 10.0, 1.0, 10.0, 10.0}},
                  .padded = {{2.0, 20.0, 2.0, 20.0, 30.0}},
                  .packing = {{1.0, 0.0, 1.0, 10.0, 5.0}},
                  .bucketed = {}};
  CHECK(timings.speed_up() == 2.0);
  CHECK(timings.speed_up_with_packing() == 1.0);
  timings.packed.seconds = {1.0, 10.0, 1.0, 10.0, 1.0};
  CHECK(timings.speed_up() == 2.0);
  CHECK(std::isnan(timings.speed_up_over_bucketed()));
  timings.bucketed.seconds = {3.0, 30.0, 3.0, 10.0, 1.0};
  CHECK(timings.speed_up_over_bucketed() == 3.0);
}

}  // namespace
}  // namespace packrnn::bench

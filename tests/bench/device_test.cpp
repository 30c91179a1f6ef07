// The parts of the GPU benchmark that run on any device.
#include <algorithm>
#include <packrnn/runtime/error.hpp>
#include <set>
#include <string>
#include <vector>

#include "bench/device/cases.hpp"
#include "bench/device/ours.hpp"
#include "bench/device/timing.hpp"
#include "tests/catch.hpp"

namespace packrnn::bench {
namespace {

std::vector<std::string> names_of(const Options& options, bool tiny) {
  std::vector<std::string> names;
  for (const Problem& problem : device_problems(options, tiny)) names.push_back(problem.name());
  return names;
}

bool has(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

TEST_CASE("the problems of the targets come without being asked for, each once") {
  const std::vector<std::string> names = names_of({}, false);
  CHECK(std::set<std::string>(names.begin(), names.end()).size() == names.size());
  CHECK(names.front() == "lstm, equal, H 768, B 16, f32 exact");
  CHECK(has(names, "lstm, equal, H 768, B 16, f16"));
  CHECK(has(names, "gru, uniform, H 512, B 64, bf16"));
  CHECK(has(names, "lstm, libri100, H 1024, B 32, f32 tf32"));
  CHECK_FALSE(has(names, "lstm, uniform, H 512, B 64, f16"));
  for (const Problem& problem : device_problems({}, false)) {
    CHECK(problem.steps() <= 1024);
    CHECK(problem.equal_lengths() == (problem.mix == kEqual));
  }
}

TEST_CASE("what was asked for is what is run") {
  Options options;
  options.cell = "gru";
  options.hidden = 300;
  options.batch = 7;
  options.chose_cell = options.chose_hidden = options.chose_batch = options.chose_dtype = true;
  options.dtypes = {"f16", "f32"};
  options.maths = {"tf32x3"};
  options.mixes = {"ptb"};
  CHECK(names_of(options, false) ==
        std::vector<std::string>{"gru, ptb, H 300, B 7, f16", "gru, ptb, H 300, B 7, f32 tf32x3"});
  CHECK(device_problems(options, false).front().input == 300);
  options.features = 40;
  CHECK(device_problems(options, false).front().input == 40);
  options.maths = {"double"};
  CHECK_THROWS_AS(device_problems(options, false), InvalidArgument);
}

TEST_CASE("tiny problems are tiny and have every kind") {
  const std::vector<Problem> problems = device_problems({}, true);
  CHECK(problems.size() >= 12);
  for (const Problem& problem : problems) {
    CHECK(problem.steps() <= 4);
    CHECK(problem.batch() <= 3);
    CHECK(problem.hidden <= 32);
  }
}

TEST_CASE("our own runs agree and are timed") {
  Contexts contexts{Device::best()};
  const Problem problem{"gru", "test", 16, 32, {3, 0, 5, 1}, {}};
  const Recurrent layer = make_layer(problem, 1);
  Context& context = contexts.get(F32Math::exact, "auto");
  const ProblemInput input(context, problem, 1);
  CHECK(input.check_packing(context).empty());
  const Ours ours = run_ours(contexts, problem, {"auto"}, layer, input);
  REQUIRE(ours.entries.size() == 3);
  CHECK(ours.expected.size() == 9U * 32U);
  CHECK(ours.entries[0].run.agreement == "reference");
  CHECK(ours.entries[1].run.agreement == "bits");
  CHECK(ours.entries[2].run.agreement == "bits");
  CHECK_FALSE(ours.entries[0].run.explanation.empty());

  std::vector<Candidate> candidates;
  for (const Entry& entry : ours.entries) {
    INFO(entry.run.what << ": " << entry.run.series.failure);
    REQUIRE(entry.candidate.context != nullptr);
    candidates.push_back(entry.candidate);
  }
  candidates.push_back({&context, [] { throw DeviceError("lost"); }});
  CacheFlush flush(context);
  const std::vector<Series> series = measure_in_turn(
      candidates, flush, {.seconds = 1e-9, .min_repetitions = 2}, [](double) { return true; });
  REQUIRE(series.size() == 4);
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(series[i].failure.empty());
    CHECK(series[i].cold.seconds.size() == 2);
    CHECK(series[i].warm.seconds.size() == 2);
    CHECK(series[i].warm.min() >= 0.0);
  }
  CHECK(series[3].failure == "lost");
  CHECK(series[3].warm.seconds.empty());
}

TEST_CASE("an algorithm that cannot run is a reason in its row, and the others go on") {
  Contexts contexts{Device::best()};
  // Clusters have no f64.
  const Problem problem{"lstm", "test", 3, 5, {2, 1}, {Dtype::f64, F32Math::exact}};
  const Recurrent layer = make_layer(problem, 1);
  const ProblemInput input(contexts.get(F32Math::exact, "auto"), problem, 1);
  const Ours ours = run_ours(contexts, problem, {"auto", "cluster"}, layer, input);
  REQUIRE(ours.entries.size() == 4);
  CHECK(ours.entries[0].run.series.failure.empty());
  CHECK(ours.entries[2].run.agreement == "bits");
  if (Device::best().type == DeviceType::cpu) return;  // where there are no algorithms to choose
  CHECK_FALSE(ours.entries[1].run.series.failure.empty());
  CHECK(ours.entries[1].candidate.context == nullptr);
}

}  // namespace
}  // namespace packrnn::bench

#include "bench/device/results.hpp"

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/catch.hpp"

namespace packrnn::bench {
namespace {

using Json = nlohmann::json;

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

DeviceReport example() {
  DeviceReport report;
  report.device = "Example GPU";
  report.multiprocessors = 7;
  report.compute_capability = 90;
  report.driver = 13010;
  report.toolkit = "13.0";
  report.command = "packrnn_bench";
  report.constants = {{"mailbox_s", 5e-7}};
  report.peers = {{"cuDNN", "none at all"}};
  ProblemResult result;
  result.problem = {"lstm", "classic", 8, 16, {4, 2}, {Dtype::f32, F32Math::tf32}};
  result.work.steps = 4.0;
  result.work.tokens = 6.0;
  result.bound = {1e-6, 1e-6, "latency"};
  result.runs.push_back({"packrnn",
                         "packed auto",
                         {{{8e-6, 10e-6, 9e-6}}, {{4e-6, 5e-6, 3e-6}}, ""},
                         "reference",
                         "persistent"});
  result.runs.push_back({"cuDNN", "STANDARD", {{}, {}, "refused: why"}});
  result.runs.push_back({"cuDNN", "OTHER", {{{1e-3}}, {{1e-3}}, "lost"}, "1.0e-03"});
  report.problems.push_back(result);
  report.fits["f32 tf32"] = {3, 1e-6, 2e-8, 0.5, 0.75, 0.125, 0.25};
  return report;
}

TEST_CASE("the header says what was measured on, and that a simulation means nothing") {
  DeviceReport report = example();
  CHECK(has(device_header(report), "Example GPU, 7 multiprocessors"));
  CHECK(has(device_header(report), "compute capability 9.0"));
  CHECK(has(device_header(report), "driver   13.1, toolkit 13.0"));
  CHECK(has(device_header(report), "none at all"));
  CHECK_FALSE(has(device_header(report), "SIMULATED"));
  report.simulated = true;
  CHECK(has(device_header(report), "SIMULATED"));
}

TEST_CASE("a problem's table has medians, rates, the roofline and what was refused") {
  const std::string table = problem_table(example().problems.front());
  CHECK(has(table, "lstm, classic, H 16, B 2, f32 tf32: I 8, T 4, 6 tokens"));
  CHECK(has(table, "4.00 (3.00-5.00, 3)"));  // warm
  CHECK(has(table, "9.00 (8.00-10.0, 3)"));  // cold
  CHECK(has(table, " 1.00 "));               // us per step
  CHECK(has(table, " 1500 "));               // thousand tokens per second
  CHECK(has(table, " 50% "));
  CHECK(has(table, "refused: why"));
  CHECK(has(table, "1.0e-03; ended: lost"));
  CHECK(has(table, " 250 "));  // times ours
}

TEST_CASE("a clock that has not moved gives zeros, not infinities") {
  DeviceReport report = example();
  report.problems[0].runs[0].series.warm.seconds = {0.0};
  CHECK(rate(3.0, 0.0) == 0.0);
  CHECK_FALSE(has(problem_table(report.problems.front()), "inf"));
  CHECK_FALSE(has(problem_table(report.problems.front()), "nan"));
  const Json run = Json::parse(device_json(report))["problems"][0]["runs"][0];
  CHECK(run["tokens_per_s"] == 0.0);
}

TEST_CASE("the JSON has everything, every sample included") {
  const Json json = Json::parse(device_json(example()));
  CHECK(json["device"] == "Example GPU");
  CHECK(json["constants"]["mailbox_s"] == 5e-7);
  CHECK(json["peers"]["cuDNN"] == "none at all");
  CHECK(json["model"]["f32 tf32"]["per_step_s"] == 2e-8);
  const Json problem = json["problems"][0];
  CHECK(problem["mode"] == "f32 tf32");
  CHECK(problem["equal_lengths"] == false);
  CHECK(problem["tokens"] == 6);
  CHECK(problem["bound_s"].get<double>() == 2e-6);
  const Json run = problem["runs"][0];
  CHECK(run["warm"]["seconds"].size() == 3);
  CHECK(run["warm"]["median_s"] == 4e-6);
  CHECK(run["cold"]["count"] == 3);
  CHECK(run["roofline_fraction"] == 0.5);
  CHECK(run["explanation"] == "persistent");
  CHECK(problem["runs"][1]["warm"].is_null());
  CHECK(problem["runs"][1]["failure"] == "refused: why");
}

TEST_CASE("text that is not UTF-8 does not lose the report") {
  DeviceReport report = example();
  report.notes.emplace_back("a driver said \xff");
  CHECK_NOTHROW(Json::parse(device_json(report)));
}

TEST_CASE("one wrong run makes the report wrong") {
  DeviceReport report = example();
  CHECK_FALSE(report.any_wrong());
  report.problems[0].runs[2].agreement = "WRONG: 1.0e+00 at sequence 0, step 0, unit 0";
  CHECK(report.any_wrong());
}

TEST_CASE("the fit is shown with its error before and after") {
  CHECK(has(fits_table(example().fits), "50% (max 75%)"));
  CHECK(has(fits_table(example().fits), "12% (max 25%)"));
}

}  // namespace
}  // namespace packrnn::bench

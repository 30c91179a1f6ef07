#include "bench/peers/torch.hpp"

#include <cmath>
#include <packrnn/runtime/error.hpp>
#include <string>

#include "tests/catch.hpp"

namespace packrnn::bench {
namespace {

constexpr const char* kAnswer = R"({"version": "PyTorch 9", "rows": [
  {"case": 1, "what": "packed", "failure": "", "cold_s": [3e-3, 1e-3], "warm_s": [2e-3, 1e-3]},
  {"case": 0, "what": "padded", "failure": "no", "cold_s": [], "warm_s": []}],
  "checks": [{"cell": "lstm", "largest": 1e-7}, {"cell": "gru", "largest": null}]})";

TEST_CASE("PyTorch's answer is read whole") {
  const TorchAnswer answer = parse_torch_answer(kAnswer, 2);
  CHECK(answer.version == "PyTorch 9");
  CHECK(answer.absent.empty());
  REQUIRE(answer.rows.size() == 2);
  CHECK(answer.rows[0].problem == 1);
  CHECK(answer.rows[0].what == "packed");
  CHECK(answer.rows[0].series.cold.max() == 3e-3);
  CHECK(answer.rows[0].series.warm.median() == 1.5e-3);
  CHECK(answer.rows[1].series.failure == "no");
  CHECK(answer.rows[1].series.warm.seconds.empty());
  REQUIRE(answer.checks.size() == 2);
  CHECK(answer.checks[0].largest == 1e-7);
  CHECK(std::isnan(answer.checks[1].largest));
}

TEST_CASE("an absent PyTorch is a reason, not an error") {
  const TorchAnswer answer = parse_torch_answer(R"({"absent": "none here"})", 2);
  CHECK(answer.absent == "none here");
  CHECK(answer.rows.empty());
}

TEST_CASE("an answer that lies or is cut short is refused") {
  const std::string whole = kAnswer;
  CHECK_THROWS_AS(parse_torch_answer(whole.substr(0, whole.size() / 2), 2), FileError);
  CHECK_THROWS_AS(parse_torch_answer("", 2), FileError);
  CHECK_THROWS_AS(parse_torch_answer("[1]", 2), FileError);
  CHECK_THROWS_AS(parse_torch_answer(R"({"version": 3, "rows": [], "checks": []})", 2), FileError);
  CHECK_THROWS_AS(parse_torch_answer(R"({"version": "3", "rows": []})", 2), FileError);
  CHECK_THROWS_AS(parse_torch_answer(whole, 1), FileError);  // case 1 of one problem
}

TEST_CASE("the script answers whether or not there is a PyTorch") {
  const Problem problem{"lstm", "test", 3, 4, {2, 3}, {}};
  const TorchAnswer answer = run_torch({problem}, {"cpu", 1.0, 0});
  if (!answer.absent.empty()) {
    CHECK(answer.version.empty());
    WARN("no PyTorch: " << answer.absent);
    return;
  }
  REQUIRE(answer.rows.size() == 2);
  for (const TorchRow& row : answer.rows) {
    CHECK(row.series.failure == "");
    REQUIRE(row.series.warm.seconds.size() >= 3);
    CHECK(row.series.warm.min() > 0.0);
  }
  REQUIRE(answer.checks.size() == 2);
  for (const TorchCheck& check : answer.checks) CHECK(check.largest < 1e-5);
}

}  // namespace
}  // namespace packrnn::bench

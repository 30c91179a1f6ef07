#include "docs/examples/training/session.hpp"

#include <packrnn/layers/linear.hpp>
#include <packrnn/layers/safetensors.hpp>
#include <packrnn/runtime/error.hpp>
#include <string>

#include "bench/temporary_folder.hpp"
#include "bench/text.hpp"
#include "tests/catch.hpp"

namespace packrnn::training {
namespace {

using Catch::Matchers::Contains;

/// A training of two parts, each of which adds 1 to a bias at every report.
struct Example {
  Context context{Device::cpu(), {.threads = 1}};
  Linear layer{{.in_features = 1, .out_features = 1, .seed = 5}};
  TrainingRun run{.models = {{"layer.", &layer.parameters()}},
                  .integers = {{"epoch", 0}},
                  .reals = {{"mine", 0.5}}};

  Session session(const Options& options, double hidden = 3.0) const {
    return {context,
            options,
            {.title = "an example",
             .columns = {"part", "epoch", "bias (value)"},
             .settings = {{"hidden", hidden}},
             .parts = 2}};
  }
  double bias() const { return layer.parameters().value("bias").values<float>()[0]; }
  void set_bias(float value) { layer.parameters().set("bias", Tensor::from({value}, {1})); }
  void report(Session& session, double part) {
    set_bias(static_cast<float>(bias() + 1.0));
    session.report(run, {part, static_cast<double>(++run.integers["epoch"]), bias()}, false);
  }
};

Options options(const bench::TemporaryFolder& folder) {
  Options result;
  result.checkpoint = folder.path() / "checkpoint";
  result.curve = folder.path() / "curve.csv";
  return result;
}

TEST_CASE("a session goes on where the checkpoint is") {
  const bench::TemporaryFolder folder("session_test");
  {
    Example first;
    Session session = first.session(options(folder));
    REQUIRE(session.resume(first.run, 0, "part 0"));
    first.set_bias(0.0F);
    first.report(session, 0);
    first.report(session, 0);
  }
  Example second;
  Session session = second.session(options(folder));
  REQUIRE(session.resume(second.run, 0, "part 0"));
  CHECK(second.bias() == 2.0);
  CHECK(second.run.integers == std::map<std::string, std::int64_t>{{"epoch", 2}});
  CHECK(second.run.reals == std::map<std::string, double>{{"mine", 0.5}});
  CHECK(session.curve().rows() == std::vector<std::vector<double>>{{0, 1, 1}, {0, 2, 2}});
  second.report(session, 0);
  CHECK_THAT(bench::read_text(folder.path() / "curve.csv", 1000),
             Contains("0,1,1\n0,2,2\n0,3,3\n"));

  // The next part begins anew, with the rows of the last one.
  Example third;
  Session next = third.session(options(folder));
  third.set_bias(10.0F);
  REQUIRE(next.resume(third.run, 1, "part 1"));
  CHECK(third.bias() == 10.0);
  CHECK(third.run.integers["epoch"] == 0);
  CHECK(next.curve().rows().size() == 3);
  third.report(next, 1);

  // And then the first part is over.
  Example fourth;
  Session last = fourth.session(options(folder));
  CHECK_FALSE(last.resume(fourth.run, 0, "part 0"));
  REQUIRE(last.resume(fourth.run, 1, "part 1"));
  CHECK(fourth.bias() == 11.0);
  CHECK(last.curve().rows().size() == 4);
}

TEST_CASE("a checkpoint of other settings is refused, and left as it is") {
  const bench::TemporaryFolder folder("session_test");
  const Options where = options(folder);
  Example example;
  {
    Session session = example.session(where);
    session.resume(example.run);
    example.report(session, 0);
  }
  const std::string before = bench::read_text(where.checkpoint, 100'000);
  CHECK_THROWS_WITH(example.session(where, 4.0),
                    Contains("was made with hidden = 3, this training has 4"));
  CHECK(bench::read_text(where.checkpoint, 100'000) == before);
  StateDict foreign;
  foreign.push_back({"something", Tensor::from({1.0F}, {1})});
  save_safetensors(where.checkpoint, foreign);
  CHECK_THROWS_WITH(example.session(where), Contains("was made with hidden = nothing"));
}

TEST_CASE("a session stops after as many reports as it was told, and writes no file unasked") {
  Example example;
  Options two;
  two.stop_after = 2;
  Session session = example.session(two);
  session.resume(example.run);
  CHECK_FALSE(session.stopped());
  example.report(session, 0);
  CHECK_FALSE(session.stopped());
  example.report(session, 0);
  CHECK(session.stopped());
  CHECK(session.say_stopped() == 0);
}

}  // namespace
}  // namespace packrnn::training

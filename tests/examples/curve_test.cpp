#include "docs/examples/training/curve.hpp"

#include <cmath>
#include <map>
#include <packrnn/runtime/error.hpp>
#include <string>

#include "bench/temporary_folder.hpp"
#include "bench/text.hpp"
#include "tests/catch.hpp"

namespace packrnn::training {
namespace {

Curve make() {
  return {{"a title", "a machine"},
          {"seed", "epoch", "train (loss)", "test (accuracy)"},
          {{"accuracy", 0.5, "chance"}}};
}

TEST_CASE("a curve is written with its title, levels and rows, whole numbers as such") {
  const bench::TemporaryFolder folder("curve_test");
  const std::string path = folder.path() / "curve.csv";
  Curve curve = make();
  curve.add({3, 1, 2.25, 0.125});
  curve.add({3, 2, 0.1234567, 1});
  curve.write(path);
  CHECK(bench::read_text(path, 1000) ==
        "# a title\n# a machine\n# level (accuracy) 0.5 chance\n"
        "seed,epoch,train (loss),test (accuracy)\n3,1,2.250000,0.125000\n3,2,0.123457,1\n");
  CHECK(curve.last() == "seed 3, epoch 2, train loss 0.1235, test accuracy 1");
  CHECK_THROWS_AS(curve.write(folder.path() / "absent" / "curve.csv"), FileError);
}

TEST_CASE("a row of another width is refused") {
  Curve curve = make();
  CHECK_THROWS_WITH(curve.add({1, 2, 3}), Catch::Matchers::Contains("3 numbers, expected 4"));
  CHECK(curve.rows().empty());
}

TEST_CASE("rows go through a checkpoint's numbers, and others stay there") {
  Curve curve = make(), other = make();
  curve.add({3, 1, 1.0 / 3.0, 0.25});
  curve.add({3, 2, std::exp(1.0), 0.5});
  std::map<std::string, double> numbers{{"rate", 0.1}};
  curve.put(numbers);
  CHECK(numbers.size() == 9);
  other.add({9, 9, 9, 9});
  other.take(numbers);
  CHECK(other.rows() == curve.rows());
  CHECK(numbers == std::map<std::string, double>{{"rate", 0.1}});
}

TEST_CASE("not a number and infinity are written as such") {
  Curve curve = make();
  curve.add({3, 1, std::nan(""), INFINITY});
  CHECK(curve.last() == "seed 3, epoch 1, train loss nan, test accuracy inf");
}

}  // namespace
}  // namespace packrnn::training

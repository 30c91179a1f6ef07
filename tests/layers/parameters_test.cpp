#include "packrnn/layers/parameters.hpp"

#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "packrnn/layers/safetensors.hpp"
#include "packrnn/runtime/buffer.hpp"
#include "packrnn/runtime/error.hpp"
#include "tests/catch.hpp"
#include "tests/layers/safetensors_files.hpp"

namespace packrnn::tests {
namespace {

using Catch::Contains;

Parameters cell(Dtype dtype = Dtype::f32) {
  return {{{"weight_ih_l0", Shape{3, 2}},
           {"weight_hh_l0", Shape{3, 3}},
           {"bias_ih_l0", Shape{3}},
           {"bias_hh_l0", Shape{3}}},
          dtype};
}

Tensor counting(Shape shape, float first) {
  std::vector<float> values(static_cast<std::size_t>(shape.elements()));
  std::iota(values.begin(), values.end(), first);
  return Tensor::from(values, shape);
}

StateDict good(const std::string& prefix = "") {
  StateDict state;
  state.push_back({prefix + "weight_ih_l0", counting(Shape{3, 2}, 1)});
  state.push_back({prefix + "weight_hh_l0", counting(Shape{3, 3}, 11)});
  state.push_back({prefix + "bias_ih_l0", counting(Shape{3}, 21)});
  state.push_back({prefix + "bias_hh_l0", counting(Shape{3}, 31)});
  return state;
}

std::vector<float> values_of(const Parameters& parameters) {
  std::vector<float> all;
  for (std::int64_t i = 0; i < parameters.count(); ++i) {
    const auto values = parameters.value(i).values<float>();
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

// The message of the refusal, having checked that the parameters did not notice.
std::string refusal(Parameters& parameters, const StateDict& state,
                    const LoadOptions& options = {}) {
  Generator generator(5);
  parameters.fill_uniform(generator, 1.0);
  const std::vector<float> before = values_of(parameters);
  const std::uint64_t version = parameters.version();
  std::string message;
  try {
    parameters.load(state, options);
  } catch (const InvalidArgument& error) {
    message = error.what();
  }
  CHECK(values_of(parameters) == before);
  CHECK(parameters.version() == version);
  return message;
}

TEST_CASE("parameters start as zeros, in order, each on an aligned address") {
  for (const Dtype dtype : {Dtype::f32, Dtype::f64, Dtype::f16, Dtype::bf16}) {
    const Parameters parameters = cell(dtype);
    CHECK(parameters.count() == 4);
    CHECK(parameters.name(1) == "weight_hh_l0");
    CHECK(parameters.value(1).shape() == Shape{3, 3});
    for (std::int64_t i = 0; i < parameters.count(); ++i) {
      const TensorView value = parameters.value(i);
      CHECK(value.dtype() == dtype);
      CHECK(reinterpret_cast<std::uintptr_t>(value.raw()) % kAlignment == 0);
      const Tensor as_double = convert(value, Dtype::f64);
      for (const double x : as_double.values<double>()) CHECK(x == 0.0);
    }
  }
  CHECK(Parameters().count() == 0);
  CHECK(Parameters({}, Dtype::f32).state_dict().empty());
}

TEST_CASE("declarations that make no sense are refused") {
  CHECK_THROWS_WITH(Parameters({{"a", Shape{1}}}, Dtype::i32), Contains("i32"));
  CHECK_THROWS_WITH(Parameters({{"a", Shape{1}}, {"a", Shape{2}}}, Dtype::f32),
                    Contains("two parameters are named a"));
  CHECK_THROWS_AS(Parameters({{"", Shape{1}}}, Dtype::f32), InvalidArgument);
  CHECK_THROWS_AS(Parameters({{"a", Shape{std::int64_t{1} << 60}}}, Dtype::f64), InvalidArgument);
}

TEST_CASE("names and numbers that do not exist are refused") {
  Parameters parameters = cell();
  CHECK_FALSE(parameters.contains("weight_ih_l1"));
  CHECK_THROWS_WITH(parameters.value("weight_ih_l1"),
                    Contains("\"weight_ih_l1\"") && Contains("weight_ih_l0, weight_hh_l0"));
  CHECK_THROWS_AS(parameters.set("nobody", counting(Shape{3}, 0)), InvalidArgument);
  CHECK_THROWS_WITH(parameters.value(4), Contains("4"));
  CHECK_THROWS_WITH(parameters.name(-1), Contains("-1"));
}

TEST_CASE("uniform values are one draw per parameter, within the bound") {
  Parameters parameters = cell();
  Generator generator(3);
  parameters.fill_uniform(generator, 0.5);
  CHECK(generator.position() == 4);
  Generator again(3);
  for (std::int64_t i = 0; i < parameters.count(); ++i) {
    Tensor expected = Tensor::zeros(parameters.value(i).shape(), Dtype::f32);
    fill_uniform(again, expected, -0.5, 0.5);
    for (std::size_t j = 0; j < expected.values<float>().size(); ++j) {
      CHECK(parameters.value(i).values<float>()[j] == expected.values<float>()[j]);
      CHECK(std::abs(expected.values<float>()[j]) <= 0.5F);
    }
  }
}

TEST_CASE("the version changes with every change, and only then") {
  Parameters parameters = cell();
  const std::uint64_t start = parameters.version();
  (void)parameters.state_dict();
  CHECK(parameters.version() == start);
  parameters.set("bias_ih_l0", counting(Shape{3}, 1));
  const std::uint64_t set = parameters.version();
  CHECK(set != start);
  parameters.load(good());
  const std::uint64_t loaded = parameters.version();
  CHECK(loaded != set);
  Generator generator(1);
  parameters.fill_uniform(generator, 1.0);
  CHECK(parameters.version() != loaded);
}

TEST_CASE("set assigns one parameter or nothing") {
  Parameters parameters = cell();
  parameters.set("bias_ih_l0", counting(Shape{3}, 7));
  CHECK(parameters.value("bias_ih_l0").values<float>()[2] == 9.0F);
  CHECK(parameters.value("bias_hh_l0").values<float>()[2] == 0.0F);
  parameters.set("bias_hh_l0", parameters.value("bias_ih_l0"));
  CHECK(parameters.value("bias_hh_l0").values<float>()[2] == 9.0F);
  parameters.set("bias_hh_l0", parameters.value("bias_hh_l0"));  // itself
  CHECK(parameters.value("bias_hh_l0").values<float>()[2] == 9.0F);

  const std::vector<float> before = values_of(parameters);
  const std::uint64_t version = parameters.version();
  CHECK_THROWS_WITH(parameters.set("bias_ih_l0", counting(Shape{1, 3}, 0)),
                    Contains("[1, 3], expected [3]"));
  CHECK_THROWS_WITH(parameters.set("bias_ih_l0", Tensor::zeros(Shape{3}, Dtype::i64)),
                    Contains("i64, expected a floating dtype"));
  CHECK_THROWS_WITH(parameters.set("bias_ih_l0", TensorView{}), Contains("not defined"));
  CHECK(values_of(parameters) == before);
  CHECK(parameters.version() == version);
}

TEST_CASE("a state dict is a copy in order, and loads back") {
  Parameters parameters = cell();
  parameters.load(good());
  StateDict state = parameters.state_dict("encoder.");
  REQUIRE(state.size() == 4);
  CHECK(state[3].name == "encoder.bias_hh_l0");
  CHECK(state[3].tensor.values<float>()[0] == 31.0F);
  state[3].tensor.values<float>()[0] = -1.0F;
  CHECK(parameters.value("bias_hh_l0").values<float>()[0] == 31.0F);

  Parameters other = cell();
  const LoadReport report = other.load(state, {.prefix = "encoder."});
  CHECK(report.missing.empty());
  CHECK(report.unexpected.empty());
  CHECK(other.value("bias_hh_l0").values<float>()[0] == -1.0F);
  CHECK(other.value("weight_hh_l0").values<float>()[8] == 19.0F);
}

TEST_CASE("a load converts floating dtypes and refuses integers") {
  for (const Dtype stored : {Dtype::f64, Dtype::f16, Dtype::bf16, Dtype::f32}) {
    StateDict state;
    for (const NamedTensor& item : good())
      state.push_back({item.name, convert(item.tensor, stored)});
    for (const Dtype ours : {Dtype::f32, Dtype::f64, Dtype::f16, Dtype::bf16}) {
      INFO(name_of(stored) << " to " << name_of(ours));
      Parameters parameters = cell(ours);
      parameters.load(state);
      const Tensor back = convert(parameters.value("weight_hh_l0"), Dtype::f32);
      for (std::size_t i = 0; i < 9; ++i)  // small whole numbers are exact in every dtype
        CHECK(back.values<float>()[i] == static_cast<float>(11 + i));
    }
  }
  Parameters parameters = cell();
  StateDict state = good();
  state[2].tensor = Tensor::zeros(Shape{3}, Dtype::i32);
  CHECK_THAT(refusal(parameters, state), Contains("bias_ih_l0 is i32"));
}

TEST_CASE("an f64 value is rounded once, to the nearest") {
  Parameters parameters({{"a", Shape{2}}}, Dtype::f32);
  StateDict state;
  state.push_back({"a", Tensor::from({0.1, 1.0 + 0x1.000002p-24}, Shape{2})});
  parameters.load(state);
  CHECK(parameters.value("a").values<float>()[0] == 0.1F);
  CHECK(parameters.value("a").values<float>()[1] == 1.0F + 0x1p-23F);
}

TEST_CASE("B78: everything that does not fit is listed at once, and nothing is loaded") {
  Parameters parameters = cell();
  StateDict state;
  state.push_back({"weight_ih_l0", counting(Shape{2, 3}, 1)});
  state.push_back({"weight_ih_l0_reverse", counting(Shape{3, 2}, 1)});
  state.push_back({"bias_ih_l0", counting(Shape{3}, 1)});
  state.push_back({"bias_ih_l0", counting(Shape{3}, 2)});
  state.push_back({"bias_ih_l1", counting(Shape{3}, 2)});
  state.push_back({"bias_hh_l0", Tensor{}});
  const std::string message = refusal(parameters, state);
  CHECK_THAT(message, Contains("missing: weight_hh_l0\n"));
  CHECK_THAT(message, Contains("unexpected: weight_ih_l0_reverse, bias_ih_l1\n"));
  CHECK_THAT(message, Contains("more than once: bias_ih_l0\n"));
  CHECK_THAT(message, Contains("weight_ih_l0 is [2, 3], expected [3, 2]"));
  CHECK_THAT(message, Contains("bias_hh_l0 is not defined"));
}

TEST_CASE("B78: missing _reverse tensors, extra tensors, a count that fits in another shape") {
  SECTION("missing") {
    Parameters both({{"weight_ih_l0", Shape{1, 1}}, {"weight_ih_l0_reverse", Shape{1, 1}}},
                    Dtype::f32);
    StateDict state;
    state.push_back({"weight_ih_l0", counting(Shape{1, 1}, 1)});
    CHECK_THAT(refusal(both, state), Contains("missing: weight_ih_l0_reverse"));
  }
  SECTION("extra") {
    Parameters parameters = cell();
    StateDict state = good();
    state.push_back({"weight_hr_l0", counting(Shape{1, 3}, 1)});
    CHECK_THAT(refusal(parameters, state), Contains("unexpected: weight_hr_l0"));
  }
  SECTION("six elements in every shape but the right one") {
    for (const Shape& shape : {Shape{2, 3}, Shape{6}, Shape{1, 6}, Shape{3, 2, 1}}) {
      Parameters parameters = cell();
      StateDict state = good();
      state[0].tensor = counting(shape, 1);
      CHECK_THAT(refusal(parameters, state),
                 Contains("weight_ih_l0 is " + shape.str() + ", expected [3, 2]"));
    }
  }
  SECTION("a square matrix arrives row by row") {
    Parameters parameters = cell();
    parameters.load(good());
    CHECK(parameters.value("weight_hh_l0").values<float>()[1] == 12.0F);
    CHECK(parameters.value("weight_hh_l0").values<float>()[3] == 14.0F);
  }
}

TEST_CASE("B78: prefixes") {
  Parameters parameters = cell();
  SECTION("names from a wrapper are not taken for ours, and the message says how") {
    const std::string message = refusal(parameters, good("module."));
    CHECK_THAT(message, Contains("missing: weight_ih_l0, weight_hh_l0, bias_ih_l0, bias_hh_l0"));
    CHECK_THAT(message, Contains("unexpected: module.weight_ih_l0"));
    CHECK_THAT(message, Contains("with the prefix \"module.\""));
  }
  SECTION("and back") {
    const std::string message = refusal(parameters, good(), {.prefix = "module."});
    CHECK_THAT(message, Contains("missing: module.weight_ih_l0"));
    CHECK_THAT(message, Contains("without a prefix"));
  }
  SECTION("other prefixes do not matter, but the own one is strict") {
    StateDict state = good("encoder.");
    state.push_back({"decoder.weight_ih_l0", counting(Shape{9}, 0)});
    state.push_back({"encode", counting(Shape{9}, 0)});
    parameters.load(state, {.prefix = "encoder."});
    CHECK(parameters.value("bias_hh_l0").values<float>()[0] == 31.0F);
    state.push_back({"encoder.extra", counting(Shape{9}, 0)});
    CHECK_THAT(refusal(parameters, state, {.prefix = "encoder."}),
               Contains("unexpected: encoder.extra"));
  }
}

TEST_CASE("B78: a load that is not strict reports, and never loads nothing") {
  Parameters parameters = cell();
  StateDict state = good();
  state.erase(state.begin());
  state.push_back({"other", counting(Shape{9}, 0)});
  const LoadReport report = parameters.load(state, {.strict = false});
  CHECK(report.missing == std::vector<std::string>{"weight_ih_l0"});
  CHECK(report.unexpected == std::vector<std::string>{"other"});
  CHECK(parameters.value("bias_hh_l0").values<float>()[0] == 31.0F);
  CHECK(parameters.value("weight_ih_l0").values<float>()[0] == 0.0F);

  CHECK_THAT(refusal(parameters, good("module."), {.strict = false}),
             Contains("nothing was loaded") && Contains("\"module.\""));
  CHECK_THAT(refusal(parameters, {}, {.strict = false}), Contains("missing: weight_ih_l0"));
  state[0].tensor = counting(Shape{3, 4}, 0);
  CHECK_THAT(refusal(parameters, state, {.strict = false}), Contains("[3, 4], expected [3, 3]"));
}

TEST_CASE("a very long list of names is cut") {
  StateDict state = good();
  for (int i = 0; i < 5000; ++i)
    state.push_back({"extra" + std::to_string(i), Tensor::zeros(Shape{}, Dtype::f32)});
  Parameters parameters = cell();
  const std::string message = refusal(parameters, state);
  CHECK_THAT(message, Contains("and 4900 more"));
  CHECK(message.size() < 3000);
}

TEST_CASE("parameters go through a file and come back the same") {
  const TemporaryFolder folder;
  Parameters parameters = cell();
  Generator generator(9);
  parameters.fill_uniform(generator, 0.7);
  save_safetensors(folder / "model", parameters.state_dict("rnn."), {{"format", "pt"}});
  const SafeTensors file = SafeTensors::open(folder / "model");
  Parameters back = cell();
  back.load(file.state_dict(), {.prefix = "rnn."});
  CHECK(values_of(back) == values_of(parameters));
  Parameters stripped = cell();
  stripped.load(file.state_dict("rnn."));
  CHECK(values_of(stripped) == values_of(parameters));
}

TEST_CASE("parameters move with their values") {
  Parameters parameters = cell();
  parameters.load(good());
  const TensorView before = parameters.value("bias_ih_l0");
  Parameters moved = std::move(parameters);
  CHECK(moved.value("bias_ih_l0").raw() == before.raw());
  CHECK(moved.value("bias_ih_l0").values<float>()[0] == 21.0F);
}

}  // namespace
}  // namespace packrnn::tests

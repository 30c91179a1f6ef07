#include "packrnn/layers/checkpoint.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "packrnn/layers/linear.hpp"
#include "packrnn/layers/safetensors.hpp"
#include "packrnn/runtime/error.hpp"
#include "tests/catch.hpp"
#include "tests/layers/host_calls.hpp"
#include "tests/layers/safetensors_files.hpp"

namespace packrnn::tests {
namespace {

using Catch::Contains;

/// Two layers that learn from random gradients. The first one's prefix is empty, and the names of
/// the second begin as other models' may.
struct Training {
  Dtype dtype;
  Linear body{{.in_features = 3, .out_features = 4, .dtype = dtype, .seed = 1}};
  Linear head{{.in_features = 4, .out_features = 2, .bias = false, .dtype = dtype, .seed = 2}};
  Adam optimizer{{&body.parameters(), &head.parameters()}, {.learning_rate = 0.1}};
  Generator generator{~std::uint64_t{7}};
  Context context = test_context();
  TrainingRun run{.models = {{"", &body.parameters()}, {"head.", &head.parameters()}},
                  .optimizer = &optimizer,
                  .generator = &generator,
                  .integers = {{"step", 0}},
                  .reals = {{"loss", std::numeric_limits<double>::infinity()}}};

  explicit Training(Dtype of = Dtype::f32) : dtype(of) {
    body.parameters().to(context);
    head.parameters().to(context);
  }
  void draw(const TensorSpan& gradients) {
    Tensor drawn = Tensor::empty(gradients.shape(), gradients.dtype());
    fill_uniform(generator, drawn, -1.0, 1.0);
    context.copy(context.to_device(drawn), gradients);
  }
  void train(int steps) {
    for (int i = 0; i < steps; ++i) {
      draw(body.parameters().gradients());
      draw(head.parameters().gradients());
      optimizer.step(context);
      ++run.integers["step"];
      run.reals["loss"] = 0.1 * static_cast<double>(run.integers["step"]);
    }
  }
  /// Everything there is, as the bytes of a file.
  std::string bytes() const {
    const TemporaryFolder folder;
    save_checkpoint(folder / "all", run);
    return read_file(folder / "all");
  }
};

TEST_CASE("a run resumed from a checkpoint has the bits of an uninterrupted one") {
  // 16 bits: with masters, of which the file has more bits than of the parameters.
  for (const Dtype dtype : {Dtype::f32, Dtype::f64, Dtype::f16, Dtype::bf16}) {
    CAPTURE(dtype);
    const TemporaryFolder folder;
    Training whole(dtype);
    whole.train(3);
    save_checkpoint(folder / "run.safetensors", whole.run);
    CHECK(folder.files() == 1);
    CHECK(SafeTensors::open(folder / "run.safetensors").contains("optimizer.0.master.weight") ==
          (size_of(dtype) == 2));
    whole.train(4);

    Training resumed(dtype);
    resumed.train(1);  // whatever it was before
    load_checkpoint(folder / "run.safetensors", resumed.run);
    CHECK(resumed.run.integers.at("step") == 3);
    CHECK(resumed.run.reals.at("loss") == 0.1 * 3.0);
    CHECK(resumed.generator.seed() == ~std::uint64_t{7});
    resumed.train(4);
    CHECK(resumed.bytes() == whole.bytes());

    Linear alone({.in_features = 4, .out_features = 2, .bias = false, .dtype = dtype});
    alone.load(SafeTensors::open(folder / "run.safetensors").state_dict("model.head."));
  }
}

TEST_CASE("a checkpoint of a GPU goes on, on the CPU") {
  if (!on_device()) PACKRNN_SKIP("there is only the CPU");
  const TemporaryFolder folder;
  Training whole;
  whole.train(3);
  save_checkpoint(folder / "run", whole.run);
  Training here;
  here.context = Context(Device::cpu(), {.threads = 1});
  here.body.parameters().to(here.context);
  here.head.parameters().to(here.context);
  load_checkpoint(folder / "run", here.run);
  CHECK(here.bytes() == whole.bytes());
  here.train(1);
  whole.train(1);
  CHECK(here.bytes() == whole.bytes());
}

TEST_CASE("models alone, and no numbers, are a checkpoint too") {
  const TemporaryFolder folder;
  const Linear from({.in_features = 2, .out_features = 2, .seed = 3});
  Linear to({.in_features = 2, .out_features = 2, .seed = 4});
  Linear source({.in_features = 2, .out_features = 2, .seed = 3});
  save_checkpoint(folder / "a", {.models = {{"m.", &source.parameters()}}});
  TrainingRun run{.models = {{"m.", &to.parameters()}}, .integers = {{"old", 1}}};
  load_checkpoint(folder / "a", run);
  CHECK(run.integers.empty());
  CHECK(std::ranges::equal(to.parameters().values().values<float>(),
                           from.parameters().values().values<float>()));
}

TEST_CASE("what of a checkpoint does not fit is named and changes nothing") {
  const TemporaryFolder folder;
  const auto path = folder / "run";
  Training training;
  training.train(2);
  const std::string before = training.bytes();
  const auto refusal = [&](const StateDict& state) -> std::string {
    save_safetensors(path, state);
    std::string message;
    try {
      load_checkpoint(path, training.run);
    } catch (const InvalidArgument& error) {
      message = error.what();
    }
    CHECK(training.bytes() == before);
    return message;
  };
  Training other;
  other.train(5);
  save_checkpoint(folder / "good", other.run);
  const SafeTensors good = SafeTensors::open(folder / "good");
  // The good file with one entry left out, replaced or added.
  const auto changed = [&](const std::string& name, Tensor replacement) {
    StateDict state = good.state_dict();
    std::erase_if(state, [&](const NamedTensor& item) { return item.name == name; });
    if (replacement.defined()) state.push_back({name, std::move(replacement)});
    return state;
  };
  const auto integer = [] { return Tensor::from<std::int64_t>({1}, Shape{}); };
  const auto real = [] { return Tensor::from<double>({1.0}, Shape{}); };

  CHECK_THAT(refusal(changed("model.head.weight", {})), Contains("head.") && Contains("weight"));
  CHECK_THAT(refusal(changed("model.bias", {})), Contains("missing: bias"));
  CHECK_THAT(refusal(changed("model.bias", real())), Contains("bias is [], expected [4]"));
  CHECK_THAT(refusal(changed("model.tail.weight", real())), Contains("model.tail.weight"));
  CHECK_THAT(refusal(changed("else", real())), Contains("else"));
  CHECK_THAT(refusal(changed("generator", {})), Contains("no generator"));
  CHECK_THAT(refusal(changed("generator", integer())), Contains("generator is i64 []"));
  CHECK_THAT(refusal(changed("integers.step", real())), Contains("step is f64"));
  CHECK_THAT(refusal(changed("reals.loss", integer())), Contains("loss is i64"));
  CHECK_THAT(refusal(changed("optimizer.0.steps", {})), Contains("0.steps"));
  CHECK_THAT(refusal(changed("optimizer.2.steps", integer())), Contains("tensors"));
  CHECK_THAT(refusal(changed("optimizer.1.second.weight", {})), Contains("1.second.weight"));

  training.run.optimizer = nullptr;
  CHECK_THROWS_WITH(load_checkpoint(folder / "good", training.run), Contains("optimizer."));
  training.run.optimizer = &training.optimizer;
  training.run.generator = nullptr;
  CHECK_THROWS_WITH(load_checkpoint(folder / "good", training.run), Contains("generator"));
  training.run.generator = &training.generator;
  CHECK_THROWS_AS(load_checkpoint(folder / "absent", training.run), FileError);
  CHECK(training.bytes() == before);
}

TEST_CASE("a checkpoint that cannot be written leaves the one before") {
  const TemporaryFolder folder;
  Training training;
  save_checkpoint(folder / "run", training.run);
  const std::string before = read_file(folder / "run");
  training.train(1);
  training.run.models[1].prefix = "";  // two of the same name
  CHECK_THROWS_WITH(save_checkpoint(folder / "run", training.run), Contains("model.weight"));
  training.run.models[1] = {"head.", nullptr};
  CHECK_THROWS_WITH(save_checkpoint(folder / "run", training.run), Contains("head."));
  CHECK_THROWS_WITH(load_checkpoint(folder / "run", training.run), Contains("head."));
  CHECK(read_file(folder / "run") == before);
  CHECK(folder.files() == 1);
}

}  // namespace
}  // namespace packrnn::tests

// Against PyTorch's own steps (tests/golden/optimizers_*), and what PyTorch does not promise: a
// skipped step changes nothing, threads change nothing, a resumed run is the same run.
#include "packrnn/layers/optimizers.hpp"

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "packrnn/layers/linear.hpp"
#include "packrnn/runtime/error.hpp"
#include "tests/catch.hpp"
#include "tests/golden/golden.hpp"

namespace packrnn::tests {
namespace {

using Catch::Contains;
using Make = std::function<std::unique_ptr<Optimizer>(const std::vector<Parameters*>&)>;

Context cpu(int threads = 1) { return Context(Device::cpu(), {.threads = threads}); }

template <class T>
std::vector<T> copy(const TensorView& tensor) {
  const auto values = tensor.values<T>();
  return {values.begin(), values.end()};
}

/// Gradient number k of a run, different for every element.
void set_gradients(Parameters& parameters, int k) {
  for (std::int64_t i = 0; i < parameters.count(); ++i) {
    const TensorSpan gradient = parameters.gradient(i);
    for (std::int64_t j = 0; j < gradient.elements(); ++j) {
      const double g = std::sin(0.7 * static_cast<double>(j) + 1.3 * k + static_cast<double>(i));
      if (gradient.dtype() == Dtype::f64)
        gradient.values<double>()[static_cast<std::size_t>(j)] = g;
      else
        gradient.values<float>()[static_cast<std::size_t>(j)] = static_cast<float>(g);
    }
  }
}

Linear layer(std::int64_t width = 3, Dtype dtype = Dtype::f32) {
  return Linear({.in_features = width, .out_features = 4, .dtype = dtype, .seed = 5});
}

Make sgd(SgdOptions options) {
  return [=](const auto& sets) { return std::make_unique<Sgd>(sets, options); };
}
Make adam(AdamOptions options) {
  return [=](const auto& sets) { return std::make_unique<Adam>(sets, options); };
}

std::vector<Make> all_kinds() {
  return {sgd({.learning_rate = 0.1}), sgd({.learning_rate = 0.1, .momentum = 0.9}),
          sgd({.learning_rate = 0.1,
               .momentum = 0.8,
               .nesterov = true,
               .weight_decay = 0.1,
               .decoupled_decay = true}),
          adam({.learning_rate = 0.01, .weight_decay = 0.1}),
          adam({.learning_rate = 0.01, .weight_decay = 0.1, .decoupled_decay = true})};
}

TEST_CASE("steps are PyTorch's") {
  struct Case {
    std::string file;
    Make make;
    double max_norm;
  };
  const double none = std::numeric_limits<double>::infinity();
  const std::vector<Case> cases = {
      {"sgd", sgd({.learning_rate = 0.1, .weight_decay = 0.05}), none},
      {"sgd_momentum", sgd({.learning_rate = 0.1, .momentum = 0.9}), 2.0},
      {"sgd_nesterov",
       sgd({.learning_rate = 0.1, .momentum = 0.8, .nesterov = true, .weight_decay = 0.05}), none},
      {"adam",
       adam(
           {.learning_rate = 0.02, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-3, .weight_decay = 0.05}),
       none},
      {"adamw", adam({.learning_rate = 0.02, .weight_decay = 0.1, .decoupled_decay = true}), 2.0},
  };
  Context context = cpu();
  for (const Case& one : cases) {
    INFO(one.file);
    const golden::File file = golden::read(std::string(PACKRNN_SOURCE_DIR "/tests/golden/") +
                                           "optimizers_" + one.file + ".safetensors");
    for (const Dtype dtype : {Dtype::f64, Dtype::f32}) {
      const double tolerance = dtype == Dtype::f64 ? 1e-12 : 2e-5;
      Parameters parameters({{"weight", {6}}}, dtype);
      parameters.set("weight", Tensor::from(file.at("values.0").value, {6}));
      const auto optimizer = one.make({&parameters});
      for (int k = 1; k <= 7; ++k) {
        const std::string number = std::to_string(k);
        if (k == 5) optimizer->set_learning_rate(0.5 * optimizer->learning_rate());
        // A loss scale of 4 is exact, and has to make no difference.
        std::vector<double> gradient = file.at("gradients." + number).value;
        for (double& g : gradient) g *= 4.0;
        convert_into(Tensor::from(gradient, {6}), parameters.gradient("weight"));
        const StepReport report =
            optimizer->step(context, {.loss_scale = 4.0, .max_norm = one.max_norm});
        CHECK_FALSE(report.skipped);
        CHECK(std::abs(report.gradient_norm - file.at("norm." + number).value[0]) <
              tolerance * report.gradient_norm);
        const Tensor got = convert(parameters.value("weight"), Dtype::f64);
        for (std::size_t i = 0; i < 6; ++i)
          CHECK(std::abs(got.values<double>()[i] - file.at("values." + number).value[i]) <
                tolerance);
      }
    }
  }
}

TEST_CASE("a step with an Inf or NaN is skipped and leaves every bit") {
  Context context = cpu();
  for (const Make& make : all_kinds())
    for (const float bad :
         {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
          std::numeric_limits<float>::quiet_NaN()}) {
      Linear a = layer(), b = layer(5);
      const auto optimizer = make({&a.parameters(), &b.parameters()});
      set_gradients(a.parameters(), 1);
      set_gradients(b.parameters(), 1);
      CHECK_FALSE(optimizer->step(context).skipped);
      b.parameters().gradient("bias").values<float>()[3] = bad;
      const auto before_a = copy<float>(a.parameters().values());
      const auto before_b = copy<float>(b.parameters().values());
      const auto gradients = copy<float>(a.parameters().gradients());
      const auto version = a.parameters().version();
      const StateDict state = optimizer->state_dict();
      const StepReport report =
          optimizer->step(context, {.loss_scale = 8.0, .max_norm = 1.0, .max_value = 0.1});
      CHECK(report.skipped);
      CHECK_FALSE(std::isfinite(report.gradient_norm));
      CHECK(copy<float>(a.parameters().values()) == before_a);
      CHECK(copy<float>(b.parameters().values()) == before_b);
      CHECK(copy<float>(a.parameters().gradients()) == gradients);
      CHECK(a.parameters().version() == version);
      const StateDict after = optimizer->state_dict();
      REQUIRE(after.size() == state.size());
      for (std::size_t i = 0; i < state.size(); ++i)
        CHECK(std::memcmp(after[i].tensor.view().raw(), state[i].tensor.view().raw(),
                          state[i].tensor.view().bytes()) == 0);
    }
}

TEST_CASE("clipping limits the common norm, then each element") {
  Context context = cpu();
  Parameters a({{"x", {2}}}, Dtype::f64), b({{"x", {1}}}, Dtype::f64);
  Sgd optimizer({&a, &b}, {.learning_rate = 1.0});
  const auto assign = [&] {
    a.gradient("x").values<double>()[0] = 2.0;
    a.gradient("x").values<double>()[1] = -3.0;
    b.gradient("x").values<double>()[0] = 6.0;
  };
  assign();
  CHECK(optimizer.step(context, {.max_norm = 100.0}).gradient_norm == 7.0);  // 4 + 9 + 36
  CHECK(copy<double>(a.value("x")) == std::vector{-2.0, 3.0});
  assign();
  CHECK(optimizer.step(context, {.max_norm = 3.5, .max_value = 1.25}).gradient_norm == 7.0);
  CHECK(std::abs(a.gradient("x").values<double>()[0] - 1.0) < 1e-6);
  CHECK(a.gradient("x").values<double>()[1] == -1.25);
  CHECK(b.gradient("x").values<double>()[0] == 1.25);
  CHECK(b.value("x").values<double>()[0] == -7.25);
}

TEST_CASE("threads change no bit") {
  for (const Make& make : all_kinds()) {
    std::vector<std::vector<float>> results;
    std::vector<double> norms;
    for (const int threads : {1, 2, 3}) {
      Context context = cpu(threads);
      Linear big = layer(70'001);  // more than one thread's worth, and no whole number of blocks
      const auto optimizer = make({&big.parameters()});
      for (int k = 0; k < 2; ++k) {
        set_gradients(big.parameters(), k);
        norms.push_back(
            optimizer->step(context, {.max_norm = 3.0, .max_value = 0.01}).gradient_norm);
      }
      results.push_back(copy<float>(big.parameters().values()));
    }
    CHECK(results[0] == results[1]);
    CHECK(results[0] == results[2]);
    for (std::size_t i = 2; i < norms.size(); ++i) CHECK(norms[i] == norms[i - 2]);
  }
}

TEST_CASE("an optimizer with a loaded state goes on with the same bits") {
  Context context = cpu();
  for (const Make& make : all_kinds()) {
    const auto run = [&](Linear& model, Optimizer& optimizer, int from, int to) {
      for (int k = from; k < to; ++k) {
        optimizer.zero_gradients();
        set_gradients(model.parameters(), k);
        optimizer.step(context);
      }
    };
    Linear whole = layer();
    const auto one = make({&whole.parameters()});
    run(whole, *one, 0, 3);
    one->set_learning_rate(0.05);
    const StateDict values = whole.state_dict(), state = one->state_dict();
    run(whole, *one, 3, 6);

    Linear again = layer();
    again.load(values);
    const auto other = make({&again.parameters()});
    other->load(state);
    CHECK(other->learning_rate() == 0.05);
    run(again, *other, 3, 6);
    CHECK(copy<float>(again.parameters().values()) == copy<float>(whole.parameters().values()));
  }
}

TEST_CASE("what is frozen, or had no backward, stays") {
  Context context = cpu();
  Linear trained = layer(), frozen = layer(), unused = layer();
  Adam optimizer({&trained.parameters(), &frozen.parameters(), &unused.parameters()},
                 {.weight_decay = 0.1});
  const auto before = copy<float>(trained.parameters().values());
  set_gradients(trained.parameters(), 1);
  set_gradients(frozen.parameters(), 1);
  frozen.parameters().set_trainable(false);
  frozen.parameters().gradient("bias").values<float>()[0] = NAN;
  CHECK_FALSE(optimizer.step(context).skipped);
  CHECK(copy<float>(trained.parameters().values()) != before);
  CHECK(copy<float>(frozen.parameters().values()) == before);
  CHECK(copy<float>(unused.parameters().values()) == before);
  optimizer.zero_gradients();
  for (const float g : trained.parameters().gradients().values<float>()) CHECK(g == 0.0F);
  CHECK(frozen.parameters().gradient("bias").values<float>()[0] == 0.0F);
}

TEST_CASE("decay is for the parameters that the predicate names") {
  Context context = cpu();
  for (const bool decoupled : {false, true}) {
    Linear model = layer();
    model.parameters().gradients();  // zeros: decay alone is left
    const auto weight = copy<float>(model.parameters().value("weight"));
    const auto bias = copy<float>(model.parameters().value("bias"));
    Sgd optimizer({&model.parameters()},
                  {.learning_rate = 0.5,
                   .weight_decay = 0.5,
                   .decoupled_decay = decoupled,
                   .decays = [](std::string_view name) { return name != "bias"; }});
    optimizer.step(context);
    CHECK(copy<float>(model.parameters().value("bias")) == bias);
    for (std::size_t i = 0; i < weight.size(); ++i)
      CHECK(model.parameters().value("weight").values<float>()[i] == 0.75F * weight[i]);
  }
}

TEST_CASE("the optimizer follows a layer that is moved") {
  Context context = cpu();
  Linear first = layer();
  Sgd optimizer({&first.parameters()}, {.learning_rate = 0.5});
  Linear moved = std::move(first);
  const auto before = copy<float>(moved.parameters().values());
  set_gradients(moved.parameters(), 1);
  optimizer.step(context);
  CHECK(copy<float>(moved.parameters().values()) != before);
}

TEST_CASE("options of optimizers out of range are named") {
  Parameters set({{"x", {2}}}, Dtype::f32), half({{"x", {2}}}, Dtype::f16);
  CHECK_THROWS_WITH(Sgd({&set}, {.learning_rate = -0.5}),
                    Contains("learning_rate") && Contains("-0.5"));
  CHECK_THROWS_WITH(Sgd({&set}, {.momentum = 1.0}), Contains("momentum is 1"));
  CHECK_THROWS_WITH(Sgd({&set}, {.nesterov = true}), Contains("nesterov"));
  CHECK_THROWS_WITH(Adam({&set}, {.beta1 = 1.5}), Contains("beta1 is 1.5"));
  CHECK_THROWS_WITH(Adam({&set}, {.beta2 = -1.0}), Contains("beta2 is -1"));
  CHECK_THROWS_WITH(Adam({&set}, {.eps = NAN}), Contains("eps is nan"));
  CHECK_THROWS_WITH(Adam({&set}, {.weight_decay = -2.0}), Contains("weight_decay is -2"));
  CHECK_THROWS_WITH(Adam({&set, &set}), Contains("parameters[0] and parameters[1]"));
  CHECK_THROWS_WITH(Adam({&set, nullptr}), Contains("parameters[1] is null"));
  CHECK_THROWS_AS(Adam({&half}), Unsupported);

  Context context = cpu();
  Sgd optimizer({&set});
  set.gradient("x").values<float>()[0] = 1.0F;
  CHECK_THROWS_WITH(optimizer.step(context, {.loss_scale = 0.0}), Contains("loss_scale is 0"));
  CHECK_THROWS_WITH(optimizer.step(context, {.max_norm = -1.0}), Contains("max_norm is -1"));
  CHECK_THROWS_WITH(optimizer.step(context, {.max_value = NAN}), Contains("max_value is nan"));
  CHECK_THROWS_WITH(optimizer.set_learning_rate(INFINITY), Contains("learning_rate is inf"));
  CHECK(set.value("x").values<float>()[0] == 0.0F);
}

TEST_CASE("a state of another optimizer is refused and changes nothing") {
  Context context = cpu();
  Linear model = layer(), other = layer(7);
  Adam optimizer({&model.parameters()});
  set_gradients(model.parameters(), 1);
  optimizer.step(context);
  const auto refusal = [&](const StateDict& state) -> std::string {
    try {
      optimizer.load(state);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "";
  };
  CHECK_THAT(refusal({}), Contains("learning_rate"));
  CHECK_THAT(refusal(Sgd({&model.parameters()}).state_dict()), Contains("0.first.weight"));
  CHECK_THAT(refusal(Adam({&other.parameters()}).state_dict()), Contains("0.first.weight is"));
  CHECK_THAT(refusal(Adam({&model.parameters(), &other.parameters()}).state_dict()),
             Contains("tensors"));
  StateDict negative = optimizer.state_dict();
  negative[1].tensor = Tensor::from<std::int64_t>({-1}, Shape{});
  CHECK_THAT(refusal(negative), Contains("0.steps is -1"));
  StateDict wrong = optimizer.state_dict();
  wrong[0].tensor = Tensor::from<std::int64_t>({1}, Shape{});
  CHECK_THAT(refusal(wrong), Contains("learning_rate is i64"));
  const StateDict state = optimizer.state_dict();
  CHECK(state[1].name == "0.steps");
  CHECK(state[1].tensor.values<std::int64_t>()[0] == 1);
  CHECK(state[2].name == "0.first.weight");
}

TEST_CASE("the loss scale halves at once and doubles after an interval") {
  LossScaler scaler({.interval = 3});
  CHECK(scaler.scale() == 65536.0);
  const StepReport good, bad{.skipped = true};
  scaler.update(good);
  scaler.update(good);
  scaler.update(bad);
  CHECK(scaler.scale() == 32768.0);
  for (int i = 0; i < 2; ++i) scaler.update(good);
  CHECK(scaler.scale() == 32768.0);
  CHECK(scaler.good_steps() == 2);
  LossScaler resumed({.interval = 3});
  resumed.restore(scaler.scale(), scaler.good_steps());
  resumed.update(good);
  CHECK(resumed.scale() == 65536.0);
  CHECK(resumed.good_steps() == 0);
  CHECK_THROWS_WITH(LossScaler({.initial = 0.0}), Contains("scale is 0"));
  CHECK_THROWS_WITH(LossScaler({.growth = 0.5}), Contains("growth is 0.5"));
  CHECK_THROWS_WITH(LossScaler({.backoff = 2.0}), Contains("backoff is 2"));
  CHECK_THROWS_WITH(LossScaler({.interval = 0}), Contains("interval is 0"));
  CHECK_THROWS_WITH(resumed.restore(1.0, -1), Contains("good_steps is -1"));
}

}  // namespace
}  // namespace packrnn::tests

// Against PyTorch's own steps (tests/golden/optimizers_*), and what PyTorch does not promise: a
// skipped step changes nothing, threads change nothing, a resumed run is the same run.
#include "packrnn/layers/optimizers.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "packrnn/layers/linear.hpp"
#include "packrnn/layers/losses.hpp"
#include "packrnn/runtime/error.hpp"
#include "packrnn/runtime/gpu.hpp"
#include "tests/golden/golden.hpp"
#include "tests/layers/layer_fixture.hpp"
#include "tests/packing_cases.hpp"

namespace packrnn::tests {
namespace {

using Catch::Contains;
using Make = std::function<std::unique_ptr<Optimizer>(const std::vector<Parameters*>&)>;

/// Parameters in the memory of the device under test.
Parameters parameters_on(Context& context, std::vector<Parameters::Declaration> list,
                         Dtype dtype = Dtype::f32) {
  Parameters parameters(std::move(list), dtype);
  parameters.to(context);
  return parameters;
}
Linear layer(Context& context, std::int64_t width = 3, Dtype dtype = Dtype::f32) {
  Linear linear({.in_features = width, .out_features = 4, .dtype = dtype, .seed = 5});
  linear.parameters().to(context);
  return linear;
}

std::vector<std::byte> bytes(Context& context, const TensorView& tensor) {
  return bytes_of(context.to_host(tensor));
}
Doubles numbers(Context& context, const TensorView& tensor) {
  return doubles_of(context.to_host(tensor));
}
void assign(Context& context, const TensorSpan& tensor, const Doubles& values) {
  context.copy(context.to_device(tensor_of(values, tensor.shape(), tensor.dtype())), tensor);
}
/// One element.
void assign(Context& context, const TensorSpan& tensor, std::size_t i, double value) {
  Doubles values = numbers(context, tensor);
  values[i] = value;
  assign(context, tensor, values);
}

/// Gradient number k of a run, different for every element.
void set_gradients(Context& context, Parameters& parameters, int k) {
  for (std::int64_t i = 0; i < parameters.count(); ++i) {
    const TensorSpan gradient = parameters.gradient(i);
    Doubles values;
    for (std::int64_t j = 0; j < gradient.elements(); ++j)
      values.push_back(std::sin(0.7 * static_cast<double>(j) + 1.3 * k + static_cast<double>(i)));
    assign(context, gradient, values);
  }
}

/// Those that a parameter may have and the device trains: with a master copy for 16 bits.
constexpr std::array kDtypes{Dtype::f32, Dtype::f64, Dtype::f16, Dtype::bf16};

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

bool same_state(const StateDict& a, const StateDict& b) {
  return std::ranges::equal(a, b, [](const NamedTensor& left, const NamedTensor& right) {
    return left.name == right.name && same_bits(left.tensor, right.tensor);
  });
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
  Context context = test_context();
  for (const Case& one : cases) {
    INFO(one.file);
    const golden::File file = golden::read(std::string(PACKRNN_SOURCE_DIR "/tests/golden/") +
                                           "optimizers_" + one.file + ".safetensors");
    for (const Dtype dtype : {Dtype::f64, Dtype::f32}) {
      const double tolerance = dtype == Dtype::f64 ? 1e-12 : 2e-5;
      Parameters parameters = parameters_on(context, {{"weight", {6}}}, dtype);
      parameters.set("weight", Tensor::from(file.at("values.0").value, {6}));
      const auto optimizer = one.make({&parameters});
      for (int k = 1; k <= 7; ++k) {
        const std::string number = std::to_string(k);
        if (k == 5) optimizer->set_learning_rate(0.5 * optimizer->learning_rate());
        // A loss scale of 4 is exact, and has to make no difference.
        std::vector<double> gradient = file.at("gradients." + number).value;
        for (double& g : gradient) g *= 4.0;
        assign(context, parameters.gradient("weight"), gradient);
        const StepReport report =
            optimizer->step(context, {.loss_scale = 4.0, .max_norm = one.max_norm});
        CHECK_FALSE(report.skipped);
        CHECK(std::abs(report.gradient_norm - file.at("norm." + number).value[0]) <
              tolerance * report.gradient_norm);
        const Doubles got = numbers(context, parameters.value("weight"));
        for (std::size_t i = 0; i < 6; ++i)
          CHECK(std::abs(got[i] - file.at("values." + number).value[i]) < tolerance);
      }
    }
  }
}

TEST_CASE("a step with an Inf or NaN is skipped and leaves every bit") {
  Context context = test_context();
  for (const Make& make : all_kinds())
    for (const Dtype dtype : kDtypes)
      for (const double bad :
           {std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(),
            std::numeric_limits<double>::quiet_NaN()}) {
        Linear a = layer(context, 3, dtype), b = layer(context, 5, dtype);
        const auto optimizer = make({&a.parameters(), &b.parameters()});
        set_gradients(context, a.parameters(), 1);
        set_gradients(context, b.parameters(), 1);
        CHECK_FALSE(optimizer->step(context).skipped);
        assign(context, b.parameters().gradient("bias"), 3, bad);
        const auto before_a = bytes(context, a.parameters().values());
        const auto before_b = bytes(context, b.parameters().values());
        const auto gradients = bytes(context, a.parameters().gradients());
        const auto version = a.parameters().version();
        const StateDict state = optimizer->state_dict();
        const StepReport report =
            optimizer->step(context, {.loss_scale = 8.0, .max_norm = 1.0, .max_value = 0.1});
        CHECK(report.skipped);
        CHECK_FALSE(std::isfinite(report.gradient_norm));
        CHECK(bytes(context, a.parameters().values()) == before_a);
        CHECK(bytes(context, b.parameters().values()) == before_b);
        CHECK(bytes(context, a.parameters().gradients()) == gradients);
        CHECK(a.parameters().version() == version);
        CHECK(same_state(optimizer->state_dict(), state));
      }
}

TEST_CASE("clipping limits the common norm, then each element") {
  Context context = test_context();
  Parameters a = parameters_on(context, {{"x", {2}}}, Dtype::f64),
             b = parameters_on(context, {{"x", {1}}}, Dtype::f64);
  Sgd optimizer({&a, &b}, {.learning_rate = 1.0});
  const auto set = [&] {
    assign(context, a.gradient("x"), {2.0, -3.0});
    assign(context, b.gradient("x"), {6.0});
  };
  set();
  CHECK(optimizer.step(context, {.max_norm = 100.0}).gradient_norm == 7.0);  // 4 + 9 + 36
  CHECK(numbers(context, a.value("x")) == Doubles{-2.0, 3.0});
  set();
  CHECK(optimizer.step(context, {.max_norm = 3.5, .max_value = 1.25}).gradient_norm == 7.0);
  CHECK(std::abs(numbers(context, a.gradient("x"))[0] - 1.0) < 1e-6);
  CHECK(numbers(context, a.gradient("x"))[1] == -1.25);
  CHECK(numbers(context, b.gradient("x"))[0] == 1.25);
  CHECK(numbers(context, b.value("x"))[0] == -7.25);
}

TEST_CASE("threads change no bit") {
  if (on_device()) PACKRNN_SKIP("a GPU has none");
  for (const Make& make : all_kinds()) {
    std::vector<std::vector<std::byte>> results;
    std::vector<double> norms;
    for (const int threads : {1, 2, 3}) {
      Context context = test_context(threads);
      // More than one thread's worth, and no whole number of blocks.
      Linear big = layer(context, 70'001);
      const auto optimizer = make({&big.parameters()});
      for (int k = 0; k < 2; ++k) {
        set_gradients(context, big.parameters(), k);
        norms.push_back(
            optimizer->step(context, {.max_norm = 3.0, .max_value = 0.01}).gradient_norm);
      }
      results.push_back(bytes(context, big.parameters().values()));
    }
    CHECK(results[0] == results[1]);
    CHECK(results[0] == results[2]);
    for (std::size_t i = 2; i < norms.size(); ++i) CHECK(norms[i] == norms[i - 2]);
  }
}

TEST_CASE("a step on a GPU has the bits of one on the CPU, and waits once") {
  if (!on_device()) PACKRNN_SKIP("there is only the CPU");
  for (const Make& make : all_kinds())
    for (const Dtype dtype : kDtypes) {
      Context gpu = test_context(), cpu = Context(Device::cpu(), {.threads = 1});
      Linear there = layer(gpu, 3, dtype), here = layer(cpu, 3, dtype);
      const auto far = make({&there.parameters()}), near = make({&here.parameters()});
      // What bringing one tensor to the host counts as.
      const Tensor one = gpu.zeros({1}, Dtype::f64);
      const std::int64_t waits = gpu::waits();
      gpu.to_host(one);
      const std::int64_t once = gpu::waits() - waits;
      for (int k = 0; k < 3; ++k) {
        set_gradients(gpu, there.parameters(), k);
        set_gradients(cpu, here.parameters(), k);
        const StepOptions options{.loss_scale = 2.0, .max_value = 0.4};  // no part of the norm
        near->step(cpu, options);
        const std::int64_t before = gpu::waits();
        far->step(gpu, options);
        CHECK(gpu::waits() == before + once);
        CHECK(bytes(gpu, there.parameters().values()) == bytes(cpu, here.parameters().values()));
      }
      CHECK(same_state(far->state_dict(), near->state_dict()));
    }
}

TEST_CASE("an optimizer with a loaded state goes on with the same bits") {
  Context context = test_context();
  for (const Make& make : all_kinds())
    for (const Dtype dtype : kDtypes) {
      const auto run = [&](Linear& model, Optimizer& optimizer, int from, int to) {
        for (int k = from; k < to; ++k) {
          optimizer.zero_gradients();
          set_gradients(context, model.parameters(), k);
          optimizer.step(context);
        }
      };
      Linear whole = layer(context, 3, dtype);
      const auto one = make({&whole.parameters()});
      run(whole, *one, 0, 3);
      one->set_learning_rate(0.05);
      const StateDict values = whole.state_dict(), state = one->state_dict();
      run(whole, *one, 3, 6);

      Linear again = layer(context, 3, dtype);
      const auto other = make({&again.parameters()});
      run(again, *other, 0, 1);  // whatever it was before
      again.load(values);
      other->load(state);
      CHECK(other->learning_rate() == 0.05);
      run(again, *other, 3, 6);
      CHECK(bytes(context, again.parameters().values()) ==
            bytes(context, whole.parameters().values()));
      CHECK(same_state(other->state_dict(), one->state_dict()));
    }
}

TEST_CASE("parameters of 16 bits learn from steps that they could not take by themselves") {
  Context context = test_context();
  for (const Dtype dtype : {Dtype::f16, Dtype::bf16}) {
    Parameters half = parameters_on(context, {{"x", {3}}}, dtype);
    half.set("x", Tensor::from({1.0, 1.0, 1.0}, {3}));
    Sgd optimizer({&half}, {.learning_rate = 0x1p-14});  // 1 - 2^-14 is 1 in both
    assign(context, half.gradient("x"), {1.0, 0.0, -1.0});
    for (int i = 0; i < 1024; ++i) optimizer.step(context);
    CHECK(numbers(context, half.value("x")) == Doubles{0.9375, 1.0, 1.0625});
    const StateDict state = optimizer.state_dict();
    REQUIRE(state.size() == 3);
    CHECK(state[2].name == "0.master.x");
    CHECK(state[2].tensor.dtype() == Dtype::f32);
    CHECK(doubles_of(state[2].tensor) == Doubles{0.9375, 1.0, 1.0625});
  }
}

TEST_CASE("what is assigned to parameters of 16 bits is what the next step starts from") {
  Context context = test_context();
  for (const Dtype dtype : {Dtype::f16, Dtype::bf16}) {
    Parameters half = parameters_on(context, {{"x", {2}}}, dtype);
    Sgd optimizer({&half}, {.learning_rate = 1.0});
    half.set("x", Tensor::from({5.0, -3.0}, {2}));
    assign(context, half.gradient("x"), {1.0, 0x1p-20});
    optimizer.step(context);
    CHECK(numbers(context, half.value("x")) == Doubles{4.0, -3.0});
    // The second master is not quite -3, and stays so.
    CHECK(doubles_of(optimizer.state_dict()[2].tensor) == Doubles{4.0, -3.0 - 0x1p-20});
  }
}

TEST_CASE("a loss scale for 16 bits grows until a gradient overflows, and backs off") {
  Context context = test_context();
  Parameters half = parameters_on(context, {{"x", {1}}}, Dtype::f16);
  Sgd optimizer({&half}, {.learning_rate = 0x1p-4});
  LossScaler scaler({.initial = 0x1p12, .interval = 1});
  int skipped = 0;
  for (int i = 0; i < 8; ++i) {
    // What a backward in f16 would give: beyond 65504 it is infinite.
    const double gradient = 4.0 * scaler.scale();
    assign(context, half.gradient("x"),
           {gradient > 65504 ? std::numeric_limits<double>::infinity() : gradient});
    const double before = numbers(context, half.value("x"))[0];
    const StepReport report = optimizer.step(context, {.loss_scale = scaler.scale()});
    CHECK(numbers(context, half.value("x"))[0] == before - (report.skipped ? 0.0 : 0.25));
    skipped += report.skipped ? 1 : 0;
    scaler.update(report);
  }
  CHECK(skipped == 3);
  CHECK(scaler.scale() == 0x1p14);
}

TEST_CASE("moments follow parameters to where they move, and other devices are named") {
  if (!on_device()) PACKRNN_SKIP("there is only the CPU");
  Context gpu = test_context(), cpu = Context(Device::cpu(), {.threads = 1});
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16}) {
    Linear model = layer(cpu, 3, dtype), stays = layer(cpu, 3, dtype);
    Adam optimizer({&model.parameters()}), other({&stays.parameters()});
    Context* const way[] = {&cpu, &gpu, &gpu, &cpu};
    for (int k = 0; k < 4; ++k) {
      model.parameters().to(*way[k]);
      set_gradients(*way[k], model.parameters(), k);
      set_gradients(cpu, stays.parameters(), k);
      Context& wrong = way[k] == &cpu ? gpu : cpu;
      const auto before = bytes(*way[k], model.parameters().values());
      check_refused("context elsewhere", [&] { optimizer.step(wrong); },
                    {"the parameters are on " + way[k]->device().name(),
                     "the context on " + wrong.device().name()});
      CHECK(bytes(*way[k], model.parameters().values()) == before);
      optimizer.step(*way[k]);
      other.step(cpu);
    }
    CHECK(bytes(cpu, model.parameters().values()) == bytes(cpu, stays.parameters().values()));
    CHECK(same_state(optimizer.state_dict(), other.state_dict()));
  }
}

TEST_CASE("a step on another stream waits for that of the parameters") {
  if (!on_device()) PACKRNN_SKIP("the CPU is never late");
  Context a = test_context(), b = test_context();
  for (int round = 0; round < 10; ++round) {
    Linear one = layer(a), two = layer(a);
    Adam same(std::vector<Parameters*>{&one.parameters()}),
        other(std::vector<Parameters*>{&two.parameters()});
    for (int k = 0; k < 2; ++k) {
      set_gradients(a, two.parameters(), k);
      other.step(k == 0 ? a : b);  // while a may not have begun
      set_gradients(a, one.parameters(), k);
      same.step(a);
    }
    a.wait_for(b);
    CHECK(bytes(a, one.parameters().values()) == bytes(a, two.parameters().values()));
  }
}

TEST_CASE("a step after a target out of range changes nothing and says so") {
  if (!on_device()) PACKRNN_SKIP("the CPU refuses it at once");
  Context context = test_context();
  Linear model = layer(context);
  Sgd optimizer({&model.parameters()}, {.learning_rate = 0.5});
  set_gradients(context, model.parameters(), 1);
  const auto before = bytes(context, model.parameters().values());
  Tape tape(context);
  cross_entropy(tape, tape.input(context.zeros({2, 3}, Dtype::f32)),
                context.to_device(Tensor::from<std::int64_t>({0, 3}, {2})));
  check_refused("target", [&] { optimizer.step(context); }, {"targets[1] is 3"});
  CHECK(bytes(context, model.parameters().values()) == before);
}

TEST_CASE("what is frozen, or had no backward, stays") {
  Context context = test_context();
  Linear trained = layer(context), frozen = layer(context), unused = layer(context);
  Adam optimizer({&trained.parameters(), &frozen.parameters(), &unused.parameters()},
                 {.weight_decay = 0.1});
  const auto before = bytes(context, trained.parameters().values());
  set_gradients(context, trained.parameters(), 1);
  set_gradients(context, frozen.parameters(), 1);
  frozen.parameters().set_trainable(false);
  assign(context, frozen.parameters().gradient("bias"), 0, NAN);
  CHECK_FALSE(optimizer.step(context).skipped);
  CHECK(bytes(context, trained.parameters().values()) != before);
  CHECK(bytes(context, frozen.parameters().values()) == before);
  CHECK(bytes(context, unused.parameters().values()) == before);
  optimizer.zero_gradients();
  for (const double g : numbers(context, trained.parameters().gradients())) CHECK(g == 0.0);
  CHECK(numbers(context, frozen.parameters().gradient("bias"))[0] == 0.0);
}

TEST_CASE("decay is for the parameters that the predicate names") {
  Context context = test_context();
  for (const bool decoupled : {false, true}) {
    Linear model = layer(context);
    model.parameters().gradients();  // zeros: decay alone is left
    const Doubles weight = numbers(context, model.parameters().value("weight"));
    const Doubles bias = numbers(context, model.parameters().value("bias"));
    Sgd optimizer({&model.parameters()},
                  {.learning_rate = 0.5,
                   .weight_decay = 0.5,
                   .decoupled_decay = decoupled,
                   .decays = [](std::string_view name) { return name != "bias"; }});
    optimizer.step(context);
    CHECK(numbers(context, model.parameters().value("bias")) == bias);
    const Doubles decayed = numbers(context, model.parameters().value("weight"));
    for (std::size_t i = 0; i < weight.size(); ++i)
      CHECK(decayed[i] == static_cast<double>(0.75F * static_cast<float>(weight[i])));
  }
}

TEST_CASE("the optimizer follows a layer that is moved") {
  Context context = test_context();
  Linear first = layer(context);
  Sgd optimizer({&first.parameters()}, {.learning_rate = 0.5});
  Linear moved = std::move(first);
  const auto before = bytes(context, moved.parameters().values());
  set_gradients(context, moved.parameters(), 1);
  optimizer.step(context);
  CHECK(bytes(context, moved.parameters().values()) != before);
}

TEST_CASE("options of optimizers out of range are named") {
  Context context = test_context();
  Parameters set = parameters_on(context, {{"x", {2}}});
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

  Sgd optimizer({&set});
  assign(context, set.gradient("x"), {1.0, 0.0});
  CHECK_THROWS_WITH(optimizer.step(context, {.loss_scale = 0.0}), Contains("loss_scale is 0"));
  CHECK_THROWS_WITH(optimizer.step(context, {.max_norm = -1.0}), Contains("max_norm is -1"));
  CHECK_THROWS_WITH(optimizer.step(context, {.max_value = NAN}), Contains("max_value is nan"));
  CHECK_THROWS_WITH(optimizer.set_learning_rate(INFINITY), Contains("learning_rate is inf"));
  CHECK(numbers(context, set.value("x"))[0] == 0.0);
}

TEST_CASE("a state of another optimizer is refused and changes nothing") {
  Context context = test_context();
  Linear model = layer(context), other = layer(context, 7), half = layer(context, 3, Dtype::f16);
  Adam optimizer({&model.parameters()});
  set_gradients(context, model.parameters(), 1);
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
  CHECK_THAT(refusal(Adam({&half.parameters()}).state_dict()), Contains("tensors"));
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

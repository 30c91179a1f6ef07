// Weights kept in 16 bits on the CPU are what a layer of f32 with rounded weights computes with.

#include <algorithm>
#include <cmath>
#include <string>

#include "tests/kernels/cpu_targets.hpp"
#include "tests/layers/layer_fixture.hpp"

using namespace packrnn;
using namespace packrnn::tests;

namespace {

// Biases are not rounded.
std::vector<ref::Parameter> with_rounded_weights(std::vector<ref::Parameter> parameters,
                                                 WeightStorage storage) {
  for (ref::Parameter& parameter : parameters)
    if (parameter.name.starts_with("weight"))
      for (double& value : parameter.value)
        value = storage == WeightStorage::f16
                    ? static_cast<float>(Half(static_cast<float>(value)))
                    : static_cast<float>(BFloat16(static_cast<float>(value)));
  return parameters;
}

}  // namespace

TEST_CASE("weights stored in 16 bits have the bits of a layer whose weights were rounded before") {
  const Kind kind = GENERATE(from_range(kKinds));
  const WeightStorage storage = GENERATE(WeightStorage::f16, WeightStorage::bf16);
  for_each_cpu_target([&](const char* target) {
    CAPTURE(target);
    for (const std::int64_t H : {1, 17}) {
      const ref::Config config = config_of(kind, 5, H, 2, true);
      CAPTURE(describe(config), kernels::name_of(storage));
      const std::vector<ref::Parameter> parameters = random_parameters(config);
      const Recurrent stored = make_layer(config, parameters, {.weight_storage = storage});
      const Recurrent rounded = make_layer(config, with_rounded_weights(parameters, storage));
      const Recurrent full = make_layer(config, parameters);
      const Batch batch = random_batch(config, lengths_with_batch_sizes({50, 13, 5, 2, 1}));
      Context one(Device::cpu(), {.threads = 1}), three(Device::cpu(), {.threads = 3});
      const std::vector<SequenceBits> expected = all_bits(run(one, rounded, config, batch));
      CHECK(first_difference(all_bits(run(one, stored, config, batch)), expected) == -1);
      CHECK(first_difference(all_bits(run(three, stored, config, batch)), expected) == -1);
      CHECK(first_difference(all_bits(run(one, full, config, batch)), expected) != -1);
      for (const std::size_t n : {0, 49})  // contract C1
        CHECK((bits_of(run(one, stored, config, {batch[n]}), 0) == expected[n]));
      CHECK(parameter_bits(stored) == parameter_bits(full));
    }
  });
}

TEST_CASE("every instruction set makes f32 of the smallest and largest f16") {
  const ref::Config config = config_of(Kind::rnn_relu, 1, 1);
  for (const double weight : {0x1p-24, 0x1.8p-23, 0x1p-14, 65504.0, 0.0}) {
    for_each_cpu_target([&](const char* target) {
      CAPTURE(target);
      const Recurrent layer = make_layer(config, constant_parameters(config, weight),
                                         {.weight_storage = WeightStorage::f16});
      Context context(Device::cpu());
      const Tensor x = tensor_of({1.0}, {1, 1, 1}, Dtype::f32);
      // W x + b_ih + b_hh, biases being f32.
      CHECK(doubles_of(layer.forward(context, x).output)[0] ==
            static_cast<float>(weight) + (static_cast<float>(weight) + static_cast<float>(weight)));
    });
  }
}

TEST_CASE("how far stored weights move the results of a layer of usual size") {
  const Kind kind = GENERATE(Kind::lstm, Kind::gru);
  const ref::Config config = config_of(kind, 64, 128);
  const std::vector<ref::Parameter> parameters = random_parameters(config);
  const Batch batch = random_batch(config, {60, 30, 10});
  Context context(Device::cpu(), {.threads = 1});
  const Doubles exact =
      doubles_of(run(context, make_layer(config, parameters), config, batch).output.data());
  const auto moved = [&](WeightStorage storage) {
    const Recurrent layer = make_layer(config, parameters, {.weight_storage = storage});
    const Doubles y = doubles_of(run(context, layer, config, batch).output.data());
    double most = 0;
    for (std::size_t i = 0; i < y.size(); ++i) most = std::max(most, std::abs(y[i] - exact[i]));
    return most;
  };
  // What docs/math.md says, twice.
  const double f16 = moved(WeightStorage::f16), bf16 = moved(WeightStorage::bf16);
  CAPTURE(f16, bf16);
  CHECK(f16 > 0.0);
  CHECK(f16 < 5e-4);
  CHECK(bf16 > f16);
  CHECK(bf16 < 4e-3);
}

TEST_CASE("weights too large for their storage are refused, and so is what has no such storage") {
  const ref::Config config = config_of(Kind::gru, 3, 4);
  const Tensor x = tensor_of(Doubles(3), {1, 1, 3}, Dtype::f32);
  Context context(Device::cpu());
  Recurrent layer = make_layer(config, constant_parameters(config, 65519.0),
                               {.weight_storage = WeightStorage::f16});
  CHECK_NOTHROW(layer.forward(context, x));
  set_parameters(layer, constant_parameters(config, 65520.0));
  check_refused("too large", [&] { layer.forward(context, x); }, {"w_ih", "65520", "f16"});
  set_parameters(layer, constant_parameters(config, 0.5));
  CHECK_NOTHROW(layer.forward(context, x));
  CHECK(layer.explain(context, *PackedLayout::make({1})).find("weights f16") != std::string::npos);
  check_refused("double precision",
                [] {
                  Lstm({.input_size = 1,
                        .hidden_size = 1,
                        .dtype = Dtype::f64,
                        .weight_storage = WeightStorage::bf16});
                },
                {"weight_storage", "bf16", "f64"});
}

// Parameters that move to another device and are used there.
#include <cmath>

#include "packrnn/layers/linear.hpp"
#include "tests/layers/layer_fixture.hpp"

using namespace packrnn;
using namespace packrnn::tests;

namespace {

Parameters numbered(Dtype dtype = Dtype::f32) {
  Parameters parameters({{"a", {2, 3}}, {"b", {5}}}, dtype);
  parameters.set("a", Tensor::from({1.0, 2.0, 3.0, 4.0, 5.0, 6.0}, {2, 3}));
  parameters.set("b", Tensor::from({7.0, 8.0, 9.0, 10.0, 11.0}, {5}));
  return parameters;
}

Doubles all(const Parameters& parameters) {
  Doubles result;
  for (const NamedTensor& item : parameters.state_dict())
    for (const double value : doubles_of(item.tensor)) result.push_back(value);
  return result;
}

}  // namespace

TEST_CASE("parameters move with their gradients, and the host reads and assigns them anywhere") {
  for (const Dtype dtype : {Dtype::f32, Dtype::f64, Dtype::f16, Dtype::bf16}) {
    CAPTURE(name_of(dtype));
    Context context = test_context(), cpu(Device::cpu(), {.threads = 1});
    Parameters parameters = numbered(dtype);
    const Parameters same = parameters.shared();
    const Doubles before = all(parameters);
    convert_into(Tensor::from({1.0, 2.0, 3.0, 4.0, 5.0}, {5}), parameters.gradient("b"));
    const std::uint64_t version = parameters.version();
    parameters.to(context);
    parameters.to(context);
    CHECK(parameters.version() == version);
    CHECK(parameters.device() == context.device());
    CHECK(same.device() == context.device());
    CHECK(parameters.gradients().device() == context.device());
    CHECK(all(parameters) == before);
    CHECK(doubles_of(context.to_host(parameters.value("a"))) == Doubles{1, 2, 3, 4, 5, 6});
    CHECK(doubles_of(context.to_host(parameters.gradient("b"))) == Doubles{1, 2, 3, 4, 5});
    CHECK(doubles_of(context.to_host(parameters.gradient("a"))) == Doubles(6, 0.0));

    parameters.set("a", Tensor::from({6.0, 5.0, 4.0, 3.0, 2.0, 1.0}, {2, 3}));
    CHECK(parameters.version() > version);
    CHECK(all(parameters) == Doubles{6, 5, 4, 3, 2, 1, 7, 8, 9, 10, 11});
    parameters.load(numbered(dtype).state_dict());
    CHECK(all(parameters) == before);
    parameters.zero_gradients();
    CHECK(doubles_of(context.to_host(parameters.gradients())) ==
          Doubles(static_cast<std::size_t>(parameters.gradients().elements()), 0.0));

    Generator here(3), there(3);
    Parameters host = numbered(dtype);
    host.fill_uniform(here, 0.5);
    parameters.fill_uniform(there, 0.5);
    CHECK(all(parameters) == all(host));

    parameters.to(cpu);
    CHECK(parameters.device() == Device::cpu());
    CHECK(parameters.gradients().device() == Device::cpu());
    CHECK(all(parameters) == all(host));
  }
}

TEST_CASE("moved parameters outlive the context that they went with") {
  Parameters parameters = numbered();
  {
    Context context = test_context();
    parameters.to(context);
  }
  CHECK(all(parameters) == all(numbered()));
  parameters.set("b", Tensor::from({0.0, 0.0, 0.0, 0.0, 1.0}, {5}));
  CHECK(all(parameters).back() == 1.0);
  Context another = test_context();
  parameters.hold_up(another);
  CHECK(doubles_of(another.to_host(parameters.value("b"))).back() == 1.0);
}

TEST_CASE("a layer learns where its parameters are; elsewhere it says how to move them") {
  if (!on_device()) PACKRNN_SKIP("there is one device only");
  const ref::Config config = config_of(Kind::lstm, 3, 4);
  Recurrent layer = make_layer(config, random_parameters(config), {});
  const PackedSequence x = packed_of(config, random_batch(config, {3, 1}), Dtype::f32);
  Context gpu = test_context(), cpu(Device::cpu(), {.threads = 1});
  const PackedSequence on_gpu = to_device(gpu, x);
  Tape tape(gpu);
  check_refused("on the host", [&] { (void)layer.forward(tape, tape.constant(to_device(gpu, x))); },
                {"cpu", gpu.device().name(), "parameters().to(context)"});
  layer.parameters().set_trainable(false);  // nothing is learnt from these
  (void)layer.forward(tape, tape.constant(to_device(gpu, x)));
  const Doubles before = doubles_of(gpu.to_host(layer.forward(gpu, on_gpu).output.data()));

  layer.parameters().to(gpu);
  CHECK(doubles_of(gpu.to_host(layer.forward(gpu, on_gpu).output.data())) == before);
  check_refused("on the device", [&] { (void)layer.forward(cpu, x); },
                {"cpu", gpu.device().name(), "parameters().to(context)"});
}

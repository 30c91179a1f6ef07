// Order: streams of two contexts, faults that kernels report, devices by environment.
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <packrnn/runtime/context.hpp>
#include <packrnn/runtime/error.hpp>
#include <string>
#include <utility>
#include <vector>

#include "packrnn/runtime/device_fault.hpp"
#include "packrnn/runtime/gpu.hpp"
#include "tests/catch.hpp"
#include "tests/environment.hpp"
#include "tests/runtime/device_test.hpp"

namespace packrnn {
namespace {

using Catch::Contains;
using tests::counted;
using tests::Environment;
using tests::fetch;
using tests::values_of;

/// As a kernel would, in stream order.
void report(Context& context, FaultCode code, std::vector<std::int64_t> values) {
  values.insert(values.begin(), static_cast<std::int64_t>(code));
  values.resize(5);
  static_assert(sizeof(DeviceFault) == 5 * sizeof(std::int64_t));
  context.copy(Tensor::from(values, {5}),
               TensorSpan(context.fault(), {5}, Dtype::i64, context.device()));
}

}  // namespace

TEST_CASE("wait_for orders two contexts") {
  Context a;
  Context b;
  a.wait_for(a);
  for (int round = 0; round < 20; ++round) {
    Tensor data = a.to_device(counted(1000, round));
    b.wait_for(a);
    Tensor twin = b.to_device(data);
    a.wait_for(b);  // before `data` is written again, and before its memory returns
    a.copy(counted(1000, -1), data);
    REQUIRE(fetch(b, twin) == values_of(counted(1000, round)));
  }
  Context cpu(Device::cpu());
  cpu.wait_for(a);
  a.wait_for(cpu);
}

TEST_CASE("wait_for does not wait") {
  Context a;
  if (a.device().type == DeviceType::cpu) PACKRNN_SKIP("on the CPU nothing is late");
  Context b;
  const std::int64_t before = gpu::waits();
  const Tensor data = a.to_device(counted(1000));
  b.wait_for(a);
  const Tensor twin = b.to_device(data);
  a.wait_for(b);
  CHECK(gpu::waits() == before);
  CHECK(fetch(b, twin) == values_of(counted(1000)));
}

TEST_CASE("copies between two devices") {
  Context a;
  if (a.device().type == DeviceType::cpu || Device::cuda_count() < 2)
    PACKRNN_SKIP("there are no two GPUs");
  Context b(Device::cuda(1 - a.device().index));
  const Tensor here = a.to_device(counted(3000));
  b.wait_for(a);
  const Tensor there = b.to_device(here);
  CHECK(there.device() == b.device());
  a.wait_for(b);
  const Tensor back = a.to_device(there);
  b.wait_for(a);
  CHECK(fetch(a, back) == values_of(counted(3000)));
  CHECK_THROWS_AS(Context(Device::cpu()).to_host(there), InvalidArgument);
}

TEST_CASE("contexts can share a stream of the caller's") {
  Context a;
  if (a.device().type == DeviceType::cpu) {
    int stream = 0;
    CHECK_THROWS_WITH(Context(Device::cpu(), {.stream = &stream}), Contains("cpu"));
    CHECK(a.stream() == nullptr);
    CHECK(a.native_stream() == nullptr);
    return;
  }
  {
    Context b(a.device(), {.stream = a.native_stream()});
    CHECK(b.native_stream() == a.native_stream());
    for (int round = 0; round < 20; ++round) {
      const Tensor data = a.to_device(counted(100, round));
      CHECK(fetch(b, b.to_device(data)) == values_of(counted(100, round)));
    }
  }
  CHECK(fetch(a, a.to_device(counted(3))) == values_of(counted(3)));
}

TEST_CASE("a fault that a kernel reported is thrown by the next wait, once") {
  Context context;
  if (context.device().type == DeviceType::cpu) {
    CHECK(context.fault() == nullptr);
    context.synchronize();
    PACKRNN_SKIP("no kernels on the CPU");
  }
  Context other;
  const Tensor data = context.to_device(counted(5));
  context.synchronize();

  report(context, FaultCode::length_negative, {3, -7});
  other.synchronize();  // it is the context's own
  CHECK_THROWS_MATCHES(context.synchronize(), InvalidArgument,
                       Catch::Message("lengths[3] is -7, but must not be negative"));
  context.synchronize();

  report(context, FaultCode::watchdog, {12, 5, 3, 1});
  CHECK_THROWS_WITH(context.to_host(data), Contains("step 12") && Contains("PACKRNN_ALGORITHM"));
  CHECK(fetch(context, data) == values_of(counted(5)));

  const std::vector<std::pair<FaultCode, std::string>> all = {
      {FaultCode::length_fraction, "lengths[1] is not a whole number"},
      {FaultCode::length_capacity, "lengths[1] is 2, but the layout was made for at most 3"},
      {FaultCode::rows_capacity, "sum to 1, but the layout was made for at most 2 rows"},
      {FaultCode::length_order, "lengths[1] is 2 after 3"},
      {FaultCode::index_range, "index 1 is 2, but must be at least 3 and less than 4"},
      {FaultCode::cluster, "rank 1"},
      {FaultCode::target_class, "targets[1] is 2, expected 0 to 3, or 4 to be left out"},
      {FaultCode::target_label, "targets[1] is 2, expected 0 to 3 and not the blank, 4"},
      {FaultCode::count, "not known"},
  };
  for (const auto& [code, text] : all) {
    report(context, code, {1, 2, 3, 4});
    CHECK_THROWS_WITH(context.synchronize(), Contains(text));
    context.synchronize();
  }
  const auto half = std::bit_cast<std::int64_t>(-0.5);
  report(context, FaultCode::target_chance, {7, half});
  CHECK_THROWS_WITH(context.synchronize(), Contains("targets[7] is -0.5"));
  report(context, FaultCode::class_weight, {7, half});
  CHECK_THROWS_WITH(context.synchronize(), Contains("class_weights[7] is -0.5"));
}

TEST_CASE("PACKRNN_DEVICE decides what the best device is") {
  const Device chosen = Device::best();
  {
    const Environment none("PACKRNN_DEVICE", nullptr);
    CHECK(Device::best() == (Device::cuda_count() > 0 ? Device::cuda(0) : Device::cpu()));
    CHECK_THAT(Device::cuda_status(), Contains("CUDA: ") && Contains("; using "));
  }
  {
    const Environment none("PACKRNN_DEVICE", "");
    CHECK(Device::best() == (Device::cuda_count() > 0 ? Device::cuda(0) : Device::cpu()));
  }
  {
    const Environment cpu("PACKRNN_DEVICE", "cpu");
    CHECK(Device::best() == Device::cpu());
    CHECK(Context().device() == Device::cpu());
    CHECK_THAT(Device::cuda_status(), Contains("PACKRNN_DEVICE"));
  }
  {
    const Environment cuda("PACKRNN_DEVICE", "cuda");
    CHECK(Device::best() == Device::cuda(0));
  }
  {
    const Environment cuda("PACKRNN_DEVICE", "cuda:77");
    CHECK(Device::best() == Device::cuda(77));
    CHECK_THROWS_AS(Context(), Unsupported);
    CHECK_THROWS_WITH(Context(), Contains("cuda:77") && Contains("CUDA: "));
    CHECK_THROWS_AS(Tensor::empty({1}, Dtype::f32, Device::best()), Unsupported);
  }
  for (const char* wrong : {"gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "CUDA"}) {
    const Environment gpu("PACKRNN_DEVICE", wrong);
    CHECK_THROWS_AS(Context(), InvalidArgument);
    CHECK_THROWS_WITH(Context(), Contains(wrong));
    CHECK_THROWS_AS(Tensor::empty({1}, Dtype::f32, Device::best()), Unsupported);
  }
  CHECK(Device::best() == chosen);
}

TEST_CASE("math and algorithm come from options, else from the environment") {
  const Device cpu = Device::cpu();
  const Environment no_math("PACKRNN_F32_MATH", nullptr), none("PACKRNN_ALGORITHM", nullptr);
  CHECK(Context(cpu).f32_math() == F32Math::exact);
  CHECK(Context(cpu).algorithm().empty());
  CHECK(Context(cpu, {.f32_math = F32Math::tf32, .algorithm = "step"}).f32_math() == F32Math::tf32);
  {
    const Environment math("PACKRNN_F32_MATH", "tf32x3"), algorithm("PACKRNN_ALGORITHM", "cluster");
    CHECK(Context(cpu).f32_math() == F32Math::tf32x3);
    CHECK(Context(cpu, {.f32_math = F32Math::exact}).f32_math() == F32Math::exact);
    CHECK(Context(cpu).algorithm() == "cluster");
    CHECK(Context(cpu, {.algorithm = "persistent"}).algorithm() == "persistent");
  }
  CHECK_THROWS_WITH(Context(cpu, {.algorithm = "fast"}), Contains("\"fast\""));
  const Environment algorithm("PACKRNN_ALGORITHM", "quick");
  CHECK_THROWS_WITH(Context(cpu), Contains("PACKRNN_ALGORITHM") && Contains("quick"));
  const Environment math("PACKRNN_F32_MATH", "fp32");
  CHECK_THROWS_WITH(default_f32_math(), Contains("PACKRNN_F32_MATH") && Contains("fp32"));
  CHECK(std::string(name_of(F32Math::exact)) == "exact");
}

}  // namespace packrnn

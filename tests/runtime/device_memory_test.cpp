// Tensors of a context's device: allocation, copies, what is late and what is not.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <packrnn/runtime/context.hpp>
#include <packrnn/runtime/error.hpp>
#include <thread>
#include <utility>
#include <vector>

#include "packrnn/runtime/gpu.hpp"
#include "tests/catch.hpp"
#include "tests/runtime/device_test.hpp"

namespace packrnn {
namespace {

using Catch::Contains;
using tests::counted;
using tests::fetch;
using tests::values_of;

bool on_gpu(const Context& context) { return context.device().type == DeviceType::cuda; }

}  // namespace

TEST_CASE("what goes to the device comes back") {
  Context context;
  for (const std::int64_t count : {0, 1, 3, 1000, 600'000}) {  // the last is more than the ring
    const Tensor host = counted(count, 7);
    Tensor there = context.to_device(host);
    CHECK(there.device() == context.device());
    CHECK(there.shape() == host.shape());
    CHECK(there.dtype() == Dtype::i64);
    CHECK(fetch(context, there) == values_of(host));
    const Tensor twin = context.to_device(there);  // device to device
    CHECK(fetch(context, twin) == values_of(host));
  }
  for (const Dtype dtype : {Dtype::bf16, Dtype::f16, Dtype::f32, Dtype::f64, Dtype::i32}) {
    const Tensor zeros = context.zeros({3, 5}, dtype);
    const Tensor host = context.to_host(zeros);
    CHECK(host.device() == Device::cpu());
    const auto* bytes = static_cast<const unsigned char*>(host.view().raw());
    CHECK(std::all_of(bytes, bytes + host.view().bytes(), [](unsigned char b) { return b == 0; }));
  }
  CHECK(context.zeros({0, 5}, Dtype::f32).elements() == 0);
  CHECK(context.empty({}, Dtype::f32).elements() == 1);
}

TEST_CASE("host memory is free again when to_device returns") {
  Context context;
  Tensor host = counted(50'000);
  const std::vector<std::int64_t> before = values_of(host);
  const Tensor there = context.to_device(host);
  const auto values = host.values<std::int64_t>();
  std::fill(values.begin(), values.end(), -1);
  host = Tensor();
  CHECK(fetch(context, there) == before);
}

TEST_CASE("copies check what they are given") {
  Context context;
  const Tensor host = counted(10);
  Tensor there = context.to_device(host);
  Tensor other = Tensor::zeros({10}, Dtype::i64);
  context.copy(there, other);
  CHECK(values_of(other) == values_of(host));
  context.copy(counted(4, 100), there.span().rows(3, 7));
  CHECK(fetch(context, there) == std::vector<std::int64_t>{0, 1, 2, 100, 101, 102, 103, 7, 8, 9});
  context.copy(there.view().rows(3, 5), there.span().rows(0, 2));
  CHECK(fetch(context, there.view().rows(0, 3)) == std::vector<std::int64_t>{100, 101, 2});
  CHECK_THROWS_WITH(context.copy(host, there.span().rows(0, 9)), Contains("[10]"));
  CHECK_THROWS_WITH(context.copy(Tensor::zeros({10}, Dtype::i32), there), Contains("i32"));
  CHECK_THROWS_WITH(context.copy(there.view().rows(0, 5), there.span().rows(4, 9)),
                    Contains("overlap"));
  CHECK_THROWS_AS(context.copy(TensorView(), there), InvalidArgument);
  CHECK_THROWS_AS(context.to_device(TensorView()), InvalidArgument);
  CHECK_THROWS_AS(context.to_host(TensorView()), InvalidArgument);
  if (!on_gpu(context)) return;
  Context cpu(Device::cpu());
  CHECK_THROWS_WITH(cpu.to_host(there), Contains("context on cpu"));
  CHECK_THROWS_WITH(there.values<std::int64_t>(), Contains("read by the host"));
  CHECK_THROWS_WITH(there.clone(), Contains("must be on the host"));
}

TEST_CASE("the host waits where it is said to, and nowhere else") {
  Context context;
  if (!on_gpu(context)) PACKRNN_SKIP("on the CPU nothing is late");
  const Tensor host = counted(1000);
  context.synchronize();
  const std::int64_t before = gpu::waits();
  {
    const Tensor a = context.to_device(host);
    const Tensor b = context.to_device(a);
    const Tensor c = context.zeros({1000}, Dtype::f32);
    Workspace::Scope scope(context.workspace());
    scope.take<float>(1 << 20);
    for (int i = 0; i < 100; ++i) context.to_device(host);
  }
  CHECK(gpu::waits() == before);
  context.synchronize();
  CHECK(gpu::waits() == before + 1);
  // Once in a while when more goes up than the ring holds, and not for every piece of it.
  const Tensor large = counted(2'000'000);
  for (int i = 0; i < 3; ++i) context.to_device(large);
  CHECK(gpu::waits() <= before + 1 + 60);
  const std::int64_t then = gpu::waits();
  context.to_host(context.to_device(host));
  CHECK(gpu::waits() > then);
  CHECK(gpu::waits() <= then + 2);
}

TEST_CASE("a device's workspace is flat after the first call of a shape") {
  Context context;
  Workspace& workspace = context.workspace();
  const auto call = [&](std::int64_t n) {
    Workspace::Scope outer(workspace);
    const auto a = outer.take<std::int64_t>(n * 1000);
    const TensorSpan span(a.data(), {n * 1000}, Dtype::i64, context.device());
    context.copy(counted(n * 1000, n), span);
    for (int layer = 0; layer < 3; ++layer) {
      Workspace::Scope inner(workspace);
      const auto b = inner.take<std::int64_t>(n * (layer + 1) * 3000);
      const TensorSpan other(b.data(), {n * 1000}, Dtype::i64, context.device());
      context.copy(span, other);
      CHECK(reinterpret_cast<std::uintptr_t>(b.data()) % 64 == 0);
    }
    CHECK(fetch(context, span).back() == n + n * 1000 - 1);
  };
  for (const std::int64_t n : {1, 10, 3, 40}) {
    call(n);
    const std::size_t capacity = workspace.capacity();
    call(n);
    call(n);
    CHECK(workspace.capacity() == capacity);
  }
  {
    Workspace::Scope scope(workspace);
    CHECK_THROWS_AS(scope.take<double>(std::numeric_limits<std::int64_t>::max()), OutOfMemory);
    CHECK_THROWS_AS(scope.take<float>(std::int64_t{1} << 60), OutOfMemory);
  }
  call(2);
  workspace.release();
  CHECK(workspace.capacity() == 0);
  call(2);
}

TEST_CASE("out of memory leaves the context usable") {
  Context context;
  const Tensor kept = context.to_device(counted(100));
  CHECK_THROWS_AS(context.empty({std::int64_t{1} << 52}, Dtype::f64), OutOfMemory);
  CHECK_THROWS_AS(context.zeros({std::int64_t{1} << 62}, Dtype::f64), OutOfMemory);
  CHECK_THROWS_AS(Tensor::empty({std::int64_t{1} << 45}, Dtype::f64, context.device()),
                  OutOfMemory);
  if (on_gpu(context)) {  // more than the device has, not more than can be addressed
    const auto most = static_cast<std::int64_t>(gpu::properties(context.device().index).memory);
    CHECK_THROWS_WITH(context.empty({most + 1}, Dtype::f32),
                      Contains("out of memory") && Contains(context.device().name()));
    CHECK_THROWS_AS(Tensor::empty({most + 1}, Dtype::f32, context.device()), OutOfMemory);
  }
  CHECK(fetch(context, kept) == values_of(counted(100)));
}

TEST_CASE("tensors outlive their context, and a context moves") {
  Tensor tensor;
  {
    Context context;
    Context moved = std::move(context);
    tensor = moved.to_device(counted(1000, 5));
    Context assigned(Device::cpu());
    assigned = std::move(moved);
    CHECK(assigned.device() == Device::best());
    CHECK(fetch(assigned, tensor) == values_of(counted(1000, 5)));
    tensor = assigned.to_device(counted(1000, 6));
    assigned.synchronize();
  }
  Context other;
  CHECK(fetch(other, tensor) == values_of(counted(1000, 6)));
  tensor = Tensor();
}

TEST_CASE("tensors made without a context can be used by any") {
  Context context;
  Tensor zeros = Tensor::zeros({100}, Dtype::i64, context.device());
  CHECK(fetch(context, zeros) == std::vector<std::int64_t>(100, 0));
  const Tensor empty = Tensor::empty({0}, Dtype::f32, context.device());
  CHECK(empty.view().raw() != nullptr);
  context.copy(counted(100), zeros);
  CHECK(fetch(context, zeros) == values_of(counted(100)));
}

TEST_CASE("many threads, each with contexts of its own") {
  const Device device = Device::best();
  std::vector<int> failures(8, 0);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < failures.size(); ++t)
    threads.emplace_back([&, t] {
      for (int round = 0; round < 5; ++round) {
        Context context(device, {.threads = 1});
        const auto first = static_cast<std::int64_t>(100 * t) + round;
        std::vector<Tensor> tensors;
        for (int i = 0; i < 10; ++i) tensors.push_back(context.to_device(counted(500, first + i)));
        for (int i = 0; i < 10; ++i)
          if (fetch(context, tensors[static_cast<std::size_t>(i)]) !=
              values_of(counted(500, first + i)))
            ++failures[t];
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(failures == std::vector<int>(8, 0));
}

TEST_CASE("a tensor may die in another thread") {
  Context context;
  auto tensor = std::make_unique<Tensor>(context.to_device(counted(1000)));
  std::thread([moved = std::move(tensor)]() mutable { moved.reset(); }).join();
  CHECK(fetch(context, context.to_device(counted(10))) == values_of(counted(10)));
}

}  // namespace packrnn

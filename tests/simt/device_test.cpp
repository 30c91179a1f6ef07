// The simt devices themselves: that they are late and out of order where nothing was asked for, and
// that what they refuse a real device refuses, too.
#include "tests/simt/device.hpp"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <packrnn/runtime/context.hpp>
#include <packrnn/runtime/error.hpp>
#include <thread>
#include <utility>
#include <vector>

#include "packrnn/runtime/gpu.hpp"
#include "tests/catch.hpp"
#include "tests/runtime/device_test.hpp"
#include "tests/sanitized.hpp"
#include "tests/simt/engine.hpp"

#if defined(PACKRNN_ASAN)
#include <sanitizer/asan_interface.h>
#endif

namespace packrnn {
namespace {

using Catch::Contains;
using tests::counted;
using tests::fetch;
using tests::values_of;

constexpr int kSeeds = 24;
const Device kDevice = Device::cuda(0);

/// Sets the seed while it lives, and leaves nothing undone.
class Seed {
 public:
  explicit Seed(std::uint64_t seed) : before_(simt::options()) {
    simt::options().seed = seed;
    simt::options().order = simt::Order::by_seed;
  }
  ~Seed() {
    simt::catch_up();
    simt::options() = before_;
  }
  Seed(const Seed&) = delete;
  Seed& operator=(const Seed&) = delete;

 private:
  simt::Options before_;
};

class Model {
 public:
  explicit Model(const gpu::Properties& model) : before_(gpu::properties(0)) {
    simt::catch_up();
    simt::set_model(model);
  }
  ~Model() {
    simt::catch_up();
    simt::set_model(before_);
  }
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

 private:
  gpu::Properties before_;
};

/// A kernel of one thread.
void run(Context& context, std::function<void()> body) {
  simt::enqueue(context.stream(), "test_kernel", {}, std::move(body));
}

/// Seeds with which `twin` of one context's data, made by another, is right.
int right(bool ordered) {
  int count = 0;
  for (int seed = 1; seed <= kSeeds; ++seed) {
    const Seed use(static_cast<std::uint64_t>(seed));
    Context a(kDevice), b(kDevice);
    const Tensor data = a.to_device(counted(100));
    b.synchronize();
    if (ordered) b.wait_for(a);
    const Tensor twin = b.to_device(data);
    count += fetch(b, twin) == values_of(counted(100)) ? 1 : 0;
  }
  return count;
}

}  // namespace

TEST_CASE("without an event two streams are in no order, and with one they are") {
  CHECK(right(true) == kSeeds);
  const int unordered = right(false);
  CHECK(unordered > 0);
  CHECK(unordered < kSeeds);
}

TEST_CASE("a missing event before memory is written again or returned shows") {
  int wrong_write = 0, wrong_release = 0;
  for (int seed = 1; seed <= kSeeds; ++seed) {
    const Seed use(static_cast<std::uint64_t>(seed));
    Context a(kDevice), b(kDevice);
    Tensor data = a.to_device(counted(100));
    b.wait_for(a);
    Tensor twin = b.to_device(data);
    a.copy(counted(100, -1), data);  // should wait for b
    wrong_write += fetch(b, twin) == values_of(counted(100)) ? 0 : 1;

    data = a.to_device(counted(100));
    b.wait_for(a);
    twin = b.to_device(data);
    data = Tensor();  // should wait for b, too
    try {
      wrong_release += fetch(b, twin) == values_of(counted(100)) ? 0 : 1;
    } catch (const DeviceError&) {  // the copy's source is no memory any more
      ++wrong_release;
    }
  }
  CHECK(wrong_write > 0);
  CHECK(wrong_release > 0);
}

TEST_CASE("a copy reads the host's memory late") {
  int wrong = 0;
  for (int seed = 1; seed <= 8; ++seed) {
    const Seed use(static_cast<std::uint64_t>(seed));
    gpu::Stream stream = gpu::create_stream(0);
    const std::unique_ptr<int, void (*)(int*)> host(
        static_cast<int*>(gpu::allocate_pinned(sizeof(int))),
        [](int* p) { gpu::release_pinned(p); });
    void* const there = gpu::allocate(0, sizeof(int));
    *host = 1;
    gpu::copy(there, host.get(), sizeof(int), gpu::Copy::to_device, stream);
    *host = 2;
    gpu::wait(stream);
    gpu::copy(host.get(), there, sizeof(int), gpu::Copy::to_host, stream);
    gpu::wait(stream);
    wrong += *host == 1 ? 0 : 1;
    gpu::destroy(stream);
    gpu::release(0, there);
  }
  CHECK(wrong > 0);
  CHECK(wrong < 8);  // with some seeds the device is fast
}

TEST_CASE("copies outside of allocations are refused") {
  const Seed use(1);
  Context context(kDevice), other(Device::cuda(1));
  const Tensor tensor = context.to_device(counted(10));
  const void* const data = tensor.view().raw();
  void* const raw = const_cast<void*>(data);
  int host = 0;
  const auto refused = [&](void* target, const void* source, std::size_t bytes, gpu::Copy kind) {
    CHECK_THROWS_AS(gpu::copy(target, source, bytes, kind, context.stream()), DeviceError);
  };
  std::vector<std::byte> bytes(100);
  refused(raw, bytes.data(), 81, gpu::Copy::to_device);
  refused(bytes.data(), data, 81, gpu::Copy::to_host);
  refused(&host, &host, 4, gpu::Copy::to_device);
  refused(raw, data, 4, gpu::Copy::to_host);
  refused(raw, data, 4, gpu::Copy::to_device);
  CHECK_THROWS_AS(gpu::fill(raw, 0, 81, context.stream()), DeviceError);
  CHECK_THROWS_AS(gpu::fill(raw, 0, 8, other.stream()), DeviceError);
  CHECK_THROWS_AS(gpu::copy_peer(raw, 1, data, 0, 8, context.stream()), DeviceError);
  CHECK(fetch(context, tensor) == values_of(counted(10)));
}

TEST_CASE("fresh memory is garbage, also in the workspace") {
  const Seed use(1);
  Context context(kDevice);
  const auto garbage = [&](const TensorView& view) {
    const Tensor host = context.to_host(view);
    const auto values = host.values<float>();
    return std::all_of(values.begin(), values.end(), [](float x) { return x != x; });
  };
  CHECK(garbage(context.empty({100}, Dtype::f32)));
  for (int round = 0; round < 3; ++round) {
    Workspace::Scope scope(context.workspace());
    const auto taken = scope.take<float>(100);
    const TensorSpan span(taken.data(), {100}, Dtype::f32, kDevice);
    CHECK(garbage(span));
    context.copy(context.zeros({100}, Dtype::f32), span);
    CHECK_FALSE(garbage(span));
  }
}

#if defined(PACKRNN_ASAN)
TEST_CASE("the workspace's edges and what was given back are poisoned for AddressSanitizer") {
  const Seed use(1);
  Context context(kDevice);
  const char* bytes = nullptr;
  {
    Workspace::Scope scope(context.workspace());
    bytes = scope.take<char>(1000).data();
    const char* const next = scope.take<char>(1).data();
    context.synchronize();
    for (const char* byte : {bytes, bytes + 999, next})
      CHECK(__asan_address_is_poisoned(byte) == 0);
    for (const char* byte : {bytes + 1000, next - 1, next + 1})
      CHECK(__asan_address_is_poisoned(byte) == 1);
  }
  CHECK(__asan_address_is_poisoned(bytes) == 0);  // the device has not got there
  context.synchronize();
  CHECK(__asan_address_is_poisoned(bytes) == 1);
}
#endif

TEST_CASE("a full device says so, and what was given back can be used again") {
  gpu::Properties small = simt::small_h200();
  small.memory = std::size_t{8} << 20;
  const Model model(small);
  Context context(kDevice);
  const auto mebibytes = [&](std::int64_t n) { return context.empty({n << 18}, Dtype::f32); };
  const std::int64_t waits = gpu::waits();
  {
    const Tensor most = mebibytes(6);
    CHECK_THROWS_WITH(mebibytes(3), Contains("3145728 bytes") && Contains("in use"));
    CHECK_THROWS_AS(Tensor::empty({3 << 18}, Dtype::f32, kDevice), OutOfMemory);
    Workspace::Scope scope(context.workspace());
    CHECK_THROWS_AS(scope.take<float>(3 << 18), OutOfMemory);
    CHECK(scope.take<float>(1 << 17).size() == 1 << 17);
  }
  // Given back in the order of the stream, which the device gets to when it needs the memory.
  for (int i = 0; i < 20; ++i) CHECK(mebibytes(6).defined());
  CHECK(gpu::waits() == waits);
  CHECK(fetch(context, context.to_device(counted(10))) == values_of(counted(10)));
}

TEST_CASE("memory returns with its owners") {
  simt::catch_up();
  const std::size_t before = simt::allocated(0);
  for (int round = 0; round < 3; ++round) {
    Context context(kDevice);
    const Tensor a = context.to_device(counted(1000));
    const Tensor b = Tensor::zeros({1000}, Dtype::f32, kDevice);
    Workspace::Scope(context.workspace()).take<float>(100);
    CHECK(simt::allocated(0) > before);
  }
  simt::catch_up();
  CHECK(simt::allocated(0) == before);
}

TEST_CASE("what a kernel does wrong is thrown by the next wait, and the rest is not done") {
  const Seed use(1);
  Context context(kDevice), other(kDevice);
  const Tensor data = context.to_device(counted(10));
  bool late = false;
  run(context, [] { simt::fail("something went wrong", {"test.cu", 12}); });
  run(context, [&] { late = true; });
  other.synchronize();
  CHECK_THROWS_WITH(context.synchronize(), Contains("something went wrong") &&
                                               Contains("test_kernel") && Contains("test.cu:12"));
  CHECK_FALSE(late);
  CHECK(fetch(context, data) == values_of(counted(10)));
}

TEST_CASE("launches that a device cannot do are refused when they are asked for") {
  const Seed use(1);
  gpu::Properties tiny = simt::small_h200();
  tiny.multiprocessors = 2;
  tiny.threads_per_multiprocessor = 128;
  const Model model(tiny);
  Context context(kDevice);
  const auto launch = [&](const gpu::LaunchShape& shape) {
    simt::enqueue(context.stream(), "test_kernel", shape, [] {});
  };
  launch({.grid = {4, 1, 1}, .block = {64, 1, 1}, .cooperative = true});
  CHECK_THROWS_AS(launch({.grid = {5, 1, 1}, .block = {64, 1, 1}, .cooperative = true}),
                  DeviceError);
  CHECK_THROWS_AS(launch({.block = {1025, 1, 1}}), DeviceError);
  CHECK_THROWS_AS(launch({.shared = (std::size_t{227} << 10) + 1}), DeviceError);
  context.synchronize();
}

TEST_CASE("devices can be of another model") {
  const Model model(simt::small_a100());
  Context context(kDevice);
  const gpu::LaunchShape clusters{.grid = {2, 1, 1}, .cluster = 2};
  CHECK_THROWS_AS(simt::enqueue(context.stream(), "test_kernel", clusters, [] {}), DeviceError);
  CHECK(gpu::resident_clusters(0, nullptr, 128, 0, 2) == 0);
  CHECK(gpu::resident_blocks(0, nullptr, 1024, 0) == 2);
  CHECK(gpu::properties(0).major == 8);
  CHECK(gpu::properties(0).uuid != gpu::properties(1).uuid);
}

TEST_CASE("kernels run in the order of their stream, in a graph as often as it is launched") {
  for (int seed = 1; seed <= 8; ++seed) {
    const Seed use(static_cast<std::uint64_t>(seed));
    Context context(kDevice), other(kDevice);
    std::vector<int> order;
    std::atomic<int> others{0};
    gpu::begin_capture(context.stream());
    for (int i = 0; i < 3; ++i) run(context, [&order, i] { order.push_back(i); });
    CHECK(gpu::capturing(context.stream()));
    CHECK_THROWS_AS(gpu::wait(context.stream()), DeviceError);
    CHECK_THROWS_AS(gpu::allocate(0, 8, context.stream()), DeviceError);
    gpu::Graph graph = gpu::end_capture(context.stream());
    context.synchronize();
    CHECK(order.empty());
    for (int i = 0; i < 5; ++i) run(other, [&] { ++others; });
    gpu::launch(graph, context.stream());
    run(context, [&] { order.push_back(9); });
    gpu::launch(graph, context.stream());
    gpu::destroy(graph);
    context.synchronize();
    CHECK(order == std::vector<int>{0, 1, 2, 9, 0, 1, 2});
    other.synchronize();
    CHECK(others == 5);
  }
}

TEST_CASE("events are done when their stream got there, and time passes") {
  for (int seed = 1; seed <= 8; ++seed) {
    const Seed use(static_cast<std::uint64_t>(seed));
    Context context(kDevice);
    gpu::Event from = gpu::create_event(0, true), to = gpu::create_event(0, true);
    CHECK(gpu::done(from));  // never recorded: holds up nobody
    gpu::wait(context.stream(), to);
    gpu::record(from, context.stream());
    run(context, [] {});
    gpu::record(to, context.stream());
    const std::int64_t waits = gpu::waits();
    int asked = 0;
    while (!gpu::done(to) && asked < 1000) ++asked;
    CHECK(asked < 1000);
    CHECK(gpu::waits() == waits);
    CHECK(gpu::elapsed_ms(from, to) > 0);
    gpu::wait(to);
    CHECK(gpu::waits() == waits + 1);
    CHECK_THROWS_AS(gpu::record(to, Context(Device::cuda(1)).stream()), DeviceError);
    gpu::destroy(from);
    gpu::destroy(to);
  }
}

TEST_CASE("two host threads drive two devices, each waits for its own") {
  std::vector<int> wrong(4, 0);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < wrong.size(); ++t)
    threads.emplace_back([&, t] {
      simt::options().seed = 4 * t + 1;
      Context context(Device::cuda(static_cast<int>(t % 2)));
      for (int round = 0; round < 20; ++round) {
        Tensor data = context.to_device(counted(100, round));
        auto* const values = static_cast<std::int64_t*>(data.span().raw());
        simt::enqueue(context.stream(), "add_kernel", {.grid = {4, 1, 1}, .block = {25, 1, 1}},
                      [values] {
                        const simt::Thread& self = *simt::self;
                        values[self.block.x * 25 + self.thread.x] += 1000;
                      });
        if (fetch(context, data) != values_of(counted(100, round + 1000))) ++wrong[t];
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == std::vector<int>(4, 0));
}

TEST_CASE("products are those of their definition") {
  const Seed use(1);
  Context context(kDevice);
  const std::int64_t m = 5, n = 3, k = 7, lda = 9, ldd = 4;
  std::vector<float> a(static_cast<std::size_t>(m * lda)), b(static_cast<std::size_t>(n * k));
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = static_cast<float>(i % 11) - 5;
  for (std::size_t i = 0; i < b.size(); ++i) b[i] = static_cast<float>(i % 7) - 3;
  const Tensor bias = context.to_device(Tensor::from<float>({10, 20, 30}, {n}));
  for (const Dtype in : {Dtype::f32, Dtype::f16, Dtype::bf16}) {
    const Tensor left = context.to_device(convert(Tensor::from(a, {m, lda}), in));
    const Tensor right = context.to_device(convert(Tensor::from(b, {n, k}), in));
    for (const bool with_bias : {false, true}) {
      Tensor out = context.zeros({m, ldd}, Dtype::f32);
      gpu::Product product{.m = m, .n = n, .k = k, .in = in, .lda = lda, .ldd = ldd};
      const auto multiply = [&] {
        gpu::multiply(context.products(), product, left.view().raw(), right.view().raw(),
                      with_bias ? static_cast<const float*>(bias.view().raw()) : nullptr,
                      out.span().raw());
      };
      multiply();
      product.accumulate = true;
      if (with_bias)
        CHECK_THROWS_AS(multiply(), InvalidArgument);
      else
        multiply();
      const Tensor host = context.to_host(out);
      for (std::int64_t i = 0; i < m; ++i) {
        for (std::int64_t j = 0; j < n; ++j) {
          float expected = 0;
          for (std::int64_t l = 0; l < k; ++l)
            expected +=
                a[static_cast<std::size_t>(i * lda + l)] * b[static_cast<std::size_t>(j * k + l)];
          expected = with_bias ? expected + static_cast<float>(10 * (j + 1)) : 2 * expected;
          CHECK(host.values<float>()[static_cast<std::size_t>(i * ldd + j)] == expected);
        }
        CHECK(host.values<float>()[static_cast<std::size_t>(i * ldd + n)] == 0);
      }
    }
  }
  // The sums over rows.
  for (const Dtype in : {Dtype::f32, Dtype::f16, Dtype::bf16}) {
    const Tensor left = context.to_device(convert(Tensor::from(a, {m, lda}), in));
    const Tensor right = context.to_device(convert(Tensor::from(b, {n, k}), in));
    Tensor out = context.zeros({lda, ldd}, Dtype::f32);
    const gpu::Product product{.m = k,
                               .n = ldd - 1,
                               .k = n,
                               .in = in,
                               .lda = lda,
                               .ldb = k,
                               .ldd = ldd,
                               .accumulate = true,
                               .transposed = true};
    const auto multiply = [&](const Tensor* with) {
      gpu::multiply(context.products(), product, left.view().raw(), right.view().raw(),
                    with != nullptr ? static_cast<const float*>(with->view().raw()) : nullptr,
                    out.span().raw());
    };
    multiply(nullptr);
    multiply(nullptr);
    CHECK_THROWS_AS(multiply(&bias), InvalidArgument);
    const Tensor host = context.to_host(out);
    for (std::int64_t i = 0; i < k; ++i)
      for (std::int64_t j = 0; j < ldd; ++j) {
        float expected = 0;
        for (std::int64_t l = 0; l < n && j < ldd - 1; ++l)
          expected +=
              2 * a[static_cast<std::size_t>(l * lda + i)] * b[static_cast<std::size_t>(l * k + j)];
        CHECK(host.values<float>()[static_cast<std::size_t>(i * ldd + j)] == expected);
      }
  }
  CHECK_THROWS_AS(gpu::multiply(context.products(), {.m = 1, .n = 1, .k = 0}, nullptr, nullptr,
                                nullptr, nullptr),
                  InvalidArgument);
  CHECK_THROWS_AS(Context(Device::cpu()).products(), InvalidArgument);
}

}  // namespace packrnn

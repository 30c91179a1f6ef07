#include "packrnn/runtime/host_memory.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>

#include "packrnn/runtime/context.hpp"
#include "tests/catch.hpp"

namespace packrnn {
namespace {

#if defined(__SANITIZE_ADDRESS__)
#define NEEDS_REUSE PACKRNN_SKIP("memory is not used again under the address sanitizer")
#else
#define NEEDS_REUSE static_cast<void>(0)
#endif

constexpr std::size_t kMiB = std::size_t{1} << 20;

}  // namespace

TEST_CASE("large blocks are used again, small ones are left to malloc") {
  NEEDS_REUSE;
  const auto memory = std::make_shared<HostMemory>();
  void* first = nullptr;
  {
    const Buffer buffer = memory->allocate(3 * kMiB);
    first = buffer.data();
    CHECK(buffer.size() == 3 * kMiB);
    CHECK(reinterpret_cast<std::uintptr_t>(first) % kAlignment == 0);
    CHECK(memory->kept() == 0);
  }
  CHECK(memory->kept() == 3 * kMiB);
  {
    const Buffer smaller = memory->allocate(2 * kMiB);
    CHECK(smaller.data() == first);
    CHECK(smaller.size() == 2 * kMiB);
    CHECK(memory->kept() == 0);
  }
  CHECK(memory->kept() == 3 * kMiB);
  static_cast<void>(memory->allocate(1000));
  CHECK(memory->kept() == 3 * kMiB);
  memory->close();
  CHECK(memory->kept() == 0);
}

TEST_CASE("no more is kept than was in use at one time") {
  NEEDS_REUSE;
  const auto memory = std::make_shared<HostMemory>();
  static_cast<void>(memory->allocate(4 * kMiB));
  {
    // The block that is kept is too large for it, and goes: both were never in use together.
    const Buffer small = memory->allocate(kMiB);
    CHECK(memory->kept() == 0);
    const Buffer second = memory->allocate(kMiB);
  }
  CHECK(memory->kept() == 2 * kMiB);
  static_cast<void>(memory->allocate(8 * kMiB));
  CHECK(memory->kept() == 8 * kMiB);
  for (std::size_t i = 1; i < 40; ++i) {
    static_cast<void>(memory->allocate(i * kMiB / 4));
    CHECK(memory->kept() <= 10 * kMiB);
  }
  memory->close();
}

TEST_CASE("buffers outlive their memory's owner, and die on other threads") {
  const auto memory = std::make_shared<HostMemory>();
  std::optional<Buffer> buffer = memory->allocate(kMiB);
  std::thread([&] { buffer.reset(); }).join();
  buffer = memory->allocate(kMiB);
  memory->close();
  buffer.reset();
  CHECK(memory->kept() == 0);
}

TEST_CASE("a context's tensors use memory in turns, and live on without it") {
  std::optional<Context> context(Device::cpu());
  const Shape shape{kMiB / 4};
  Tensor kept = context->empty(shape, Dtype::f32);
  std::fill_n(kept.span().data<float>(), kept.elements(), 7.0F);
  const void* first = nullptr;
  {
    const Tensor other = context->empty(shape, Dtype::f32);
    first = other.view().raw();
    CHECK(first != kept.view().raw());
  }
#if !defined(__SANITIZE_ADDRESS__)
  CHECK(context->empty(shape, Dtype::f32).view().raw() == first);
#endif
  context.reset();
  CHECK(kept.view().data<float>()[kMiB / 4 - 1] == 7.0F);
}

}  // namespace packrnn

#include <algorithm>
#include <cstdint>
#include <limits>
#include <packrnn/runtime/context.hpp>
#include <packrnn/runtime/error.hpp>
#include <stdexcept>
#include <string>

#include "tests/catch.hpp"

namespace packrnn {
namespace {

using Catch::Contains;

/// A call of some layer: takes of several sizes in nested scopes, each filled to its end.
void some_call(Workspace& workspace, std::int64_t n) {
  Workspace::Scope outer(workspace);
  const auto a = outer.take<float>(n * 1000);
  std::fill(a.begin(), a.end(), 1.0F);
  for (int layer = 0; layer < 3; ++layer) {
    Workspace::Scope inner(workspace);
    const auto b = inner.take<double>(n * (layer + 1) * 3000);
    const auto c = inner.take<std::int64_t>(n * 77);
    std::fill(b.begin(), b.end(), 2.0);
    std::fill(c.begin(), c.end(), 3);
  }
  const auto d = outer.take<std::uint8_t>(n * 5000 + 1);
  std::fill(d.begin(), d.end(), std::uint8_t{4});
  CHECK(std::all_of(a.begin(), a.end(), [](float x) { return x == 1.0F; }));
}

}  // namespace

TEST_CASE("the workspace grows in the first call of a shape only") {
  Workspace workspace(Device::cpu());
  CHECK(workspace.capacity() == 0);
  for (const std::int64_t n : {1, 10, 3, 40}) {
    some_call(workspace, n);
    const std::size_t after_first = workspace.capacity();
    some_call(workspace, n);
    some_call(workspace, n);
    CHECK(workspace.capacity() == after_first);
  }
  const std::size_t largest = workspace.capacity();
  some_call(workspace, 1);
  CHECK(workspace.capacity() == largest);
  // The call of 40 needs 40 * (4000 + 72000 + 616) bytes at its height; at most twice is held.
  CHECK(largest >= 40U * (4000 + 72000 + 616));
  CHECK(largest <= 2U * 40U * (4000 + 72000 + 616 + 5000));
  workspace.release();
  CHECK(workspace.capacity() == 0);
  some_call(workspace, 2);
}

TEST_CASE("what is taken is aligned, does not overlap, and returns with its scope") {
  Workspace workspace(Device::cpu());
  Workspace::Scope scope(workspace);
  const auto a = scope.take<std::uint8_t>(1);
  const auto b = scope.take<float>(100000);
  const auto c = scope.take<double>(3);
  for (const void* data : {static_cast<const void*>(a.data()), static_cast<const void*>(b.data()),
                           static_cast<const void*>(c.data())})
    CHECK(reinterpret_cast<std::uintptr_t>(data) % kAlignment == 0);
  std::fill(b.begin(), b.end(), 1.0F);
  a[0] = 9;
  std::fill(c.begin(), c.end(), 2.0);
  CHECK(b.front() == 1.0F);
  CHECK(b.back() == 1.0F);
  CHECK(scope.take<float>(0).empty());
  const void* first = nullptr;
  for (int i = 0; i < 3; ++i) {
    Workspace::Scope inner(workspace);
    const auto d = inner.take<float>(10);
    if (i == 0) first = d.data();
    CHECK(d.data() == first);
  }
  CHECK(b[50000] == 1.0F);
}

TEST_CASE("misuse of the workspace is refused") {
  Workspace workspace(Device::cpu());
  Workspace::Scope outer(workspace);
  CHECK_THROWS_WITH(workspace.release(), Contains("in use"));
  CHECK_THROWS_WITH(outer.take<float>(-1), Contains("-1"));
  Workspace::Scope inner(workspace);
  CHECK_THROWS_AS(outer.take<float>(1), InvalidArgument);
  CHECK(inner.take<float>(1).size() == 1);
}

TEST_CASE("a workspace out of memory says how much, and works on") {
  Workspace workspace(Device::cpu());
  some_call(workspace, 1);
  {
    Workspace::Scope scope(workspace);
    const auto kept = scope.take<float>(100);
    std::fill(kept.begin(), kept.end(), 5.0F);
    CHECK_THROWS_WITH(scope.take<float>(std::int64_t{1} << 58), Contains("1152921504606846976"));
    CHECK_THROWS_AS(scope.take<float>(std::int64_t{1} << 60), OutOfMemory);
    CHECK_THROWS_AS(scope.take<double>(std::numeric_limits<std::int64_t>::max()), OutOfMemory);
    CHECK(kept[99] == 5.0F);
    CHECK(scope.take<float>(100).size() == 100);
  }
  some_call(workspace, 3);
}

TEST_CASE("a context has what was asked for") {
  Context context(Device::cpu(), {.threads = 3, .seed = 42});
  CHECK(context.device() == Device::cpu());
  CHECK(context.threads() == 3);
  CHECK(context.pool().size() == 3);
  CHECK(context.random().seed() == 42);
  CHECK(context.workspace().capacity() == 0);
  CHECK(context.explain().empty());
  Context moved = std::move(context);
  CHECK(moved.threads() == 3);
  CHECK(Context(Device::cpu()).threads() == available_threads());
}

TEST_CASE("a context that cannot be is refused") {
  CHECK_THROWS_AS(Context(Device::cuda(99)), Unsupported);
  CHECK_THROWS_WITH(Context(Device::cuda(99)), Contains("cuda:99") && Contains("CUDA: "));
  CHECK_THROWS_WITH(Context(Device::cpu(), {.threads = -1}), Contains("-1"));
  CHECK_THROWS_WITH(Context(Device::cpu(), {.threads = 100000}), Contains("100000"));
  CHECK_THROWS_WITH(Context(Device{DeviceType::cpu, 4}), Contains("4"));
}

TEST_CASE("plans are chosen once, explained, and bounded") {
  PlanCache plans(3);
  int choices = 0;
  const auto find = [&](std::int64_t n) -> const Plan& {
    return plans.find({"scan", {n, 8}}, [&] {
      ++choices;
      return Plan{static_cast<int>(n), "reason " + std::to_string(n)};
    });
  };
  CHECK(find(1).algorithm == 1);
  CHECK(find(1).reason == "reason 1");
  CHECK(choices == 1);
  find(2);
  find(3);
  find(1);
  CHECK(plans.size() == 3);
  CHECK(plans.explain() == "scan [1, 8]: reason 1\nscan [3, 8]: reason 3\nscan [2, 8]: reason 2\n");
  find(4);  // drops 2, the least recently used
  CHECK(plans.size() == 3);
  CHECK(choices == 4);
  find(1);
  CHECK(choices == 4);
  find(2);
  CHECK(choices == 5);
  for (std::int64_t n = 10; n < 1000; ++n) find(n);
  CHECK(plans.size() == 3);

  const std::string same_name = "scan";  // another address
  plans.find({same_name.c_str(), {999, 8}}, [&]() -> Plan { throw std::logic_error("not known"); });
  CHECK_THROWS_AS(plans.find({"scan", {5}}, []() -> Plan { throw std::runtime_error("cannot"); }),
                  std::runtime_error);
  CHECK(plans.size() == 3);
  CHECK(PlanCache(0).find({"x", {}}, [] { return Plan{7, ""}; }).algorithm == 7);
}

}  // namespace packrnn

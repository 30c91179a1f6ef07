// Capture and launch of graphs.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <packrnn/runtime/error.hpp>
#include <packrnn/runtime/graph.hpp>
#include <stdexcept>
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

bool on_gpu() { return Device::best().type == DeviceType::cuda; }

}  // namespace

TEST_CASE("a graph cannot be captured on the CPU") {
  Context context(Device::cpu());
  CHECK_THROWS_AS(capture(context, [] {}), Unsupported);
  Graph none;
  CHECK_FALSE(none.defined());
  CHECK_THROWS_WITH(none.launch(context), Contains("empty"));
}

TEST_CASE("a launch does what was captured, with the memory of now") {
  if (!on_gpu()) PACKRNN_SKIP("no graphs on the CPU");
  Context context;
  Tensor input = context.to_device(counted(1000, 1));
  Tensor output = context.zeros({1000}, Dtype::i64);
  Tensor inner;
  Graph graph = capture(context, [&] {
    inner = context.to_device(input);  // lives on, and so does its memory
    Workspace::Scope scope(context.workspace());
    const auto scratch = scope.take<std::int64_t>(1000);
    const TensorSpan span(scratch.data(), {1000}, Dtype::i64, context.device());
    context.copy(inner, span);
    Tensor twice = context.to_device(span);  // dies here, but not its memory
    context.copy(twice, output);
  });
  CHECK(graph.defined());
  CHECK(fetch(context, output) == std::vector<std::int64_t>(1000, 0));  // nothing was done
  for (int round = 1; round < 5; ++round) {
    context.copy(counted(1000, round), input);
    const std::int64_t before = gpu::waits();
    graph.launch(context);
    CHECK(gpu::waits() == before);
    CHECK(fetch(context, output) == values_of(counted(1000, round)));
    CHECK(fetch(context, inner) == values_of(counted(1000, round)));
    {  // the context's own workspace is another
      Workspace::Scope scope(context.workspace());
      const auto scratch = scope.take<std::int64_t>(1000);
      context.copy(counted(1000, -5),
                   TensorSpan(scratch.data(), {1000}, Dtype::i64, context.device()));
    }
  }
  Graph moved = std::move(graph);
  CHECK_FALSE(graph.defined());
  context.copy(counted(1000, 50), input);
  moved.launch(context);
  moved.launch(context);
  moved = Graph();  // while it runs
  CHECK(fetch(context, output) == values_of(counted(1000, 50)));
  CHECK(fetch(context, inner) == values_of(counted(1000, 50)));
}

TEST_CASE("host tables that were uploaded in a capture keep their values of then") {
  if (!on_gpu()) PACKRNN_SKIP("no graphs on the CPU");
  Context context;
  Tensor output = context.zeros({500'000}, Dtype::i64);
  Graph graph = capture(context, [&] {
    Tensor host = counted(500'000, 9);  // more than the ring of pinned memory
    context.copy(context.to_device(host), output);
    std::fill(host.values<std::int64_t>().begin(), host.values<std::int64_t>().end(), -1);
  });
  for (int round = 0; round < 3; ++round) {
    context.copy(context.zeros({500'000}, Dtype::i64), output);
    // Meanwhile the ring is used for something else.
    for (int i = 0; i < 20; ++i) context.to_device(counted(50'000, -3));
    graph.launch(context);
    CHECK(fetch(context, output) == values_of(counted(500'000, 9)));
  }
}

TEST_CASE("what cannot be done in a capture is refused, and the context stays usable") {
  if (!on_gpu()) PACKRNN_SKIP("no graphs on the CPU");
  Context context;
  Context other;
  Tensor data = context.to_device(counted(10));
  const auto refused = [&](const auto& body) {
    CHECK_THROWS_AS(capture(context, body), InvalidArgument);
    CHECK(fetch(context, data) == values_of(counted(10)));
    const std::size_t capacity = context.workspace().capacity();
    CHECK(context.workspace().capacity() == capacity);
  };
  refused([&] { context.to_host(data); });
  refused([&] { context.synchronize(); });
  refused([&] { context.wait_for(other); });
  refused([&] { other.wait_for(context); });
  refused([&] { capture(context, [] {}); });
  CHECK_THROWS_AS(capture(context,
                          [&] {
                            Workspace::Scope scope(context.workspace());
                            scope.take<float>(1000);
                            const Tensor made = context.zeros({10}, Dtype::i64);
                            context.copy(made, data);
                            throw std::logic_error("the body's own");
                          }),
                  std::logic_error);
  CHECK(fetch(context, data) == values_of(counted(10)));

  Tensor doomed = context.to_device(counted(10, 3));
  Graph graph = capture(context, [&] {
    doomed = Tensor();  // was made before: its memory returns after the capture, and only once
    context.copy(counted(10, 4), data);
  });
  graph.launch(context);
  graph.launch(context);
  CHECK(fetch(context, data) == values_of(counted(10, 4)));
  CHECK_THROWS_WITH(graph.launch(other), Contains("another context"));
}

TEST_CASE("a graph may outlive its context, but not be launched then") {
  if (!on_gpu()) PACKRNN_SKIP("no graphs on the CPU");
  Graph graph;
  Tensor output;
  {
    Context context;
    output = context.zeros({10}, Dtype::i64);
    graph = capture(context, [&] { context.copy(counted(10, 2), output); });
    Context moved = std::move(context);
    graph.launch(moved);
    moved.synchronize();
  }
  Context other;
  CHECK_THROWS_AS(graph.launch(other), InvalidArgument);
  CHECK(fetch(other, output) == values_of(counted(10, 2)));
}

}  // namespace packrnn

// Layers one above the other: the bits of one recurrent_forward() after the other, however the
// layers of a GPU share it.
#include <array>
#include <string>
#include <vector>

#include "packrnn/kernels/cuda/persistent.hpp"
#include "packrnn/kernels/cuda/persistent_exact.hpp"
#include "packrnn/kernels/cuda/wavefront.hpp"
#include "packrnn/runtime/error.hpp"
#include "packrnn/runtime/graph.hpp"
#include "tests/catch.hpp"
#include "tests/environment.hpp"
#include "tests/kernels/recurrent_problem.hpp"

namespace packrnn::tests {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
using kernels::Cell;
using kernels::RecurrentLayer;
using kernels::RecurrentShape;
using kernels::cuda::Algorithm;
using kernels::cuda::Choice;
using kernels::cuda::Mapping;
using kernels::cuda::Wavefront;
using Lengths64 = std::vector<std::int64_t>;

/// What every layer gives.
using Outputs = std::vector<RecurrentOutput>;

struct StackProblem {
  std::vector<RecurrentProblem> layers;

  StackProblem(const RecurrentShape& first, int count, const Lengths64& lengths,
               const std::vector<bool>& reverse = {false}) {
    RecurrentShape shape = first;
    for (int l = 0; l < count; ++l) {
      layers.emplace_back(shape, lengths, reverse);
      shape.input = shape.state() * std::ssize(reverse);
    }
  }

  /// One layer after the other, with something done to the output of each but the last; only the
  /// last y is kept.
  using Between = std::function<void(const PackedLayout&, std::size_t layer, const TensorSpan&)>;
  Outputs in_turn(Context& context, const Between& between = {}) const {
    Outputs all;
    Tensor below;
    for (std::size_t l = 0; l < layers.size(); ++l) {
      all.push_back(layers[l].run(
          context,
          [&](Context& c, const auto& shape, const PackedLayout& layout, const TensorView& x,
              auto directions, const TensorSpan& y, const auto& cells) {
            kernels::recurrent_forward(c, shape, layout, l == 0 ? x : below.view(), directions, y,
                                       cells);
            if (l + 1 == layers.size()) return;
            if (between) between(layout, l, y);
            below = c.empty(y.shape(), y.dtype());
            c.copy(y, below);
          }));
      if (l + 1 < layers.size()) all.back().y = Tensor();
    }
    return all;
  }

  using Forward = std::function<void(Context&, const PackedLayout&, const TensorView&,
                                     std::span<const RecurrentLayer>, const TensorSpan&)>;
  Outputs stacked(
      Context& context,
      const Forward& forward = [](auto&&... all) { kernels::stack_forward(all...); }) const {
    struct Memory {
      std::vector<Tensor> tensors;
      std::vector<kernels::RecurrentDirection> directions;
      Tensor cells, reserve;
    };
    const PackedLayout& layout = *layers[0].layout;
    const auto D = std::ssize(layers[0].reverse);
    const auto N = layout.batch(), total = layout.total();
    const auto up = [&](const Tensor& t) { return t.defined() ? context.to_device(t) : Tensor(); };
    std::vector<Memory> memory(layers.size());
    std::vector<RecurrentLayer> stack;
    for (std::size_t l = 0; l < layers.size(); ++l) {
      const RecurrentProblem& problem = layers[l];
      const RecurrentShape& s = problem.shape;
      const bool lstm = s.cell == Cell::lstm;
      const Dtype cell = kernels::cell_dtype(s.dtype);
      Memory& to = memory[l];
      for (std::int64_t d = 0; d < D; ++d) {
        const auto& from = problem.direction[static_cast<std::size_t>(d)];
        const std::int64_t elements = kernels::recurrent_panel_elements(context.device(), s);
        std::array<Tensor, 5> made = {context.empty({elements}, s.dtype), up(from.h_0),
                                      up(from.c_0), context.empty({N, s.state()}, s.dtype),
                                      lstm ? context.empty({N, s.hidden}, cell) : Tensor()};
        kernels::pack_recurrent(context, s, {from.w_ih, from.w_hh, from.b_ih, from.b_hh, from.w_hr},
                                made[0]);
        to.directions.push_back({made[0], problem.reverse[static_cast<std::size_t>(d)], made[1],
                                 made[2], made[3], made[4]});
        for (Tensor& tensor : made) to.tensors.push_back(std::move(tensor));
      }
      if (lstm) to.cells = context.empty({total, D * s.hidden}, cell);
      if (lstm && D == 1 && l % 2 == 1 && on_gpu()) {  // as for a backward
        to.reserve = context.empty({total * s.hidden}, cell);
        to.directions[0].reserve = to.reserve;
      }
      stack.push_back({s, to.directions, to.cells.defined() ? to.cells.span() : TensorSpan{}});
    }
    const Tensor x = context.to_device(layers[0].x);
    const RecurrentShape& last = layers.back().shape;
    Tensor y = context.empty({total, D * last.state()}, last.dtype);
    forward(context, layout, x, stack, y);

    Outputs all(layers.size());
    for (std::size_t l = 0; l < layers.size(); ++l) {
      for (const kernels::RecurrentDirection& d : memory[l].directions) {
        all[l].h_n.push_back(context.to_host(d.h_n));
        all[l].c_n.push_back(d.c_n.defined() ? context.to_host(d.c_n) : Tensor());
      }
      if (memory[l].cells.defined()) all[l].cells = context.to_host(memory[l].cells);
      if (memory[l].reserve.defined())
        CHECK(tests::differences(
                  context.to_host(memory[l].reserve).reshape({total, layers[l].shape.hidden}),
                  all[l].cells) == 0);
    }
    all.back().y = context.to_host(y);
    return all;
  }

  Outputs stacked(Context& context, const Wavefront& wavefront) const {
    return stacked(context, [&](Context& c, const PackedLayout& layout, const TensorView& x,
                                std::span<const RecurrentLayer> stack, const TensorSpan& y) {
      std::vector<Tensor> inner;
      std::vector<TensorSpan> outputs;
      for (std::size_t l = 0; l + 1 < stack.size(); ++l) {
        inner.push_back(c.empty({layout.total(), stack[l].shape.state()}, stack[l].shape.dtype));
        outputs.push_back(inner.back());
      }
      outputs.push_back(y);
      kernels::cuda::wavefront_forward(c, wavefront, layout, x, stack, outputs);
    });
  }
};

std::int64_t differences(const Outputs& a, const Outputs& b) {
  std::int64_t count = a.size() == b.size() ? 0 : 1;
  for (std::size_t l = 0; l < std::min(a.size(), b.size()); ++l)
    count += tests::differences(a[l], b[l]);
  return count;
}

std::vector<Mapping> mappings(const Context& context, const StackProblem& stack) {
  const RecurrentProblem& layer = stack.layers.back();
  const int device = context.device().index;
  std::string obstacle;
  return layer.shape.dtype == Dtype::f32
             ? kernels::cuda::exact_persistent_mappings(device, layer.shape, layer.layout->batch(),
                                                        1, obstacle)
             : kernels::cuda::persistent_mappings(device, layer.shape, context.f32_math(),
                                                  layer.layout->batch(), 1, obstacle);
}

Choice persistent(const Context& context, const StackProblem& stack) {
  const Algorithm algorithm = stack.layers[0].shape.dtype == Dtype::f32
                                  ? Algorithm::exact_persistent
                                  : Algorithm::persistent;
  return {algorithm, mappings(context, stack).front(), ""};
}

const Lengths64 kLengths = {5, 0, 9, 1, 9, 2};

}  // namespace

TEST_CASE("a stack has the bits of its layers in turn") {
  const auto cell = GENERATE(Cell::lstm, Cell::gru, Cell::rnn_tanh);
  const auto dtype = GENERATE(Dtype::f32, Dtype::f64);
  const auto count = GENERATE(1, 2, 3, 4);
  const bool both = GENERATE(false, true);
  PACKRNN_ONE_IN(5);
  const StackProblem stack({cell, 3, 10, 0, dtype}, count, kLengths,
                           both ? std::vector{false, true} : std::vector{false});
  INFO(name_of(cell) << " " << name_of(dtype) << ", layers " << count << ", both " << both);
  Context context;
  CHECK(differences(stack.in_turn(context), stack.stacked(context)) == 0);
}

TEST_CASE("a stack of LSTMs with projection has the bits of its layers in turn") {
  const StackProblem stack({Cell::lstm, 3, 10, 4, Dtype::f32}, 3, kLengths);
  Context context;
  CHECK(differences(stack.in_turn(context), stack.stacked(context)) == 0);
}

TEST_CASE("an empty batch and sequences without steps pass through a stack") {
  const auto lengths = GENERATE(Lengths64{}, Lengths64{0, 0});
  const StackProblem stack({Cell::lstm, 3, 5, 0, Dtype::f32}, 3, lengths);
  Context context;
  CHECK(differences(stack.in_turn(context), stack.stacked(context)) == 0);
}

TEST_CASE("layers of a stack that do not fit are refused before anything runs") {
  StackProblem stack({Cell::gru, 3, 5, 0, Dtype::f32}, 3, kLengths);
  stack.layers[2] = RecurrentProblem({Cell::gru, 4, 5, 0, Dtype::f32}, kLengths);
  Context context;
  CHECK_THROWS_WITH(stack.stacked(context), Contains("x has shape [26, 5], expected [26, 4]"));
  CHECK_THROWS_WITH(
      stack.stacked(context,
                    [](Context& c, const PackedLayout& layout, const TensorView& x, auto,
                       const TensorSpan& y) { kernels::stack_forward(c, layout, x, {}, y); }),
      Contains("layers: none given"));
}

TEST_CASE("dropout between the layers of a stack is that of kernels::dropout") {
  const StackProblem stack({Cell::gru, 3, 5, 0, Dtype::f32}, 3, kLengths);
  Context context;
  const kernels::StackDropout dropout{{7, 3, 0}, 0.4};
  const Outputs got =
      stack.stacked(context, [&](auto&&... all) { kernels::stack_forward(all..., dropout); });
  const Outputs expected =
      stack.in_turn(context, [&](const PackedLayout& layout, std::size_t l, const TensorSpan& y) {
        kernels::DropoutKey key = dropout.key;
        key.layer = static_cast<std::uint32_t>(l);
        kernels::dropout(context, layout, key, dropout.p, y);
      });
  CHECK(differences(expected, got) == 0);
}

TEST_CASE("layers at the same time have the bits of layers in turn") {
  NEEDS_A_GPU;
  const auto cell = GENERATE(Cell::lstm, Cell::gru, Cell::rnn_relu);
  const auto dtype = GENERATE(Dtype::f32, Dtype::bf16);
  const auto ranges = GENERATE(1, 2, 4, 9, 30);
  PACKRNN_ONE_IN(3);
  const auto count = ranges == 4 ? 4 : 2;
  const StackProblem stack({cell, 3, 16, 0, dtype}, count, kLengths);
  INFO(name_of(cell) << " " << name_of(dtype) << ", ranges " << ranges);
  Context context;
  const Outputs expected = stack.in_turn(context);
  const Wavefront wavefront{persistent(context, stack), ranges};
  CHECK(differences(expected, stack.stacked(context, wavefront)) == 0);
  CHECK(differences(expected, stack.stacked(context, wavefront)) == 0);  // with lanes that exist
}

TEST_CASE("layers work at the same time where one leaves room for the others") {
  NEEDS_A_GPU;
  const StackProblem stack({Cell::lstm, 3, 8, 0, Dtype::bf16}, 2, Lengths64(2, 400));
  Context context;
  const Outputs expected = stack.in_turn(context);
  const Outputs got = stack.stacked(context, [](auto&&... all) {
    const std::int64_t before = gpu::waits();
    kernels::stack_forward(all...);
    CHECK(gpu::waits() == before);
  });
  CHECK(differences(expected, got) == 0);
  CHECK_THAT(context.explain(), Contains("2 layers: at the same time in "));
}

TEST_CASE("a stack that would not be faster runs in turn and says why") {
  NEEDS_A_GPU;
  Context context;
  const StackProblem few({Cell::lstm, 3, 8, 0, Dtype::bf16}, 2, kLengths);
  few.stacked(context);
  CHECK_THAT(context.explain(), Contains("2 layers: in turn"));
  Context stepwise(Device::best(), {.algorithm = "step"});
  const StackProblem many({Cell::gru, 3, 8, 0, Dtype::f32}, 2, Lengths64(2, 400));
  many.stacked(stepwise);
  CHECK_THAT(stepwise.explain(), Contains("no persistent kernel leaves room"));
}

TEST_CASE("a stack says how it will run") {
  const RecurrentShape shape{Cell::lstm, 8, 8, 0, Dtype::f32};
  const std::array<kernels::RecurrentDirection, 2> both{};
  const auto explained = [&](std::size_t count, std::size_t directions, std::int64_t steps) {
    Context context;
    RecurrentShape first = shape;
    first.input *= std::int64_t(directions);
    const std::vector<RecurrentLayer> layers(count, {first, {both.data(), directions}, {}});
    return kernels::explain_stack(context, *PackedLayout::make(Lengths(Lengths64(2, steps))),
                                  layers);
  };
  CHECK_THAT(explained(1, 1, 400),
             StartsWith("layer 0: ") && !Contains("layer 1") && !Contains("layers"));
  CHECK_THAT(explained(2, 2, 400), Contains("layer 0: ") && Contains("layer 1: "));
  NEEDS_A_GPU;
  CHECK_THAT(explained(2, 2, 400), Contains("layers 0 to 1: in turn: not all alike"));
  CHECK_THAT(explained(2, 1, 400), StartsWith("layers 0 to 1: ") &&
                                       Contains("at the same time in") && !Contains("layer 1"));
  CHECK_THAT(explained(2, 1, 0), StartsWith("layers 0 to 1: in turn: no steps"));
  CHECK_THAT(explained(3, 1, 4), Contains("layers: in turn, ") && Contains("layer 2: "));
}

TEST_CASE("a captured stack runs in turn") {
  NEEDS_A_GPU;
  const StackProblem stack({Cell::gru, 3, 8, 0, Dtype::f32}, 2, Lengths64(2, 400));
  Context context;
  const Outputs expected = stack.in_turn(context);
  Graph graph;
  const Outputs got = stack.stacked(context, [&](auto& c, auto&&... all) {
    graph = capture(c, [&] { kernels::stack_forward(c, all...); });
    graph.launch(c);
  });
  CHECK(differences(expected, got) == 0);
}

TEST_CASE("a lane works beside its context and reports to it") {
  NEEDS_A_GPU;
  Context context(Device::best(), {.f32_math = F32Math::tf32, .algorithm = "persistent"});
  Context& lane = context.lane(1);
  CHECK(&lane == &context.lane(1));
  CHECK(lane.stream() != context.stream());
  CHECK(lane.stream() != context.lane(0).stream());
  CHECK(lane.fault() == context.fault());
  CHECK(lane.device() == context.device());
  CHECK(lane.f32_math() == F32Math::tf32);
  CHECK(lane.algorithm() == "persistent");
  const Context moved = std::move(context);
  CHECK(lane.fault() == moved.fault());
}

TEST_CASE("a context on the CPU has no lanes") {
  Context context(Device::cpu());
  CHECK_THROWS_WITH(context.lane(0), Contains("lane 0 was asked of a context on cpu"));
}

}  // namespace packrnn::tests

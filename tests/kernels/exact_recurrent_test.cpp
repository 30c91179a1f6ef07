// The exact path of a GPU: f32 and f64 with the bits of the CPU engine, whichever algorithm runs,
// however it is laid over the device and however the work is cut.
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "packrnn/kernels/cpu_target.hpp"
#include "packrnn/kernels/cuda/persistent_exact.hpp"
#include "packrnn/kernels/cuda/recurrent.hpp"
#include "packrnn/kernels/layout.hpp"
#include "packrnn/runtime/error.hpp"
#include "tests/catch.hpp"
#include "tests/environment.hpp"
#include "tests/kernels/recurrent_problem.hpp"

namespace packrnn::tests {
namespace {

using Catch::Matchers::Contains;
using kernels::Cell;
using kernels::cuda::Algorithm;
using kernels::cuda::Choice;
using kernels::cuda::Mapping;

constexpr Cell kCells[] = {Cell::lstm, Cell::gru, Cell::gru_reset_before, Cell::rnn_tanh,
                           Cell::rnn_relu};

/// A chain of fused multiply-adds has its bits only where the CPU has the instruction.
bool cpu_fuses() {
  const std::string target = kernels::cpu_target();
  for (const char* const name : {"AVX2", "AVX3", "NEON"})
    if (target.find(name) != std::string::npos) return true;
  return false;
}

RecurrentOutput on_cpu(const RecurrentProblem& problem) {
  Context context(Device::cpu(), {.threads = 1});
  return problem.run(context);
}

std::vector<Mapping> mappings(const Context& context, const RecurrentProblem& problem) {
  std::string obstacle;
  return kernels::cuda::exact_persistent_mappings(
      context.device().index, problem.shape, problem.layout->batch(),
      static_cast<int>(problem.reverse.size()), obstacle);
}

Choice stepwise() { return {Algorithm::step, {}, ""}; }

bool persistent_runs(const kernels::RecurrentShape& s) {
  return s.dtype == Dtype::f32 && s.projection == 0 && s.cell != Cell::gru_reset_before;
}

}  // namespace

TEST_CASE("a GPU gives the bits of the CPU") {
  NEEDS_A_GPU;
  if (!cpu_fuses()) PACKRNN_SKIP("this CPU has no fused multiply-add: " + kernels::cpu_target());
  const auto cell = GENERATE(from_range(std::begin(kCells), std::end(kCells)));
  const auto dtype = GENERATE(Dtype::f32, Dtype::f64);
  const auto hidden = GENERATE(1, 5, 33);
  const auto way = GENERATE(0, 1, 2);
  PACKRNN_ONE_IN(5);
  const bool full = hidden != 5;
  const RecurrentProblem problem({cell, hidden == 1 ? 1 : 6, hidden, 0, dtype},
                                 {3, 0, 6, 1, 4, 6, 2},
                                 way == 0   ? std::vector{false}
                                 : way == 1 ? std::vector{true}
                                            : std::vector{false, true},
                                 full, full);
  INFO(name_of(cell) << " " << name_of(dtype) << " H " << hidden << " way " << way);
  const RecurrentOutput expected = on_cpu(problem);
  Context context;
  const RecurrentOutput step = run_choice(context, problem, stepwise());
  CHECK(differences(expected, step) == 0);
  CHECK(problem.error(step) <= 1.0);
  if (!persistent_runs(problem.shape)) return;
  const Mapping mapping = mappings(context, problem).front();
  CHECK(differences(expected,
                    run_choice(context, problem, {Algorithm::exact_persistent, mapping, ""})) == 0);
}

TEST_CASE("sigmoid and tanh of a GPU have the bits of the CPU over all magnitudes") {
  NEEDS_A_GPU;
  if (!cpu_fuses()) PACKRNN_SKIP("this CPU has no fused multiply-add: " + kernels::cpu_target());
  const auto dtype = GENERATE(Dtype::f32, Dtype::f64);
  std::vector<double> values = {0.0,    -0.0,  1e-45,  5e-324, INFINITY, -INFINITY, NAN, 87.5,
                                -104.0, 710.0, -746.0, 9.1,    0.625,    -0.625,    1e30};
  for (double size = 1e-9; size < 800; size *= 1.0437) {
    values.push_back(size);
    values.push_back(-size);
  }
  const auto N = static_cast<std::int64_t>(values.size());
  const Tensor x = convert(Tensor::from(values, {N, 1}), dtype);
  const auto row = [&](std::vector<double> numbers) {
    const auto count = static_cast<std::int64_t>(numbers.size());
    return convert(Tensor::from(numbers, {count, 1}), dtype);
  };
  Context context;
  // One unit, one step: h = tanh(x); and c = sigmoid(x) * tanh(20), where f is about 0.
  RecurrentProblem rnn({Cell::rnn_tanh, 1, 1, 0, dtype},
                       std::vector<std::int64_t>(values.size(), 1), {false}, false, false);
  rnn.direction[0].w_ih = row({1});
  rnn.x = x.clone();
  CHECK(differences(on_cpu(rnn), run_choice(context, rnn, stepwise())) == 0);
  RecurrentProblem lstm({Cell::lstm, 1, 1, 0, dtype}, std::vector<std::int64_t>(values.size(), 1),
                        {false}, false, true);
  lstm.direction[0].w_ih = row({1, 0, 0, 0});
  lstm.direction[0].b_ih = row({0, -1000, 20, 0}).reshape({4});
  lstm.direction[0].b_hh = row({0, 0, 0, 0}).reshape({4});
  lstm.x = x.clone();
  CHECK(differences(on_cpu(lstm), run_choice(context, lstm, stepwise())) == 0);
}

TEST_CASE("a sum of negative zeros stays negative") {
  NEEDS_A_GPU;
  // Padding may add nothing to a sum, not even +0, which would turn -0 into +0.
  const auto cell = GENERATE(Cell::rnn_tanh, Cell::rnn_relu);
  RecurrentProblem problem({cell, 1, 1, 0, Dtype::f32}, {2}, {false}, false, true);
  for (Tensor* const t : {&problem.direction[0].w_ih, &problem.direction[0].w_hh,
                          &problem.direction[0].b_ih, &problem.direction[0].b_hh})
    t->values<float>()[0] = -0.0F;
  problem.x.values<float>()[0] = problem.x.values<float>()[1] = 1.0F;
  Context context;
  std::vector<Choice> choices = {stepwise()};
  for (const Mapping& mapping : mappings(context, problem))
    choices.push_back({Algorithm::exact_persistent, mapping, ""});
  for (const Choice& choice : choices) {
    const RecurrentOutput out = run_choice(context, problem, choice);
    CHECK(std::signbit(out.y.values<float>()[0]));
  }
}

TEST_CASE("an LSTM with projection gives the bits of the CPU") {
  NEEDS_A_GPU;
  if (!cpu_fuses()) PACKRNN_SKIP("this CPU has no fused multiply-add: " + kernels::cpu_target());
  const auto dtype = GENERATE(Dtype::f32, Dtype::f64);
  const auto projection = GENERATE(1, 7, 20);
  PACKRNN_ONE_IN(5);
  const RecurrentProblem problem({Cell::lstm, 4, 21, projection, dtype}, {2, 5, 0, 3},
                                 {false, true});
  Context context;
  CHECK(differences(on_cpu(problem), problem.run(context)) == 0);
}

TEST_CASE("the persistent kernel gives the same bits in every layout over the device") {
  NEEDS_A_GPU;
  const auto cell = GENERATE(Cell::lstm, Cell::gru, Cell::rnn_relu);
  // Several chunks of every size, with rows that end within them; units and rows to spare.
  std::vector<std::int64_t> lengths;
  for (std::int64_t n = 0; n < full_or_small(37, 17); ++n) lengths.push_back((n * 5) % 7);
  const RecurrentProblem problem({cell, 2, 19, 0, Dtype::f32}, lengths, {false, true});
  Context context;
  const RecurrentOutput expected = run_choice(context, problem, stepwise());
  const std::vector<Mapping> all = mappings(context, problem);
  REQUIRE(all.size() > 4);
  for (Mapping mapping : all)
    for (const bool in_turn : {mapping.directions_in_turn, true}) {
      mapping.directions_in_turn = in_turn;
      INFO(name_of(cell) << " " << mapping.blocks << " blocks of " << mapping.units << " units, "
                         << mapping.groups << " groups, " << mapping.rows << " rows");
      CHECK(differences(expected, run_choice(context, problem,
                                             {Algorithm::exact_persistent, mapping, ""})) == 0);
    }
}

TEST_CASE("input products in ranges of steps change no bit") {
  NEEDS_A_GPU;
  const auto cell = GENERATE(Cell::lstm, Cell::gru_reset_before, Cell::rnn_tanh);
  const auto way = GENERATE(0, 1, 2);
  PACKRNN_ONE_IN(2);
  const RecurrentProblem problem({cell, 3, 9, 0, Dtype::f32}, {9, 2, 0, 5, 7, 1},
                                 way == 0   ? std::vector{false}
                                 : way == 1 ? std::vector{true}
                                            : std::vector{false, true});
  Context context;
  const RecurrentOutput expected = run_choice(context, problem, stepwise());
  std::vector<Choice> choices = {stepwise()};
  if (persistent_runs(problem.shape))
    choices.push_back({Algorithm::exact_persistent, mappings(context, problem).front(), ""});
  for (const Choice& choice : choices)
    for (const std::int64_t rows : {1, 4, 9, 20}) {  // a step each, some steps, nearly all
      const std::int64_t bytes = rows * 16 * gates(cell) * 4;
      INFO(name_of(cell) << " " << rows << " rows at a time, way " << way);
      CHECK(differences(expected, run_choice(context, problem, choice, bytes)) == 0);
    }
}

TEST_CASE("lengths that only the device knows change no bit") {
  NEEDS_A_GPU;
  const auto cell = GENERATE(Cell::lstm, Cell::gru_reset_before, Cell::rnn_tanh);
  const RecurrentProblem problem({cell, 3, 10, 0, Dtype::f32}, {4, 0, 6, 1, 6}, {false, true});
  Context context;
  const RecurrentOutput expected = run_choice(context, problem, stepwise());
  const Tensor lengths = context.to_device(
      Tensor::from(std::vector<std::int64_t>(problem.lengths), {problem.layout->batch()}));
  kernels::LayoutCapacity capacity;
  capacity.padded_length = 8;
  capacity.rows = 25;
  const PackedLayoutPtr layout = kernels::make_layout(context, lengths, capacity);
  std::vector<Choice> choices = {stepwise()};
  if (persistent_runs(problem.shape))
    choices.push_back({Algorithm::exact_persistent, mappings(context, problem).front(), ""});
  for (const Choice& choice : choices) {
    const RecurrentOutput got = run_choice(context, problem, choice, 1 << 30, layout.get());
    const std::int64_t total = problem.layout->total();
    CHECK(differences(expected.y, got.y.view().rows(0, total)) == 0);
    CHECK(differences(Tensor::zeros({25 - total, 20}, Dtype::f32), got.y.view().rows(total, 25)) ==
          0);
    for (std::size_t d = 0; d < 2; ++d) {
      CHECK(differences(expected.h_n[d], got.h_n[d]) == 0);
      CHECK(differences(expected.c_n[d], got.c_n[d]) == 0);
    }
    if (got.cells.defined())
      CHECK(differences(expected.cells, got.cells.view().rows(0, total)) == 0);
  }
}

TEST_CASE("a NaN stays in its sequence and stops nothing") {
  NEEDS_A_GPU;
  const auto cell = GENERATE(Cell::lstm, Cell::gru, Cell::rnn_relu);
  RecurrentProblem problem({cell, 3, 10, 0, Dtype::f32}, {5, 4, 6, 2}, {false, true});
  Context context;
  const RecurrentOutput clean = run_choice(context, problem, stepwise());
  // Every bit set: what an empty mailbox holds. Sequence 0 has it in its input, 3 in its state.
  float worst;
  std::memset(&worst, 0xFF, sizeof worst);
  problem.x.values<float>()[static_cast<std::size_t>(problem.layout->row(0, 2) * 3)] = worst;
  for (RecurrentProblem::Direction& d : problem.direction)
    for (std::size_t j = 0; j < 10; ++j) d.h_0.values<float>()[3 * 10 + j] = worst;
  std::vector<Choice> choices = {stepwise()};
  for (const Mapping& mapping : mappings(context, problem))
    choices.push_back({Algorithm::exact_persistent, mapping, ""});
  const RecurrentOutput expected = run_choice(context, problem, stepwise());
  for (const Choice& choice : choices) {
    const RecurrentOutput got = run_choice(context, problem, choice);
    CHECK(differences(expected, got) == 0);
    for (const std::int64_t n : {1, 2})
      for (std::int64_t t = 0; t < problem.lengths[static_cast<std::size_t>(n)]; ++t) {
        const std::int64_t row = problem.layout->row(n, t);
        CHECK(differences(clean.y.view().rows(row, row + 1), got.y.view().rows(row, row + 1)) == 0);
      }
    CHECK(std::isnan(got.h_n[0].values<float>()[0]));
    CHECK(std::isnan(
        got.y.values<float>()[static_cast<std::size_t>(problem.layout->row(3, 1) * 20)]));
  }
}

TEST_CASE("a persistent kernel that waits in vain gives up with an error") {
  NEEDS_A_GPU;
  // Steps 1 and later without step 0 before them: h of step 0 never comes.
  const RecurrentProblem problem({Cell::gru, 3, 10, 0, Dtype::f32}, {3, 2}, {false});
  Context context;
  const std::vector<Mapping> all = mappings(context, problem);
  REQUIRE(!all.empty());
  const auto forward = [&](Context& c, const auto& shape, const auto& rows, const auto&,
                           auto directions, const auto& y, const auto&) {
    kernels::cuda::RecurrentRun run;
    run.shape = shape;
    run.panels = kernels::cuda::RecurrentPanels::of(shape);
    run.layout = rows.on(c);
    run.ldy = shape.hidden;
    run.first_step = 1;
    run.last_step = 3;
    const Tensor gx = c.zeros({3, run.panels.units * 3}, Dtype::f32);
    Tensor empty = Tensor::empty(y.shape(), y.dtype());
    std::memset(empty.span().raw(), 0xFF, y.bytes());
    c.copy(empty, y);
    run.direction[0] = {.panels = directions[0].panels.raw(),
                        .gx = gx.view().raw(),
                        .h_0 = directions[0].h_0.raw(),
                        .h_n = directions[0].h_n.raw(),
                        .y = y.raw()};
    kernels::cuda::exact_persistent_forward(c, run, all.back());
  };
  {
    const Environment patience("PACKRNN_WATCHDOG_MS", "1");
    CHECK_THROWS_WITH(problem.run(context, forward), Contains("gave up at step 1"));
  }
  // And the context works on.
  CHECK(problem.error(problem.run(context)) <= 1.0);
}

TEST_CASE("where the persistent kernel cannot run it says why") {
  NEEDS_A_GPU;
  Context context;
  const int device = context.device().index;
  std::string why;
  CHECK(
      kernels::cuda::exact_persistent_mappings(device, {Cell::lstm, 3, 8, 4, Dtype::f32}, 4, 1, why)
          .empty());
  CHECK_THAT(why, Contains("without projection"));
  why.clear();
  CHECK(kernels::cuda::exact_persistent_mappings(device, {Cell::lstm, 3, 100000, 0, Dtype::f32}, 4,
                                                 1, why)
            .empty());
  CHECK_THAT(why, Contains("shared memory"));
  // A block of 8 units of H 1200 fits in 160 KiB, and there are 150 of them.
  const gpu::Properties& properties = gpu::properties(device);
  if (properties.shared_per_block < 160 << 10 || properties.multiprocessors >= 150) return;
  why.clear();
  CHECK(kernels::cuda::exact_persistent_mappings(device, {Cell::lstm, 3, 1200, 0, Dtype::f32}, 4, 1,
                                                 why)
            .empty());
  CHECK_THAT(why, Contains("150 blocks, more than the device holds"));
}

}  // namespace packrnn::tests

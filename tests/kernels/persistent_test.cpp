// The persistent kernels on tensor cores: against the double reference, and to the bit whatever the
// mapping, the company and the way the steps are cut.
#include "packrnn/kernels/cuda/persistent.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "packrnn/kernels/cuda/persistent_run.hpp"
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
using kernels::cuda::Mapping;

constexpr Cell kCells[] = {Cell::lstm, Cell::gru, Cell::rnn_tanh, Cell::rnn_relu};

/// A kind of product.
struct Kind {
  Dtype dtype;
  F32Math math;
};
constexpr Kind kKinds[] = {{Dtype::bf16, F32Math::exact},
                           {Dtype::f16, F32Math::exact},
                           {Dtype::f32, F32Math::tf32},
                           {Dtype::f32, F32Math::tf32x3}};

ContextOptions options_of(const Kind& kind) {
  ContextOptions options;
  options.f32_math = kind.math;
  return options;
}

std::string name_of(const Kind& kind) {
  return std::string(packrnn::name_of(kind.dtype)) + " " + packrnn::name_of(kind.math);
}

kernels::cuda::PersistentVariants variants_of(const Kind& kind) {
  if (kind.dtype == Dtype::bf16) return kernels::cuda::persistent_bf16_variants();
  if (kind.dtype == Dtype::f16) return kernels::cuda::persistent_f16_variants();
  return kind.math == F32Math::tf32 ? kernels::cuda::persistent_tf32_variants()
                                    : kernels::cuda::persistent_tf32x3_variants();
}

RecurrentProblem problem_of(const Kind& kind, Cell cell, std::int64_t hidden,
                            std::vector<std::int64_t> lengths,
                            std::vector<bool> reverse = {false, true}, bool full = true) {
  RecurrentProblem problem({cell, 5, hidden, 0, kind.dtype}, std::move(lengths), std::move(reverse),
                           full, full);
  if (kind.dtype == Dtype::f32)
    problem.held_to = kind.math == F32Math::tf32 ? reference::kTf32 : reference::kTf32x3;
  return problem;
}

RecurrentOutput with_mapping(Context& context, const RecurrentProblem& problem,
                             const Mapping& mapping,
                             std::int64_t input_product_bytes = std::int64_t{1} << 30,
                             const PackedLayout* layout = nullptr) {
  return run_choice(context, problem, {Algorithm::persistent, mapping, ""}, input_product_bytes,
                    layout);
}

/// With as few blocks and groups as keep a launch small.
std::vector<Mapping> mappings(const Context& context, const RecurrentProblem& problem) {
  std::string obstacle;
  std::vector<Mapping> all = kernels::cuda::persistent_mappings(
      context.device().index, problem.shape, context.f32_math(), problem.layout->batch(),
      static_cast<int>(problem.reverse.size()), obstacle);
  INFO(obstacle);
  REQUIRE(!all.empty());
  const auto fewer_blocks = [](const Mapping& a, const Mapping& b) { return a.blocks < b.blocks; };
  const int most = std::max(most_blocks(), std::ranges::min(all, fewer_blocks).blocks);
  if (small_shapes()) std::erase_if(all, [&](const Mapping& m) { return m.blocks > most; });
  for (Mapping& m : all) {
    m.directions_in_turn |= m.blocks * 2 > most_blocks();
    m = with_few_groups(m, 2);
  }
  return all;
}

Tensor rows_of(const Tensor& t, std::int64_t begin, std::int64_t end) {
  return t.defined() ? convert(t.view().rows(begin, end), t.dtype()) : Tensor();
}

}  // namespace

TEST_CASE("persistent tensor-core layers are as near to the truth as their numbers allow") {
  NEEDS_A_GPU;
  const Kind kind = GENERATE(from_range(std::begin(kKinds), std::end(kKinds)));
  const Cell cell = GENERATE(from_range(std::begin(kCells), std::end(kCells)));
  const auto i = GENERATE(0U, 1U, 2U, 3U);
  PACKRNN_ONE_IN(3);
  Context context(Device::best(), options_of(kind));
  // Ties, zeros, one long among short ones; units that fill no tile, no vector and no block.
  const std::vector<std::vector<std::int64_t>> lengths = {
      {3, 0, 6, 1, 4, 6, 2, 3, 3, 0, 5}, {1}, {17, 1, 1, 2, 1, 1, 0, 1, 1, 2, 1, 1}};
  const std::int64_t hidden[] = {33, 1, 40, 100};
  const RecurrentProblem problem =
      problem_of(kind, cell, hidden[i], lengths[i % 3],
                 i == 0 ? std::vector{false, true} : std::vector{i == 2}, i % 2 == 0);
  const std::vector<Mapping> all = mappings(context, problem);
  const Mapping& mapping = all[i % all.size()];
  INFO(name_of(kind) << " " << name_of(cell) << " H " << hidden[i] << ", " << described(mapping));
  const double error = problem.error(with_mapping(context, problem, mapping));
  CHECK(error <= 1.0);
  CHECK(error > 0.0);
}

TEST_CASE("every variant of the persistent tensor-core kernel that the device holds") {
  NEEDS_A_GPU;
  const Kind kind = GENERATE(from_range(std::begin(kKinds), std::end(kKinds)));
  Context context(Device::best(), options_of(kind));
  const gpu::Properties& device = gpu::properties(context.device().index);
  // An H200 holds them all.
  const bool whole = device.multiprocessors >= 132 && device.shared_per_block >= 227 << 10;
  std::map<std::pair<Cell, int>, RecurrentOutput> first;  // of a cell and a width
  unsigned combination = 0;
  for (const kernels::cuda::PersistentVariant& v : variants_of(kind)) {
    if (v.chunks > 1 && left_out(combination++, 2)) continue;
    const std::int64_t hidden = v.chunks == 1 ? 40 : 128 * v.chunks + 8;
    const RecurrentProblem problem = problem_of(kind, v.cell, hidden, {1, 2}, {false});
    std::string obstacle;
    const std::vector<Mapping> all = kernels::cuda::persistent_mappings(
        context.device().index, problem.shape, kind.math, 2, 1, obstacle);
    const auto mapping =
        std::find_if(all.begin(), all.end(), [&](const Mapping& m) { return m.units == v.units; });
    INFO(name_of(kind) << " " << name_of(v.cell) << " H " << hidden << ", " << v.units << " units");
    if (mapping == all.end() && !whole) continue;
    REQUIRE(mapping != all.end());
    if (kTsan && mapping->blocks > 10) continue;  // it has not that many threads
    RecurrentOutput got = with_mapping(context, problem, *mapping);
    CHECK(problem.error(got) <= 1.0);
    const auto [other, is_first] = first.try_emplace({v.cell, v.chunks}, std::move(got));
    if (!is_first) CHECK(differences(other->second, got) == 0);
  }
  CHECK(first.size() >= 3);
}

TEST_CASE("persistent tensor-core layers give the same bits in every mapping") {
  NEEDS_A_GPU;
  const Kind kind = GENERATE(from_range(std::begin(kKinds), std::end(kKinds)));
  const Cell cell = GENERATE(Cell::lstm, Cell::gru, Cell::rnn_relu);
  PACKRNN_ONE_IN(5);
  // Several chunks of every size, several chunks per group, rows that end within chunks.
  std::vector<std::int64_t> lengths;
  for (std::int64_t n = 0; n < full_or_small(41, 19); ++n) lengths.push_back((n * 5) % 7);
  const RecurrentProblem problem = problem_of(kind, cell, 42, lengths);
  Context context(Device::best(), options_of(kind));
  const std::vector<Mapping> all = mappings(context, problem);
  const RecurrentOutput expected = with_mapping(context, problem, all.front());
  for (unsigned i = 0; i < all.size(); ++i) {
    if (left_out(i, 2)) continue;
    Mapping mapping = all[i];
    if (i % 3 == 0) mapping.groups = 1;
    if (i % 3 == 1) mapping.directions_in_turn = true;
    INFO(name_of(kind) << " " << name_of(cell) << ", " << described(mapping));
    CHECK(differences(expected, with_mapping(context, problem, mapping)) == 0);
  }
}

TEST_CASE("a sequence has the same bits alone and in company, by persistent tensor-core layers") {
  NEEDS_A_GPU;
  const Kind kind = GENERATE(from_range(std::begin(kKinds), std::end(kKinds)));
  const Cell cell = GENERATE(Cell::lstm, Cell::gru, Cell::rnn_tanh);
  PACKRNN_ONE_IN(5);
  const std::vector<std::int64_t> lengths = {4, 7, 2, 0, 7, 1, 5, 3, 6, 4};
  const std::int64_t H = 48;
  const RecurrentProblem problem = problem_of(kind, cell, H, lengths);
  Context context(Device::best(), options_of(kind));
  const RecurrentOutput together =
      with_mapping(context, problem, mappings(context, problem).back());
  for (const std::int64_t n : {1, 2, 9}) {
    RecurrentProblem alone = problem_of(kind, cell, H, {lengths[static_cast<std::size_t>(n)]});
    // The same seeds, hence the same weights; states and inputs are this sequence's.
    for (std::size_t d = 0; d < 2; ++d) {
      alone.direction[d].h_0 = rows_of(problem.direction[d].h_0, n, n + 1);
      alone.direction[d].c_0 = rows_of(problem.direction[d].c_0, n, n + 1);
    }
    const std::int64_t T = lengths[static_cast<std::size_t>(n)];
    for (std::int64_t t = 0; t < T; ++t) {
      const TensorView from =
          problem.x.view().rows(problem.layout->row(n, t), problem.layout->row(n, t) + 1);
      std::memcpy(alone.x.span().rows(t, t + 1).raw(), from.raw(), from.bytes());
    }
    const RecurrentOutput got = with_mapping(context, alone, mappings(context, alone).front());
    INFO(name_of(kind) << " " << name_of(cell) << " sequence " << n);
    for (std::int64_t t = 0; t < T; ++t) {
      const std::int64_t row = problem.layout->row(n, t);
      CHECK(differences(together.y.view().rows(row, row + 1), got.y.view().rows(t, t + 1)) == 0);
      if (cell == Cell::lstm)
        CHECK(differences(together.cells.view().rows(row, row + 1),
                          got.cells.view().rows(t, t + 1)) == 0);
    }
    for (std::size_t d = 0; d < 2; ++d)
      CHECK(differences(together.h_n[d].view().rows(n, n + 1), got.h_n[d]) == 0);
  }
}

TEST_CASE("persistent tensor-core layers may be run in ranges of steps") {
  NEEDS_A_GPU;
  const Kind kind = GENERATE(from_range(std::begin(kKinds), std::end(kKinds)));
  const Cell cell = GENERATE(Cell::lstm, Cell::gru, Cell::rnn_tanh);
  const auto hidden = GENERATE(20, 24);  // y is the mailbox, or not
  PACKRNN_ONE_IN(5);
  const RecurrentProblem problem = problem_of(kind, cell, hidden, {9, 2, 0, 5, 7, 1, 9, 3, 3, 8});
  Context context(Device::best(), options_of(kind));
  const std::vector<Mapping> all = mappings(context, problem);
  const RecurrentOutput expected = with_mapping(context, problem, all.front());
  for (const std::int64_t rows : {1, 11, 30}) {  // a step each, a few steps, most of them
    const std::int64_t bytes = rows * 24 * gates(cell) * 4;
    INFO(name_of(kind) << " " << name_of(cell) << " H " << hidden << ", " << rows << " rows");
    CHECK(differences(expected, with_mapping(context, problem, all.back(), bytes)) == 0);
  }
}

TEST_CASE("persistent tensor-core layers continue from call to call") {
  NEEDS_A_GPU;
  const Kind kind = GENERATE(from_range(std::begin(kKinds), std::end(kKinds)));
  const Cell cell = GENERATE(Cell::lstm, Cell::gru, Cell::rnn_relu);
  PACKRNN_ONE_IN(5);
  const std::int64_t T = 5, N = 3, H = 30, I = 5;
  const RecurrentProblem whole = problem_of(kind, cell, H, {T, T, T}, {false});
  Context context(Device::best(), options_of(kind));
  const RecurrentOutput expected = with_mapping(context, whole, mappings(context, whole).front());
  RecurrentProblem step = problem_of(kind, cell, H, {1, 1, 1}, {false});
  const Mapping mapping = mappings(context, step).back();
  for (std::int64_t t = 0; t < T; ++t) {
    step.x = rows_of(whole.x, t * N, (t + 1) * N);
    REQUIRE(step.x.shape() == Shape({N, I}));
    const RecurrentOutput got = with_mapping(context, step, mapping);
    INFO(name_of(kind) << " " << name_of(cell) << " step " << t);
    CHECK(differences(expected.y.view().rows(t * N, (t + 1) * N), got.y) == 0);
    step.direction[0].h_0 = rows_of(got.h_n[0], 0, N);
    if (cell == Cell::lstm) step.direction[0].c_0 = rows_of(got.c_n[0], 0, N);
  }
}

TEST_CASE("lengths that only the device knows change no bit of persistent tensor-core layers") {
  NEEDS_A_GPU;
  const Kind kind = GENERATE(from_range(std::begin(kKinds), std::end(kKinds)));
  const Cell cell = GENERATE(Cell::lstm, Cell::gru);
  const auto hidden = GENERATE(16, 19);
  PACKRNN_ONE_IN(3);
  const RecurrentProblem problem = problem_of(kind, cell, hidden, {4, 0, 6, 1, 6});
  Context context(Device::best(), options_of(kind));
  const Mapping mapping = mappings(context, problem).back();
  const RecurrentOutput expected = with_mapping(context, problem, mapping);
  const Tensor lengths = context.to_device(
      Tensor::from(std::vector<std::int64_t>(problem.lengths), {problem.layout->batch()}));
  kernels::LayoutCapacity capacity;
  capacity.padded_length = 8;
  capacity.rows = 25;
  const PackedLayoutPtr layout = kernels::make_layout(context, lengths, capacity);
  const RecurrentOutput got = with_mapping(context, problem, mapping, 1 << 30, layout.get());
  const std::int64_t total = problem.layout->total();
  INFO(name_of(kind) << " " << name_of(cell) << " H " << hidden);
  CHECK(differences(expected.y, got.y.view().rows(0, total)) == 0);
  for (std::size_t d = 0; d < 2; ++d) {
    CHECK(differences(expected.h_n[d], got.h_n[d]) == 0);
    CHECK(differences(expected.c_n[d], got.c_n[d]) == 0);
  }
  if (got.cells.defined()) CHECK(differences(expected.cells, got.cells.view().rows(0, total)) == 0);
}

TEST_CASE("a NaN stays in its sequence and stops no persistent tensor-core layer") {
  NEEDS_A_GPU;
  const Kind kind = GENERATE(from_range(std::begin(kKinds), std::end(kKinds)));
  const Cell cell = GENERATE(Cell::lstm, Cell::gru, Cell::rnn_relu);
  PACKRNN_ONE_IN(5);
  RecurrentProblem problem = problem_of(kind, cell, 24, {5, 4, 6, 2});
  Context context(Device::best(), options_of(kind));
  const Mapping mapping = mappings(context, problem).front();
  const RecurrentOutput clean = with_mapping(context, problem, mapping);
  // Every bit set: what an empty mailbox holds. Sequence 0 has it in its input, 3 in its state.
  const auto set_row = [](const TensorSpan& t, std::int64_t row) {
    std::memset(t.rows(row, row + 1).raw(), 0xFF, t.rows(row, row + 1).bytes());
  };
  set_row(problem.x, problem.layout->row(0, 2));
  for (RecurrentProblem::Direction& d : problem.direction) set_row(d.h_0, 3);
  const RecurrentOutput got = with_mapping(context, problem, mapping);
  INFO(name_of(kind) << " " << name_of(cell));
  for (const std::int64_t n : {1, 2})
    for (std::int64_t t = 0; t < problem.lengths[static_cast<std::size_t>(n)]; ++t) {
      const std::int64_t row = problem.layout->row(n, t);
      CHECK(differences(clean.y.view().rows(row, row + 1), got.y.view().rows(row, row + 1)) == 0);
    }
  CHECK(std::isnan(doubles(got.h_n[0])[0]));
  const std::int64_t row = problem.layout->row(3, 1);
  CHECK(std::isnan(doubles(got.y.view().rows(row, row + 1))[0]));
}

TEST_CASE("a persistent tensor-core layer that waits in vain gives up with an error") {
  NEEDS_A_GPU;
  const Kind kind = GENERATE(kKinds[0], kKinds[2]);
  // A table that says more rows live at step 2 than at step 1: what they wait for never comes.
  const RecurrentProblem problem = problem_of(kind, Cell::gru, 16, {4, 4, 2}, {false});
  Context context(Device::best(), options_of(kind));
  const Mapping mapping = mappings(context, problem).front();
  const auto forward = [&](Context& c, const auto& shape, const auto& rows, const auto&,
                           auto directions, const auto& y, const auto&) {
    kernels::cuda::RecurrentRun run;
    run.shape = shape;
    run.panels = kernels::cuda::RecurrentPanels::of(shape);
    run.layout = rows.on(c);
    const Tensor wrong = c.to_device(Tensor::from(std::vector<std::int32_t>{3, 2, 3, 2}, {4}));
    run.layout.batch_sizes = static_cast<const std::int32_t*>(wrong.view().raw());
    run.ldy = shape.hidden;
    run.last_step = 4;
    const Tensor gx = c.zeros({10, run.panels.units * 3}, Dtype::f32);
    run.direction[0] = {.panels = directions[0].panels.raw(),
                        .gx = gx.view().raw(),
                        .h_0 = directions[0].h_0.raw(),
                        .h_n = directions[0].h_n.raw(),
                        .y = y.raw()};
    kernels::cuda::persistent_forward(c, run, mapping);
  };
  {
    const Environment patience("PACKRNN_WATCHDOG_MS", "1");
    CHECK_THROWS_WITH(problem.run(context, forward), Contains("gave up at step 2"));
  }
  // And the context works on.
  CHECK(problem.error(with_mapping(context, problem, mapping)) <= 1.0);
}

TEST_CASE("where persistent tensor-core layers cannot run they say why") {
  NEEDS_A_GPU;
  const Context context;
  const auto why = [&](kernels::RecurrentShape shape, F32Math math = F32Math::tf32) {
    std::string obstacle;
    CHECK(kernels::cuda::persistent_mappings(context.device().index, shape, math, 4, 1, obstacle)
              .empty());
    return obstacle;
  };
  CHECK_THAT(why({Cell::lstm, 3, 8, 4, Dtype::bf16}), Contains("projection"));
  CHECK_THAT(why({Cell::gru_reset_before, 3, 8, 0, Dtype::f16}), Contains("reset before"));
  CHECK_THAT(why({Cell::lstm, 3, 8, 0, Dtype::f64}), Contains("tensor cores"));
  CHECK_THAT(why({Cell::lstm, 3, 8, 0, Dtype::f32}, F32Math::exact), Contains("tensor cores"));
  CHECK_THAT(why({Cell::lstm, 3, 2049, 0, Dtype::bf16}), Contains("2049"));
  CHECK_THAT(why({Cell::lstm, 3, 2048, 0, Dtype::f32}), Contains("not built"));
}

}  // namespace packrnn::tests

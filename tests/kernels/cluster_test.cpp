// The cluster kernel: against the double reference, and with the bits of the persistent kernel
// whatever the mapping, the shape and the way the steps are cut.
#include "packrnn/kernels/cuda/cluster.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "packrnn/kernels/cuda/persistent.hpp"
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
using kernels::RecurrentShape;
using kernels::cuda::Algorithm;
using kernels::cuda::Mapping;

constexpr Cell kCells[] = {Cell::lstm, Cell::gru, Cell::rnn_tanh, Cell::rnn_relu};
const std::vector<bool> kBoth = {false, true};

bool has_clusters() {
  const Device device = Device::best();
  return device.type == DeviceType::cuda && gpu::properties(device.index).clusters;
}

#define NEEDS_CLUSTERS \
  if (!has_clusters()) PACKRNN_SKIP("the device under test has no clusters")

std::vector<Mapping> mappings(const Context& context, const RecurrentProblem& problem) {
  std::string obstacle;
  std::vector<Mapping> all = kernels::cuda::cluster_mappings(
      context.device().index, problem.shape, F32Math::exact, problem.layout->batch(),
      static_cast<int>(problem.reverse.size()), obstacle);
  INFO(obstacle);
  REQUIRE(!all.empty());
  for (Mapping& m : all) m = with_few_groups(m, problem.reverse.size());
  return all;
}

RecurrentOutput run(Context& context, const RecurrentProblem& problem, const Mapping& mapping,
                    std::int64_t input_product_bytes = std::int64_t{1} << 30,
                    const PackedLayout* layout = nullptr) {
  return run_choice(context, problem, {Algorithm::cluster, mapping, ""}, input_product_bytes,
                    layout);
}

/// By kernel G.
RecurrentOutput persistent(Context& context, const RecurrentProblem& problem) {
  std::string obstacle;
  const std::vector<Mapping> all = kernels::cuda::persistent_mappings(
      context.device().index, problem.shape, F32Math::exact, problem.layout->batch(),
      static_cast<int>(problem.reverse.size()), obstacle);
  INFO(obstacle);
  REQUIRE(!all.empty());
  const Mapping mapping = with_few_groups(all.back(), problem.reverse.size());
  return run_choice(context, problem, {Algorithm::persistent, mapping, ""});
}

}  // namespace

TEST_CASE("cluster layers are near to the truth and have the bits of persistent ones") {
  NEEDS_CLUSTERS;
  const Dtype dtype = GENERATE(Dtype::bf16, Dtype::f16);
  const Cell cell = GENERATE(from_range(std::begin(kCells), std::end(kCells)));
  const auto i = GENERATE(0U, 1U, 2U, 3U);
  PACKRNN_ONE_IN(3);
  Context context;
  // Ties, zeros, one long among short ones; units that fill no tile, no parcel and no block.
  const std::vector<std::vector<std::int64_t>> lengths = {
      {3, 0, 6, 1, 4, 6, 2, 3, 3, 0, 5}, {1}, {17, 1, 1, 2, 1, 1, 0, 1, 1, 2, 1, 1}};
  const std::int64_t hidden[] = {33, 1, 40, 100};
  const RecurrentProblem problem({cell, 5, hidden[i], 0, dtype}, lengths[i % 3],
                                 i == 0 ? kBoth : std::vector{i == 2}, i % 2 == 0, i % 2 == 0);
  const RecurrentOutput expected = persistent(context, problem);
  const std::vector<Mapping> all = mappings(context, problem);
  for (const Mapping& mapping : {all.front(), all.back()}) {
    INFO(name_of(cell) << " H " << hidden[i] << ", " << described(mapping, "clusters"));
    const RecurrentOutput got = run(context, problem, mapping);
    const double error = problem.error(got);
    CHECK(error <= 1.0);
    CHECK(error > 0.0);
    CHECK(differences(expected, got) == 0);
  }
}

TEST_CASE("every variant of the cluster kernel") {
  NEEDS_CLUSTERS;
  const Dtype dtype = GENERATE(Dtype::bf16, Dtype::f16);
  Context context;
  const bool whole = gpu::properties(context.device().index).multiprocessors >= 8;
  for (const kernels::cuda::ClusterVariant& v : dtype == Dtype::bf16
                                                    ? kernels::cuda::cluster_bf16_variants()
                                                    : kernels::cuda::cluster_f16_variants()) {
    if (v.chunks > 1 && !whole) continue;
    const std::int64_t hidden = v.chunks == 1 ? 40 : 128 * v.chunks + 8;
    const RecurrentProblem problem({v.cell, 5, hidden, 0, dtype}, {2, 3, 1}, {false});
    const std::vector<Mapping> all = mappings(context, problem);
    const auto mapping =
        std::find_if(all.begin(), all.end(), [&](const Mapping& m) { return m.units == v.units; });
    INFO(name_of(v.cell) << " H " << hidden << ", " << v.units << " units");
    REQUIRE(mapping != all.end());
    const RecurrentOutput got = run(context, problem, *mapping);
    CHECK(problem.error(got) <= 1.0);
    CHECK(differences(persistent(context, problem), got) == 0);
  }
}

TEST_CASE("cluster layers give the same bits in every mapping") {
  NEEDS_CLUSTERS;
  const Cell cell = GENERATE(Cell::lstm, Cell::gru, Cell::rnn_relu);
  // Several chunks of every size, several chunks per cluster, rows that end within chunks, and
  // chunks of a single step, between which nothing is exchanged.
  std::vector<std::int64_t> lengths;
  for (std::int64_t n = 0; n < full_or_small(41, 19); ++n)
    lengths.push_back(n % 2 == 0 ? 1 : (n * 5) % 7);
  const RecurrentProblem problem({cell, 5, 42, 0, Dtype::f16}, lengths, kBoth);
  Context context;
  const RecurrentOutput expected = persistent(context, problem);
  const std::vector<Mapping> all = mappings(context, problem);
  for (unsigned i = 0; i < all.size(); ++i) {
    if (left_out(i, 2)) continue;
    Mapping mapping = all[i];
    if (i % 4 < 2) mapping.groups = 1;
    INFO(name_of(cell) << ", " << described(mapping, "clusters"));
    CHECK(differences(expected, run(context, problem, mapping)) == 0);
  }
}

TEST_CASE("more clusters than the device holds wait for each other's places") {
  NEEDS_CLUSTERS;
  const RecurrentProblem problem({Cell::gru, 3, 24, 0, Dtype::bf16},
                                 {5, 3, 4, 2, 6, 1, 7, 3, 2, 2, 4, 5, 1, 1, 3, 2, 6, 4}, kBoth);
  Context context;
  const RecurrentOutput expected = persistent(context, problem);
  Mapping mapping = mappings(context, problem).front();
  mapping.groups = 2 * gpu::properties(context.device().index).multiprocessors;
  CHECK(differences(expected, run(context, problem, mapping)) == 0);
}

TEST_CASE("one long sequence among many short ones, in every order of a cluster's rows") {
  NEEDS_CLUSTERS;
  const Cell cell = GENERATE(Cell::lstm, Cell::gru);
  std::vector<std::int64_t> lengths(full_or_small(70U, 20U), 1);
  lengths[13] = 12;
  lengths[17] = 3;
  const RecurrentProblem problem({cell, 3, 24, 0, Dtype::bf16}, lengths, kBoth);
  Context context;
  const RecurrentOutput expected = persistent(context, problem);
  unsigned combination = 0;
  for (const Mapping& mapping : mappings(context, problem)) {
    if (left_out(combination++, 2)) continue;
    INFO(name_of(cell) << ", " << described(mapping, "clusters"));
    CHECK(differences(expected, run(context, problem, mapping)) == 0);
  }
}

TEST_CASE("cluster layers may be run in ranges of steps") {
  NEEDS_CLUSTERS;
  const Cell cell = GENERATE(Cell::lstm, Cell::gru, Cell::rnn_tanh);
  const auto hidden = GENERATE(20, 24);
  PACKRNN_ONE_IN(5);
  const RecurrentProblem problem({cell, 5, hidden, 0, Dtype::bf16}, {9, 2, 0, 5, 7, 1, 9, 3, 3, 8},
                                 kBoth);
  Context context;
  const RecurrentOutput expected = persistent(context, problem);
  const Mapping mapping = mappings(context, problem).front();
  for (const std::int64_t rows : {1, 11, 30}) {  // a step each, a few steps, most of them
    const std::int64_t bytes = rows * 24 * gates(cell) * 4;
    INFO(name_of(cell) << " H " << hidden << ", " << rows << " rows");
    CHECK(differences(expected, run(context, problem, mapping, bytes)) == 0);
  }
}

TEST_CASE("lengths that only the device knows change no bit of cluster layers") {
  NEEDS_CLUSTERS;
  const Cell cell = GENERATE(Cell::lstm, Cell::gru);
  const RecurrentProblem problem({cell, 5, 19, 0, Dtype::f16}, {4, 0, 6, 1, 6}, kBoth);
  Context context;
  const Mapping mapping = mappings(context, problem).back();
  const RecurrentOutput expected = run(context, problem, mapping);
  const Tensor lengths = context.to_device(
      Tensor::from(std::vector<std::int64_t>(problem.lengths), {problem.layout->batch()}));
  kernels::LayoutCapacity capacity;
  capacity.padded_length = 8;
  capacity.rows = 25;
  const PackedLayoutPtr layout = kernels::make_layout(context, lengths, capacity);
  const RecurrentOutput got = run(context, problem, mapping, 1 << 30, layout.get());
  const std::int64_t total = problem.layout->total();
  CHECK(differences(expected.y, got.y.view().rows(0, total)) == 0);
  for (std::size_t d = 0; d < 2; ++d) {
    CHECK(differences(expected.h_n[d], got.h_n[d]) == 0);
    CHECK(differences(expected.c_n[d], got.c_n[d]) == 0);
  }
  if (got.cells.defined()) CHECK(differences(expected.cells, got.cells.view().rows(0, total)) == 0);
}

TEST_CASE("a batch without steps leaves the states as they are, in cluster layers too") {
  NEEDS_CLUSTERS;
  const RecurrentProblem problem({Cell::lstm, 5, 19, 0, Dtype::f16}, {0, 0, 0}, kBoth);
  Context context;
  CHECK(problem.error(run(context, problem, mappings(context, problem).front())) <= 1.0);
}

TEST_CASE("a NaN stays in its sequence and stops no cluster layer") {
  NEEDS_CLUSTERS;
  const Cell cell = GENERATE(Cell::lstm, Cell::gru, Cell::rnn_relu);
  RecurrentProblem problem({cell, 5, 24, 0, Dtype::bf16}, {5, 4, 6, 2}, kBoth);
  Context context;
  const Mapping mapping = mappings(context, problem).front();
  const RecurrentOutput clean = run(context, problem, mapping);
  // Sequence 0 has NaNs in its input, 3 in its state.
  const auto set_row = [](Tensor& t, std::int64_t row) {
    const auto bytes = static_cast<std::size_t>(t.view().rows(0, 1).bytes());
    std::memset(static_cast<char*>(t.span().raw()) + static_cast<std::size_t>(row) * bytes, 0xFF,
                bytes);
  };
  set_row(problem.x, problem.layout->row(0, 2));
  for (RecurrentProblem::Direction& d : problem.direction) set_row(d.h_0, 3);
  const RecurrentOutput got = run(context, problem, mapping);
  INFO(name_of(cell));
  CHECK(differences(persistent(context, problem), got) == 0);
  for (const std::int64_t n : {1, 2})
    for (std::int64_t t = 0; t < problem.lengths[static_cast<std::size_t>(n)]; ++t) {
      const std::int64_t row = problem.layout->row(n, t);
      CHECK(differences(clean.y.view().rows(row, row + 1), got.y.view().rows(row, row + 1)) == 0);
    }
  CHECK(std::isnan(doubles(got.h_n[0])[0]));
  const std::int64_t row = problem.layout->row(3, 1);
  CHECK(std::isnan(doubles(got.y.view().rows(row, row + 1))[0]));
}

TEST_CASE("a cluster layer that lacks a block gives up with an error") {
  NEEDS_CLUSTERS;
  const Cell cell = GENERATE(Cell::lstm, Cell::gru);
  const RecurrentProblem problem({cell, 3, 24, 0, Dtype::bf16}, {4, 4, 2, 1, 3, 2, 2, 5, 3, 2},
                                 kBoth);
  Context context;
  const Mapping whole = mappings(context, problem).front();
  Mapping mapping = whole;
  mapping.blocks = 2;  // of three: a third of every h never comes
  REQUIRE(mapping.blocks < whole.blocks);
  {
    const Environment patience("PACKRNN_WATCHDOG_MS", "1");
    CHECK_THROWS_WITH(run(context, problem, mapping), Contains("gave up at step"));
  }
  // And the context works on.
  CHECK(problem.error(run(context, problem, whole)) <= 1.0);
}

TEST_CASE("a cluster layer that waits for a row that nobody computes gives up with an error") {
  NEEDS_CLUSTERS;
  // A table that says more rows live at step 2 than at step 1.
  const RecurrentProblem problem({Cell::gru, 3, 24, 0, Dtype::f16}, {4, 4, 2}, {false});
  Context context;
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
    kernels::cuda::cluster_forward(c, run, mapping);
  };
  {
    const Environment patience("PACKRNN_WATCHDOG_MS", "1");
    CHECK_THROWS_WITH(problem.run(context, forward), Contains("gave up at step 2"));
  }
  CHECK(problem.error(run(context, problem, mapping)) <= 1.0);
}

TEST_CASE("where cluster layers cannot run they say why, whatever the batch") {
  if (Device::best().type != DeviceType::cuda) PACKRNN_SKIP("the device under test is the CPU");
  const int device = Device::best().index;
  const auto why = [&](RecurrentShape shape, F32Math math = F32Math::exact) {
    std::string obstacle, other;
    CHECK(kernels::cuda::cluster_mappings(device, shape, math, 1, 1, obstacle).empty());
    CHECK(kernels::cuda::cluster_mappings(device, shape, math, 999, 2, other).empty());
    CHECK(obstacle == other);
    return obstacle;
  };
  if (!has_clusters()) {
    CHECK_THAT(why({Cell::lstm, 3, 8, 0, Dtype::bf16}), Contains("no clusters on sm_"));
    return;
  }
  CHECK_THAT(why({Cell::lstm, 3, 8, 4, Dtype::bf16}), Contains("projection"));
  CHECK_THAT(why({Cell::gru_reset_before, 3, 8, 0, Dtype::f16}), Contains("reset before"));
  CHECK_THAT(why({Cell::lstm, 3, 8, 0, Dtype::f32}), Contains("tensor cores"));
  CHECK_THAT(why({Cell::lstm, 3, 8, 0, Dtype::f32}, F32Math::tf32), Contains("f16 and bf16"));
  CHECK_THAT(why({Cell::lstm, 3, 513, 0, Dtype::bf16}), Contains("more than 16 blocks"));
}

}  // namespace packrnn::tests

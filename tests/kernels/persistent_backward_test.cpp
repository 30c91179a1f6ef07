// The way back of the persistent kernels on tensor cores: against plain loops in double precision,
// and to the bit whatever the mapping and the company. Gates and cell states are drawn, not made by
// a forward: the kernel only reads them.
#include "packrnn/kernels/cuda/persistent_backward.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "packrnn/kernels/cuda/persistent_backward_run.hpp"
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
using kernels::cuda::LengthProfile;
using kernels::cuda::Mapping;
using kernels::cuda::RecurrentBackwardPanels;
using kernels::cuda::RecurrentBackwardRun;

constexpr Cell kCells[] = {Cell::lstm, Cell::gru, Cell::rnn_tanh, Cell::rnn_relu};

/// A kind of product.
struct Kind {
  Dtype dtype;
  F32Math math;
  reference::Precision precision;
};
constexpr Kind kKinds[] = {{Dtype::bf16, F32Math::exact, reference::kBf16},
                           {Dtype::f16, F32Math::exact, reference::kF16},
                           {Dtype::f32, F32Math::tf32, reference::kTf32},
                           {Dtype::f32, F32Math::tf32x3, reference::kTf32x3}};

ContextOptions options_of(const Kind& kind) {
  ContextOptions options;
  options.f32_math = kind.math;
  return options;
}

std::string name_of(const Kind& kind) {
  return std::string(packrnn::name_of(kind.dtype)) + " " + packrnn::name_of(kind.math);
}

kernels::cuda::PersistentBackwardVariants variants_of(const Kind& kind) {
  if (kind.dtype == Dtype::bf16) return kernels::cuda::persistent_backward_bf16_variants();
  if (kind.dtype == Dtype::f16) return kernels::cuda::persistent_backward_f16_variants();
  return kind.math == F32Math::tf32 ? kernels::cuda::persistent_backward_tf32_variants()
                                    : kernels::cuda::persistent_backward_tf32x3_variants();
}

/// Which gate of PyTorch's order a part of dgates belongs to.
std::int64_t gate_of_part(Cell cell, std::int64_t part) {
  constexpr std::int64_t kGru[] = {2, 0, 1, 2};  // n behind the product, r, z, n before it
  return cell == Cell::gru ? kGru[part] : part;
}

struct Output {  // on the host, per direction
  std::vector<Tensor> dgates, dh_0, dc_0;
};
std::int64_t differences(const Output& a, const Output& b) {
  std::int64_t count = 0;
  for (std::size_t d = 0; d < a.dgates.size(); ++d)
    count += tests::differences(a.dgates[d], b.dgates[d]) +
             tests::differences(a.dh_0[d], b.dh_0[d]) + tests::differences(a.dc_0[d], b.dc_0[d]);
  return count;
}

/// What a run is told besides the problem.
struct RunOptions {
  const PackedLayout* layout = nullptr;  // the problem's unless given
  bool states_wanted = true;             // dh_0, dc_0
  std::int64_t units = 0;                // U unless given
};

struct BackwardProblem {
  RecurrentShape shape;
  Kind kind;
  std::vector<std::int64_t> lengths;
  std::vector<bool> reverse;
  PackedLayoutPtr layout = PackedLayout::make(Lengths(lengths));

  struct Direction {
    Tensor w_hh;                            // [G*H, H]
    Tensor gates;                           // f32 [total, U, 4]
    Tensor before;                          // [total, H]
    Tensor cells;                           // f32 [total, H]
    Tensor c_0 = {}, dh_n = {}, dc_n = {};  // f32 [N, H]
  };
  std::vector<Direction> direction = {};
  Tensor y = {}, dy = {};  // [total, D*H]

  /// `full`: with everything that may be left out.
  BackwardProblem(const Kind& of, Cell cell, std::int64_t hidden, std::vector<std::int64_t> given,
                  std::vector<bool> reversed = {false, true}, bool full = true)
      : shape{cell, 1, hidden, 0, of.dtype},
        kind(of),
        lengths(std::move(given)),
        reverse(std::move(reversed)) {
    const std::int64_t H = hidden, N = layout->batch(), total = layout->total(), U = units();
    const bool lstm = cell == Cell::lstm;
    std::uint64_t seed = 0;
    for (std::size_t d = 0; d < reverse.size(); ++d) {
      Direction to;
      to.w_hh = uniform({gates(cell) * H, H}, shape.dtype, ++seed,
                        1.0 / std::sqrt(static_cast<double>(H)));
      to.gates = uniform({total, U, 4}, Dtype::f32, ++seed, 1.0);
      const std::span<float> gate = to.gates.span().values<float>();
      for (std::size_t i = 0; i < gate.size(); ++i)  // what sigmoids give is in (0, 1)
        if (lstm ? i % 4 != 2 : i % 4 < 2) gate[i] = 0.5F + 0.5F * gate[i];
      to.before = uniform({total, H}, shape.dtype, ++seed, 1.0);
      to.cells = uniform({total, H}, Dtype::f32, ++seed, 1.5);
      seed += 3;
      if (full || d == 1) to.dh_n = uniform({N, H}, Dtype::f32, seed, 1.0);
      if (full && lstm) to.dc_n = uniform({N, H}, Dtype::f32, seed - 1, 1.0);
      if (full && lstm) to.c_0 = uniform({N, H}, Dtype::f32, seed - 2, 1.5);
      direction.push_back(std::move(to));
    }
    const Shape wide = {total, static_cast<std::int64_t>(reverse.size()) * H};
    y = uniform(wide, shape.dtype, ++seed, 1.0);
    // There is nothing to go back without either; with two directions the second has its dh_n.
    if (full || reverse.size() == 1) dy = uniform(wide, shape.dtype, ++seed, 1.0);
  }

  std::int64_t units() const { return RecurrentBackwardPanels::of(shape).units; }
  std::int64_t parts() const { return RecurrentBackwardPanels::of(shape).parts; }
  std::size_t directions() const { return reverse.size(); }

  /// The problem of sequence n alone.
  BackwardProblem only(std::int64_t n) const {
    const auto T = lengths[static_cast<std::size_t>(n)];
    BackwardProblem alone(kind, shape.cell, shape.hidden, {T}, reverse);  // with the same weights
    const auto token_rows = [&](const Tensor& from) {
      if (!from.defined()) return Tensor();
      Tensor to = Tensor::empty(from.shape().from(1).prepend(T), from.dtype());
      for (std::int64_t t = 0; t < T; ++t) {
        const TensorView row = from.view().rows(layout->row(n, t), layout->row(n, t) + 1);
        std::memcpy(to.span().rows(t, t + 1).raw(), row.raw(), row.bytes());
      }
      return to;
    };
    const auto state_row = [&](const Tensor& from) {
      return from.defined() ? convert(from.view().rows(n, n + 1), from.dtype()) : Tensor();
    };
    alone.y = token_rows(y);
    alone.dy = token_rows(dy);
    for (std::size_t d = 0; d < directions(); ++d) {
      const Direction& from = direction[d];
      Direction& to = alone.direction[d];
      to.gates = token_rows(from.gates);
      to.before = token_rows(from.before);
      to.cells = token_rows(from.cells);
      to.c_0 = state_row(from.c_0);
      to.dh_n = state_row(from.dh_n);
      to.dc_n = state_row(from.dc_n);
    }
    return alone;
  }

  /// W_hh^T as RecurrentBackwardPanels says, for U units.
  Tensor panels(std::size_t d, const RecurrentBackwardPanels& p) const {
    const std::int64_t H = shape.hidden, parts = gates(shape.cell);
    const std::vector<double> w = doubles(direction[d].w_hh);
    Tensor wide = Tensor::zeros({p.w_hh + H * p.pitch_hh}, Dtype::f64);
    for (std::int64_t u = 0; u < H; ++u)
      for (std::int64_t part = 0; part < parts; ++part)
        for (std::int64_t v = 0; v < H; ++v)
          wide.span().data<double>()[p.w_hh + u * p.pitch_hh + part * p.units + v] =
              w[static_cast<std::size_t>((gate_of_part(shape.cell, part) * H + v) * H + u)];
    return convert(wide, shape.dtype);
  }

  Output run(Context& context, const Mapping& mapping, const RunOptions& options = {}) const {
    const PackedLayout& rows = options.layout ? *options.layout : *layout;
    const std::int64_t N = rows.batch(), total = rows.total(), H = shape.hidden;
    const auto size = static_cast<std::int64_t>(size_of(shape.dtype));
    RecurrentBackwardRun run;
    run.shape = shape;
    run.panels = RecurrentBackwardPanels::of(shape);
    if (options.units > 0) {
      run.panels.units = options.units;
      run.panels.pitch_hh = (run.panels.gates * options.units + 31) / 32 * 32;
    }
    run.layout = rows.on(context);
    run.directions = static_cast<int>(directions());
    run.ldy = run.directions * H;
    std::vector<Tensor> memory;  // what is on the device
    const auto up = [&](const Tensor& t) -> const void* {
      if (!t.defined()) return nullptr;
      memory.push_back(context.to_device(t));
      return memory.back().view().raw();
    };
    const auto* const y_there = static_cast<const char*>(up(y));
    const auto* const dy_there = static_cast<const char*>(up(dy));
    std::vector<Tensor> dgates, dh_0, dc_0;
    for (std::size_t d = 0; d < directions(); ++d) {
      const Direction& from = direction[d];
      const std::int64_t column = static_cast<std::int64_t>(d) * H * size;
      // Rows that no sequence has are zero already.
      const Shape wide = {total, run.panels.parts * run.panels.units};
      dgates.push_back(rows.known() ? context.empty(wide, shape.dtype)
                                    : context.zeros(wide, shape.dtype));
      dh_0.push_back(context.zeros({N, H}, Dtype::f32));
      dc_0.push_back(context.zeros({N, H}, Dtype::f32));
      kernels::cuda::BackwardDirectionRun& to = run.direction[d];
      to.panels = up(panels(d, run.panels));
      to.reverse = reverse[d];
      if (options.units > 0)
        to.gates = up(Tensor::zeros({total, options.units, 4}, Dtype::f32));
      else if (shape.cell == Cell::lstm || shape.cell == Cell::gru)
        to.gates = up(from.gates);
      if (shape.cell == Cell::gru) to.before = up(from.before);
      to.y = y_there + column;
      if (dy_there != nullptr) to.dy = dy_there + column;
      if (shape.cell == Cell::lstm) to.cells = up(from.cells);
      to.c_0 = up(from.c_0);
      to.dh_n = up(from.dh_n);
      to.dc_n = up(from.dc_n);
      to.dgates = dgates.back().span().raw();
      if (!options.states_wanted) continue;
      to.dh_0 = dh_0.back().span().raw();
      if (shape.cell == Cell::lstm) to.dc_0 = dc_0.back().span().raw();
    }
    kernels::cuda::persistent_backward(context, run, mapping);
    Output out;
    for (std::size_t d = 0; d < directions(); ++d) {
      out.dgates.push_back(context.to_host(dgates[d]));
      out.dh_0.push_back(context.to_host(dh_0[d]));
      out.dc_0.push_back(context.to_host(dc_0[d]));
    }
    return out;
  }

  /// Largest error of everything in `out`, as a share of what is allowed.
  double error(const Output& out) const {
    double worst = 0;
    for (std::size_t d = 0; d < directions(); ++d)
      for (std::int64_t n = 0; n < layout->batch(); ++n) worst = std::max(worst, error(out, d, n));
    return worst;
  }

 private:
  /// Of one sequence, by plain loops.
  double error(const Output& out, std::size_t d, std::int64_t n) const {
    const Direction& from = direction[d];
    const std::int64_t H = shape.hidden, U = units(), P = parts(), G = gates(shape.cell);
    const std::int64_t T = lengths[static_cast<std::size_t>(n)];
    const auto D = static_cast<std::int64_t>(directions()), column = static_cast<std::int64_t>(d);
    const auto at = [](const std::vector<double>& values, std::int64_t i) {
      return values.empty() ? 0.0 : values[static_cast<std::size_t>(i)];
    };
    const std::vector<double> w = doubles(from.w_hh), gate = doubles(from.gates),
                              h_before = doubles(from.before), cells = doubles(from.cells),
                              c_0 = doubles(from.c_0), dh_n = doubles(from.dh_n),
                              dc_n = doubles(from.dc_n), ys = doubles(y), dys = doubles(dy);
    const std::vector<double> dgates = doubles(out.dgates[d]), dh_0 = doubles(out.dh_0[d]),
                              dc_0 = doubles(out.dc_0[d]);
    double largest = 1;                               // of all partial sums
    std::vector<std::pair<double, double>> compared;  // what came, what should have come
    const auto row = [&](std::int64_t s) { return layout->row(n, reverse[d] ? T - 1 - s : s); };
    std::vector<double> dh, dc;
    for (std::int64_t u = 0; u < H; ++u) {
      dh.push_back(at(dh_n, n * H + u));
      dc.push_back(at(dc_n, n * H + u));
    }
    for (std::int64_t s = T - 1; s >= 0; --s) {  // the forward's order
      const std::int64_t r = row(s);
      // By gates of PyTorch's order: what reaches h. Of a GRU's n, part 0.
      std::vector<double> through(static_cast<std::size_t>(G * H)), past(dh.size());
      for (std::int64_t u = 0; u < H; ++u) {
        const auto i = static_cast<std::size_t>(u);
        const double total = dh[i] + at(dys, r * D * H + column * H + u);
        const auto g = [&](std::int64_t k) { return at(gate, (r * U + u) * 4 + k); };
        const auto sigmoid = [](double x) { return x * (1 - x); };
        const auto tangent = [](double x) { return 1 - x * x; };
        double part[4] = {};
        if (shape.cell == Cell::lstm) {
          const double t = std::tanh(at(cells, r * H + u));
          const double c = s > 0 ? at(cells, row(s - 1) * H + u) : at(c_0, n * H + u);
          const double cell = dc[i] + total * g(3) * tangent(t);
          part[0] = cell * g(2) * sigmoid(g(0));
          part[1] = cell * c * sigmoid(g(1));
          part[2] = cell * g(0) * tangent(g(2));
          part[3] = total * t * sigmoid(g(3));
          dc[i] = cell * g(1);
        } else if (shape.cell == Cell::gru) {
          part[3] = total * (1 - g(1)) * tangent(g(2));
          part[0] = part[3] * g(0);
          part[1] = part[3] * g(3) * sigmoid(g(0));
          part[2] = total * (at(h_before, r * H + u) - g(2)) * sigmoid(g(1));
          past[i] = total * g(1);
        } else {
          const double h = at(ys, r * D * H + column * H + u);
          part[0] = shape.cell == Cell::rnn_relu ? (h > 0 ? total : 0) : total * tangent(h);
        }
        largest = std::max({largest, std::abs(total), std::abs(dc[i])});
        for (std::int64_t p = 0; p < P; ++p) {
          compared.emplace_back(at(dgates, (r * P + p) * U + u), part[p]);
          if (p < G)
            through[static_cast<std::size_t>(gate_of_part(shape.cell, p) * H + u)] = part[p];
        }
      }
      for (std::int64_t p = 0; p < P; ++p)
        for (std::int64_t u = H; u < U; ++u)
          if (at(dgates, (r * P + p) * U + u) != 0) return INFINITY;
      dh = past;
      for (std::int64_t k = 0; k < G * H; ++k)
        for (std::int64_t u = 0; u < H; ++u) {
          double& sum = dh[static_cast<std::size_t>(u)];
          sum += at(w, k * H + u) * at(through, k);
          largest = std::max(largest, std::abs(sum));
        }
    }
    for (std::int64_t u = 0; u < H && T > 0; ++u) {  // a sequence without steps is not the kernel's
      compared.emplace_back(at(dh_0, n * H + u), dh[static_cast<std::size_t>(u)]);
      if (shape.cell == Cell::lstm)
        compared.emplace_back(at(dc_0, n * H + u), dc[static_cast<std::size_t>(u)]);
    }
    reference::Work work;
    work.terms = G * H;
    work.steps = std::max<std::int64_t>(T, 1);
    work.magnitude = largest;
    const double allowed = reference::tolerance(kind.precision, work);
    double worst = 0;
    for (const auto& [got, want] : compared) {
      const double share = std::abs(got - want) / allowed;
      worst = std::isnan(share) ? INFINITY : std::max(worst, share);
    }
    return worst;
  }
};

/// With as few blocks and groups as keep a launch small.
std::vector<Mapping> mappings(const Context& context, const BackwardProblem& problem) {
  std::string obstacle;
  std::vector<Mapping> all = kernels::cuda::persistent_backward_mappings(
      context.device().index, problem.shape, context.f32_math(), problem.layout->batch(),
      static_cast<int>(problem.directions()), obstacle);
  INFO(obstacle);
  REQUIRE(!all.empty());
  for (Mapping& m : all) {
    m.directions_in_turn |= m.blocks * 2 > most_blocks();
    m = with_few_groups(m, 2);
  }
  return all;
}

}  // namespace

TEST_CASE("the persistent tensor-core backward is as near to the truth as its numbers allow") {
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
  const BackwardProblem problem(kind, cell, hidden[i], lengths[i % 3],
                                i % 3 == 0 ? std::vector{false, true} : std::vector{i == 2},
                                i % 2 == 0);
  const std::vector<Mapping> all = mappings(context, problem);
  const Mapping& mapping = all[i % all.size()];
  INFO(name_of(kind) << " " << name_of(cell) << " H " << hidden[i] << ", " << described(mapping));
  const double error = problem.error(problem.run(context, mapping));
  CHECK(error <= 1.0);
  if (hidden[i] > 1) CHECK(error > 0.0);  // one unit's relu may have nothing to round
}

TEST_CASE("every variant of the persistent tensor-core backward that the device holds") {
  NEEDS_A_GPU;
  const Kind kind = GENERATE(from_range(std::begin(kKinds), std::end(kKinds)));
  Context context(Device::best(), options_of(kind));
  const gpu::Properties& device = gpu::properties(context.device().index);
  // An H200 holds them all.
  const bool whole = device.multiprocessors >= 132 && device.shared_per_block >= 227 << 10;
  std::map<int, Output> first;  // of a width
  unsigned combination = 0;
  for (const kernels::cuda::PersistentBackwardVariant& v : variants_of(kind)) {
    if (v.chunks > 1 && left_out(combination++, 2)) continue;
    // Any cell will do, but one and the same for all that have so many chunks.
    const Cell cell = v.chunks == 2 || v.chunks == 16 ? Cell::gru
                      : v.chunks == 4                 ? Cell::rnn_tanh
                                                      : Cell::lstm;
    const std::int64_t hidden = v.chunks == 1 ? 40 : 128 * v.chunks / gates(cell) + 8;
    const BackwardProblem problem(kind, cell, hidden, {1, 2}, {false});
    std::string obstacle;
    const std::vector<Mapping> all = kernels::cuda::persistent_backward_mappings(
        context.device().index, problem.shape, kind.math, 2, 1, obstacle);
    const auto mapping =
        std::find_if(all.begin(), all.end(), [&](const Mapping& m) { return m.units == v.units; });
    INFO(name_of(kind) << " " << name_of(cell) << " H " << hidden << ", " << v.units << " units");
    if (mapping == all.end() && !whole) continue;
    REQUIRE(mapping != all.end());
    if (kTsan && mapping->blocks > 10) continue;  // it has not that many threads
    Output got = problem.run(context, *mapping);
    CHECK(problem.error(got) <= 1.0);
    const auto [other, is_first] = first.try_emplace(v.chunks, std::move(got));
    if (!is_first) CHECK(differences(other->second, got) == 0);
  }
  CHECK(first.size() >= full_or_small(3U, 1U));
  if (!whole) return;
  std::string obstacle;  // the widest that there is a kernel for
  const RecurrentShape widest{Cell::lstm, 5, kind.dtype == Dtype::f32 ? 1024 : 2048, 0, kind.dtype};
  CHECK(!kernels::cuda::persistent_backward_mappings(context.device().index, widest, kind.math, 2,
                                                     1, obstacle)
             .empty());
}

TEST_CASE("the persistent tensor-core backward gives the same bits in every mapping") {
  NEEDS_A_GPU;
  const Kind kind = GENERATE(from_range(std::begin(kKinds), std::end(kKinds)));
  const Cell cell = GENERATE(Cell::lstm, Cell::gru, Cell::rnn_relu);
  PACKRNN_ONE_IN(5);
  // Several chunks of every size, several chunks per group, rows that end within chunks.
  std::vector<std::int64_t> lengths;
  for (std::int64_t n = 0; n < full_or_small(41, 19); ++n) lengths.push_back((n * 5) % 7);
  const BackwardProblem problem(kind, cell, 42, lengths);
  Context context(Device::best(), options_of(kind));
  const std::vector<Mapping> all = mappings(context, problem);
  const Output expected = problem.run(context, all.front());
  CHECK(problem.error(expected) <= 1.0);
  for (unsigned i = 0; i < all.size(); ++i) {
    if (left_out(i, 2)) continue;
    Mapping mapping = all[i];
    if (i % 3 == 0) mapping.groups = 1;
    if (i % 3 == 1) mapping.directions_in_turn = true;
    INFO(name_of(kind) << " " << name_of(cell) << ", " << described(mapping));
    CHECK(differences(expected, problem.run(context, mapping)) == 0);
  }
}

TEST_CASE("the persistent tensor-core backward goes through many short chunks") {
  NEEDS_A_GPU;
  const Kind kind = GENERATE(kKinds[0], kKinds[2]);
  const Cell cell = GENERATE(Cell::lstm, Cell::gru);
  PACKRNN_ONE_IN(3);
  std::vector<std::int64_t> lengths;
  for (std::int64_t n = 0; n < full_or_small(70, 33); ++n) lengths.push_back(1 + n % 2);
  const BackwardProblem problem(kind, cell, 48, lengths);
  Context context(Device::best(), options_of(kind));
  for (Mapping mapping : mappings(context, problem)) {
    if (mapping.rows != 8) continue;
    mapping.groups = 1;
    INFO(name_of(kind) << " " << name_of(cell) << ", " << described(mapping));
    CHECK(problem.error(problem.run(context, mapping)) <= 1.0);
  }
}

TEST_CASE("a sequence has the same gradients alone and in company, by the persistent backward") {
  NEEDS_A_GPU;
  const Kind kind = GENERATE(from_range(std::begin(kKinds), std::end(kKinds)));
  const Cell cell = GENERATE(Cell::lstm, Cell::gru, Cell::rnn_tanh);
  PACKRNN_ONE_IN(5);
  const BackwardProblem problem(kind, cell, 48, {4, 7, 2, 0, 7, 1, 5, 3, 6, 4});
  Context context(Device::best(), options_of(kind));
  const Output together = problem.run(context, mappings(context, problem).back());
  for (const std::int64_t n : {1, 2, 9}) {
    const BackwardProblem alone = problem.only(n);
    const Output got = alone.run(context, mappings(context, alone).front());
    INFO(name_of(kind) << " " << name_of(cell) << " sequence " << n);
    for (std::size_t d = 0; d < 2; ++d) {
      for (std::int64_t t = 0; t < alone.layout->total(); ++t) {
        const std::int64_t row = problem.layout->row(n, t);
        CHECK(differences(together.dgates[d].view().rows(row, row + 1),
                          got.dgates[d].view().rows(t, t + 1)) == 0);
      }
      CHECK(differences(together.dh_0[d].view().rows(n, n + 1), got.dh_0[d]) == 0);
      CHECK(differences(together.dc_0[d].view().rows(n, n + 1), got.dc_0[d]) == 0);
    }
  }
}

TEST_CASE("gradients of initial states that nobody wants change no bit of dgates") {
  NEEDS_A_GPU;
  const Kind kind = GENERATE(from_range(std::begin(kKinds), std::end(kKinds)));
  const Cell cell = GENERATE(Cell::lstm, Cell::gru);
  PACKRNN_ONE_IN(3);
  const BackwardProblem problem(kind, cell, 20, {9, 2, 0, 5, 7, 1, 9, 3, 3, 8});
  Context context(Device::best(), options_of(kind));
  const Mapping mapping = mappings(context, problem).back();
  const Output expected = problem.run(context, mapping);
  const Output got = problem.run(context, mapping, {.states_wanted = false});
  INFO(name_of(kind) << " " << name_of(cell));
  for (std::size_t d = 0; d < 2; ++d) {
    CHECK(differences(expected.dgates[d], got.dgates[d]) == 0);
    CHECK(std::ranges::all_of(doubles(got.dh_0[d]), [](double x) { return x == 0; }));
    CHECK(std::ranges::all_of(doubles(got.dc_0[d]), [](double x) { return x == 0; }));
  }
}

TEST_CASE("lengths that only the device knows change no bit of the persistent backward") {
  NEEDS_A_GPU;
  const Kind kind = GENERATE(from_range(std::begin(kKinds), std::end(kKinds)));
  const Cell cell = GENERATE(Cell::lstm, Cell::gru);
  PACKRNN_ONE_IN(3);
  const BackwardProblem problem(kind, cell, 19, {4, 0, 6, 1, 6});
  Context context(Device::best(), options_of(kind));
  const Mapping mapping = mappings(context, problem).back();
  const Output expected = problem.run(context, mapping);
  const Tensor lengths = context.to_device(
      Tensor::from(std::vector<std::int64_t>(problem.lengths), {problem.layout->batch()}));
  kernels::LayoutCapacity capacity;
  capacity.padded_length = 8;
  capacity.rows = 25;
  const PackedLayoutPtr layout = kernels::make_layout(context, lengths, capacity);
  const Output got = problem.run(context, mapping, {.layout = layout.get()});
  const std::int64_t total = problem.layout->total();
  INFO(name_of(kind) << " " << name_of(cell));
  for (std::size_t d = 0; d < 2; ++d) {
    CHECK(differences(expected.dgates[d], got.dgates[d].view().rows(0, total)) == 0);
    const TensorView unused = got.dgates[d].view().rows(total, got.dgates[d].size(0));
    CHECK(std::ranges::all_of(doubles(unused), [](double x) { return x == 0; }));
    CHECK(differences(expected.dh_0[d], got.dh_0[d]) == 0);
    CHECK(differences(expected.dc_0[d], got.dc_0[d]) == 0);
  }
}

TEST_CASE("a NaN stays in its sequence and stops no persistent backward") {
  NEEDS_A_GPU;
  const Kind kind = GENERATE(from_range(std::begin(kKinds), std::end(kKinds)));
  const Cell cell = GENERATE(Cell::lstm, Cell::gru, Cell::rnn_relu);
  PACKRNN_ONE_IN(5);
  BackwardProblem problem(kind, cell, 24, {5, 4, 6, 2});
  Context context(Device::best(), options_of(kind));
  const Mapping mapping = mappings(context, problem).front();
  const Output clean = problem.run(context, mapping);
  // Every bit set: what an empty mailbox holds. Sequence 0 has it in its dy, 3 in its dh_n.
  const auto set_row = [](const TensorSpan& t, std::int64_t row) {
    std::memset(t.rows(row, row + 1).raw(), 0xFF, t.rows(row, row + 1).bytes());
  };
  set_row(problem.dy, problem.layout->row(0, 2));
  for (BackwardProblem::Direction& d : problem.direction) set_row(d.dh_n, 3);
  const Output got = problem.run(context, mapping);
  INFO(name_of(kind) << " " << name_of(cell));
  for (std::size_t d = 0; d < 2; ++d) {
    for (const std::int64_t n : {1, 2})
      for (std::int64_t t = 0; t < problem.lengths[static_cast<std::size_t>(n)]; ++t) {
        const std::int64_t row = problem.layout->row(n, t);
        CHECK(differences(clean.dgates[d].view().rows(row, row + 1),
                          got.dgates[d].view().rows(row, row + 1)) == 0);
      }
    for (const std::int64_t n : {0, 3})
      CHECK(std::isnan(doubles(got.dh_0[d].view().rows(n, n + 1)).front()));
  }
}

TEST_CASE("a persistent backward that waits in vain gives up with an error") {
  NEEDS_A_GPU;
  const Kind kind = GENERATE(kKinds[0], kKinds[2]);
  const BackwardProblem problem(kind, Cell::gru, 16, {4, 4, 2}, {false});
  Context context(Device::best(), options_of(kind));
  const Mapping mapping = mappings(context, problem).front();
  {
    // The panels speak of units that no block has: their dgates never come.
    const Environment patience("PACKRNN_WATCHDOG_MS", "1");
    CHECK_THROWS_WITH(problem.run(context, mapping, {.units = 24}), Contains("gave up at step 3"));
  }
  // And the context works on.
  CHECK(problem.error(problem.run(context, mapping)) <= 1.0);
}

TEST_CASE("where the persistent tensor-core backward cannot run it says why") {
  NEEDS_A_GPU;
  const Context context;
  const auto why = [&](RecurrentShape shape, F32Math math = F32Math::tf32) {
    std::string obstacle;
    CHECK(kernels::cuda::persistent_backward_mappings(context.device().index, shape, math, 4, 1,
                                                      obstacle)
              .empty());
    return obstacle;
  };
  CHECK_THAT(why({Cell::lstm, 3, 8, 4, Dtype::bf16}), Contains("projection"));
  CHECK_THAT(why({Cell::gru_reset_before, 3, 8, 0, Dtype::f16}), Contains("reset before"));
  CHECK_THAT(why({Cell::lstm, 3, 8, 0, Dtype::f64}), Contains("tensor cores"));
  CHECK_THAT(why({Cell::lstm, 3, 8, 0, Dtype::f32}, F32Math::exact), Contains("tensor cores"));
  CHECK_THAT(why({Cell::lstm, 3, 2049, 0, Dtype::bf16}), Contains("8224 rows, at most 8192"));
  CHECK_THAT(why({Cell::lstm, 3, 2048, 0, Dtype::f32}), Contains("not built"));
}

TEST_CASE("the way back is laid over the device by the cost model") {
  NEEDS_A_GPU;
  const Context context;
  const gpu::Properties& device = gpu::properties(context.device().index);
  const auto constants = kernels::cuda::estimated_constants(device);
  const RecurrentShape shape{Cell::lstm, 3, 48, 0, Dtype::bf16};
  std::string obstacle;
  const std::vector<Mapping> all = kernels::cuda::persistent_backward_mappings(
      context.device().index, shape, F32Math::exact, 64, 1, obstacle);
  const LengthProfile profile = LengthProfile::equal(64, 10);
  const Mapping best =
      kernels::cuda::fastest_backward_mapping(constants, shape, F32Math::exact, all, profile, 1);
  const auto seconds = [&](const Mapping& m, kernels::cuda::Way way) {
    return persistent_seconds(constants, shape, kernels::cuda::Arithmetic::bits16, m, profile, 1,
                              way);
  };
  for (const Mapping& m : all) {
    INFO(described(best) << " or " << described(m));
    CHECK(seconds(best, kernels::cuda::Way::back) <= seconds(m, kernels::cuda::Way::back));
    // Every block reads four gates where it reads one h on the way there.
    CHECK(seconds(m, kernels::cuda::Way::back) > seconds(m, kernels::cuda::Way::forward));
  }
}

}  // namespace packrnn::tests

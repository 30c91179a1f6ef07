// Gradients of one recurrent layer against the reference's, summed over sequences run alone.
#include "packrnn/kernels/recurrent_backward.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "packrnn/kernels/cpu_target.hpp"
#include "packrnn/kernels/cuda/recurrent_backward.hpp"
#include "packrnn/kernels/cuda/recurrent_gates.hpp"
#include "packrnn/kernels/layout.hpp"
#include "packrnn/runtime/error.hpp"
#include "tests/catch.hpp"
#include "tests/kernels/cpu_targets.hpp"
#include "tests/kernels/recurrent_problem.hpp"

using namespace packrnn;
using namespace packrnn::tests;
using Catch::Matchers::Contains;
using kernels::Cell;

namespace {

Tensor filled(const Shape& shape, Dtype dtype, double value) {
  Tensor t = Tensor::empty(shape, Dtype::f64);
  std::fill_n(t.span().data<double>(), t.elements(), value);
  return convert(t, dtype);
}
Tensor nans(const Shape& shape, Dtype dtype) {
  return filled(shape, dtype, std::numeric_limits<double>::quiet_NaN());
}

/// A kind of arithmetic.
struct Kind {
  Dtype dtype;
  F32Math math = F32Math::exact;
};
constexpr Kind kKinds[] = {{Dtype::f32},  {Dtype::f64}, {Dtype::f32, F32Math::tf32},
                           {Dtype::bf16}, {Dtype::f16}, {Dtype::f32, F32Math::tf32x3}};
std::string name_of(const Kind& kind) {
  return std::string(packrnn::name_of(kind.dtype)) + " " + packrnn::name_of(kind.math);
}
/// A context of the device under test.
Context context_of(const Kind& kind, const std::string& algorithm = "") {
  ContextOptions options;
  options.f32_math = kind.math;
  options.algorithm = algorithm;
  return Context(Device::best(), options);
}

/// What the loss says about a problem's results.
struct Upstream {
  Tensor dy;
  std::vector<Tensor> dh_n, dc_n;  // per direction; undefined: zeros

  explicit Upstream(const RecurrentProblem& p) {
    const auto D = static_cast<std::int64_t>(p.reverse.size());
    const std::int64_t N = p.layout->batch();
    const Dtype cell = kernels::cell_dtype(p.shape.dtype);
    std::uint64_t seed = 100;
    dy = uniform({p.layout->total(), D * p.shape.state()}, p.shape.dtype, ++seed, 1.0);
    for (std::int64_t d = 0; d < D; ++d) {
      dh_n.push_back(uniform({N, p.shape.state()}, cell, ++seed, 1.0));
      dc_n.push_back(p.shape.cell == Cell::lstm ? uniform({N, p.shape.hidden}, cell, ++seed, 1.0)
                                                : Tensor());
    }
  }
};

struct Gradients {
  Tensor dx;
  struct Direction {
    Tensor dh_0, dc_0, w_ih, w_hh, b_ih, b_hh, w_hr;

    std::vector<const Tensor*> all() const {
      return {&dh_0, &dc_0, &w_ih, &w_hh, &b_ih, &b_hh, &w_hr};
    }
  };
  std::vector<Direction> direction;
};
std::int64_t differences(const Gradients& a, const Gradients& b) {
  std::int64_t count = tests::differences(a.dx, b.dx);
  for (std::size_t d = 0; d < a.direction.size(); ++d)
    for (std::size_t i = 0; i < a.direction[d].all().size(); ++i)
      count += tests::differences(*a.direction[d].all()[i], *b.direction[d].all()[i]);
  return count;
}

using Backward =
    std::function<void(Context&, const kernels::RecurrentShape&, const PackedLayout&,
                       const TensorView&, const TensorView&, const TensorView&,
                       std::span<const kernels::RecurrentBackwardDirection>, const TensorSpan&)>;

/// How a problem is run: the backward `times`, each into what the one before left of the weights'
/// gradients; on another layout than the problem's, if one is given, which then says how many rows
/// there are.
struct Way {
  int times = 1;
  const PackedLayout* layout = nullptr;
  Backward backward = kernels::recurrent_backward;
};

/// Forward and backward on the context's device; what comes back is on the host.
Gradients run(Context& context, const RecurrentProblem& p, const Upstream& by,
              const Way& way = {}) {
  const kernels::RecurrentShape& s = p.shape;
  const Device device = context.device();
  const PackedLayout& layout = way.layout ? *way.layout : *p.layout;
  const auto D = static_cast<std::int64_t>(p.reverse.size());
  const std::int64_t N = layout.batch(), total = layout.total(), S = s.state(), H = s.hidden,
                     rows = gates(s.cell) * H;
  const Dtype cell = kernels::cell_dtype(s.dtype);
  const bool lstm = s.cell == Cell::lstm;
  const auto up = [&](const Tensor& t) { return t.defined() ? context.to_device(t) : Tensor(); };
  const auto poison = [&](const Shape& shape, Dtype dtype) { return up(nans(shape, dtype)); };
  const auto widened = [&](const Tensor& t) {  // to the layout's rows
    if (!t.defined()) return Tensor();
    Tensor wide = Tensor::zeros({total, t.size(1)}, t.dtype());
    std::memcpy(wide.span().raw(), t.view().raw(), std::min(t.view().bytes(), wide.view().bytes()));
    return up(wide);
  };
  struct Memory {
    Tensor panels, back, h_0, c_0, h_n, c_n, reserve, dh_n, dc_n;
  };
  std::vector<Memory> memory(p.reverse.size());
  const Tensor x = widened(p.x), dy = widened(by.dy);
  Gradients there;
  there.dx = poison({total, s.input}, s.dtype);
  there.direction.resize(p.reverse.size());
  std::vector<kernels::RecurrentDirection> forward;
  std::vector<kernels::RecurrentBackwardDirection> backward;
  for (std::size_t d = 0; d < p.reverse.size(); ++d) {
    const RecurrentProblem::Direction& from = p.direction[d];
    const kernels::RecurrentWeights weights{from.w_ih, from.w_hh, from.b_ih, from.b_hh, from.w_hr};
    Memory& m = memory[d];
    m.panels = context.empty({kernels::recurrent_panel_elements(device, s)}, s.dtype);
    m.back = context.empty({kernels::recurrent_backward_panel_elements(device, s)}, s.dtype);
    kernels::pack_recurrent(context, s, weights, m.panels);
    kernels::pack_recurrent_backward(context, s, weights, m.back);
    m.h_0 = up(from.h_0);
    m.c_0 = up(from.c_0);
    m.h_n = poison({N, S}, s.dtype);
    if (lstm) m.c_n = poison({N, H}, cell);
    m.reserve = poison({kernels::recurrent_reserve_elements(device, s, total)}, cell);
    m.dh_n = up(by.dh_n[d]);
    m.dc_n = up(by.dc_n[d]);
    forward.push_back({.panels = m.panels,
                       .reverse = p.reverse[d],
                       .h_0 = m.h_0,
                       .c_0 = m.c_0,
                       .h_n = m.h_n,
                       .c_n = m.c_n,
                       .reserve = m.reserve});
    Gradients::Direction& to = there.direction[d];
    to.dh_0 = poison({N, S}, cell);
    if (lstm) to.dc_0 = poison({N, H}, cell);
    to.w_ih = context.zeros({rows, s.input}, cell);
    to.w_hh = context.zeros({rows, S}, cell);
    to.b_ih = context.zeros({rows}, cell);
    to.b_hh = context.zeros({rows}, cell);
    if (s.projection > 0) to.w_hr = context.zeros({s.projection, H}, cell);
    backward.push_back({.panels = m.back,
                        .reverse = p.reverse[d],
                        .h_0 = m.h_0,
                        .c_0 = m.c_0,
                        .reserve = m.reserve,
                        .dh_n = m.dh_n,
                        .dc_n = m.dc_n,
                        .dh_0 = to.dh_0,
                        .dc_0 = to.dc_0,
                        .weights = {to.w_ih, to.w_hh, to.b_ih, to.b_hh, to.w_hr}});
  }
  Tensor y = poison({total, D * S}, s.dtype);
  for (int i = 0; i < way.times; ++i) {
    kernels::recurrent_forward(context, s, layout, x, forward, y);
    way.backward(context, s, layout, x, y, dy, backward, there.dx);
  }
  const auto down = [&](Tensor& t) {
    if (t.defined()) t = context.to_host(t);
  };
  down(there.dx);
  for (Gradients::Direction& d : there.direction)
    for (Tensor* const t : {&d.dh_0, &d.dc_0, &d.w_ih, &d.w_hh, &d.b_ih, &d.b_hh, &d.w_hr})
      down(*t);
  return there;
}

using Values = std::vector<double>;

/// Columns `column` .. `column` + `width` of these rows, one after the other.
Values rows_of(const Values& from, std::span<const std::int64_t> rows, std::int64_t stride,
               std::int64_t column, std::int64_t width) {
  Values out;
  for (const std::int64_t row : rows)
    for (std::int64_t j = 0; j < width && !from.empty(); ++j)
      out.push_back(from[static_cast<std::size_t>(row * stride + column + j)]);
  return out;
}

/// What the reference says, of each direction in the order of Gradients::Direction::all().
struct Truth {
  std::vector<Values> direction[2];
  Values dx;
};

Truth truth_of(const RecurrentProblem& p, const Upstream& by) {
  const std::int64_t S = p.shape.state(), H = p.shape.hidden, I = p.shape.input;
  const auto D = static_cast<std::int64_t>(p.reverse.size());
  Truth out;
  const Values x = doubles(p.x), dy = doubles(by.dy);
  out.dx.resize(x.size());
  for (std::size_t d = 0; d < p.reverse.size(); ++d) {
    const RecurrentProblem::Direction& from = p.direction[d];
    const Tensor* const weights[] = {&from.w_ih, &from.w_hh, &from.b_ih, &from.b_hh, &from.w_hr};
    std::vector<reference::Parameter> parameters = reference::parameters(p.config());
    for (std::size_t i = 0, w = 0; w < 5; ++w)
      if (weights[w]->defined()) parameters[i++].value = doubles(*weights[w]);
    const Values h_0 = doubles(from.h_0), c_0 = doubles(from.c_0), dh_n = doubles(by.dh_n[d]),
                 dc_n = doubles(by.dc_n[d]);
    std::vector<Values>& sums = out.direction[d];
    sums.assign(7, {});
    for (std::int64_t n = 0; n < p.layout->batch(); ++n) {
      const std::int64_t T = p.lengths[static_cast<std::size_t>(n)];
      std::vector<std::int64_t> rows;
      for (std::int64_t t = 0; t < T; ++t)
        rows.push_back(p.layout->row(n, p.reverse[d] ? T - 1 - t : t));
      const std::int64_t self[] = {n};
      const reference::Sequence sequence{rows_of(x, rows, I, 0, I), rows_of(h_0, self, S, 0, S),
                                         rows_of(c_0, self, H, 0, H)};
      const reference::Gradients one =
          reference::gradients(p.config(), parameters, sequence,
                               {rows_of(dy, rows, D * S, static_cast<std::int64_t>(d) * S, S),
                                rows_of(dh_n, self, S, 0, S), rows_of(dc_n, self, H, 0, H)});
      for (std::size_t t = 0; t < rows.size(); ++t)
        for (std::int64_t j = 0; j < I; ++j)
          out.dx[static_cast<std::size_t>(rows[t] * I + j)] +=
              one.x[t * static_cast<std::size_t>(I) + static_cast<std::size_t>(j)];
      sums[0].insert(sums[0].end(), one.h0.begin(), one.h0.end());
      sums[1].insert(sums[1].end(), one.c0.begin(), one.c0.end());
      for (std::size_t i = 0, w = 0; w < 5; ++w) {
        if (!weights[w]->defined()) continue;
        const Values& values = one.parameters[i++].value;
        sums[2 + w].resize(values.size());
        for (std::size_t k = 0; k < values.size(); ++k) sums[2 + w][k] += values[k];
      }
    }
  }
  return out;
}

/// The largest error as a share of the largest entry.
double relative_error(const TensorView& got, const Values& want) {
  const Values values = doubles(got);
  if (values.size() != want.size()) return INFINITY;
  double worst = 0, largest = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double off = std::abs(values[i] - want[i]);
    worst = std::isnan(off) ? INFINITY : std::max(worst, off);
    largest = std::max(largest, std::abs(want[i]));
  }
  return worst == 0 ? 0 : worst / std::max(largest, 1e-3);
}

double error(const RecurrentProblem& p, const Upstream& by, const Gradients& got) {
  const Truth truth = truth_of(p, by);
  double worst = relative_error(got.dx, truth.dx);
  for (std::size_t d = 0; d < got.direction.size(); ++d)
    for (std::size_t i = 0; i < 7; ++i) {
      const Tensor& one = *got.direction[d].all()[i];
      const bool wanted = !truth.direction[d][i].empty();
      if (wanted) worst = std::max(worst, relative_error(one, truth.direction[d][i]));
    }
  return worst;
}

/// In f64 what is agreed on. Else the forward's own tolerance for each factor of a gradient (a gate
/// and what comes back through it, hence twice), where the chain back has as many steps as the
/// chain forward and terms of all gates; a weight's gradient walks over all tokens instead of over
/// the steps of one sequence.
double allowed(const RecurrentProblem& p) {
  if (p.shape.dtype == Dtype::f64) return 1e-11;
  const reference::Work work{gates(p.shape.cell) * p.shape.hidden + p.shape.input,
                             std::max<std::int64_t>(1, p.layout->total()), 1, 1.0};
  return 2 * reference::tolerance(p.precision(), work);
}

std::vector<std::int64_t> ragged(std::int64_t count, std::int64_t longest) {
  std::vector<std::int64_t> lengths;
  for (std::int64_t n = 0; n < count; ++n) lengths.push_back((n * 7 + 1) % (longest + 1));
  return lengths;
}

RecurrentProblem problem_of(Cell cell, std::int64_t hidden, const Kind& kind,
                            std::int64_t projection, std::vector<std::int64_t> lengths,
                            std::vector<bool> reverse = {false, true}, bool states = true) {
  RecurrentProblem p({cell, 7, hidden, projection, kind.dtype}, std::move(lengths),
                     std::move(reverse), states);
  if (kind.math != F32Math::exact)
    p.held_to = kind.math == F32Math::tf32 ? reference::kTf32 : reference::kTf32x3;
  return p;
}
RecurrentProblem problem_of(Cell cell, std::int64_t hidden, Dtype dtype, std::int64_t projection,
                            std::vector<std::int64_t> lengths,
                            std::vector<bool> reverse = {false, true}, bool states = true) {
  return problem_of(cell, hidden, Kind{dtype}, projection, std::move(lengths), std::move(reverse),
                    states);
}

/// Rows of a tensor, in this order.
Tensor rows_at(const Tensor& from, const std::vector<std::int64_t>& rows) {
  if (!from.defined()) return Tensor();
  const auto bytes = static_cast<std::size_t>(from.size(1)) * size_of(from.dtype());
  Tensor out = Tensor::empty({std::ssize(rows), from.size(1)}, from.dtype());
  auto* const to = static_cast<std::byte*>(out.span().raw());
  for (std::size_t r = 0; r < rows.size(); ++r)
    std::memcpy(to + r * bytes,
                static_cast<const std::byte*>(from.view().raw()) +
                    static_cast<std::size_t>(rows[r]) * bytes,
                bytes);
  return out;
}
std::vector<std::int64_t> rows_of_sequence(const RecurrentProblem& p, std::int64_t n) {
  std::vector<std::int64_t> rows;
  for (std::int64_t t = 0; t < p.lengths[static_cast<std::size_t>(n)]; ++t)
    rows.push_back(p.layout->row(n, t));
  return rows;
}

}  // namespace

TEST_CASE("gradients of every cell agree with the reference on every instruction set") {
  NEEDS_THE_CPU;
  const auto cell =
      GENERATE(Cell::lstm, Cell::gru, Cell::gru_reset_before, Cell::rnn_tanh, Cell::rnn_relu);
  const auto dtype = GENERATE(Dtype::f32, Dtype::f64);
  const auto hidden = GENERATE(1, 5, 16, 33);
  PACKRNN_ONE_IN(5);
  const auto check = [&](const RecurrentProblem& p) {
    const Upstream by(p);
    for_each_cpu_target([&](const std::string& target) {
      INFO(target << " " << name_of(cell) << " H " << hidden << " P " << p.shape.projection);
      Context context(Device::cpu(), {.threads = 1});
      const double share = error(p, by, run(context, p, by)) / allowed(p);
      CHECK(share <= 1.0);
    });
  };
  check(problem_of(cell, hidden, dtype, 0, ragged(13, 8)));
  check(problem_of(cell, hidden, dtype, 0, ragged(13, 8), {true}, false));
  if (cell == Cell::lstm && hidden > 1)
    check(problem_of(cell, hidden, dtype, hidden / 2, ragged(13, 8)));
}

TEST_CASE("gradients reach over many steps") {
  const auto cell = GENERATE(Cell::lstm, Cell::gru, Cell::rnn_tanh);
  const RecurrentProblem p = problem_of(cell, 6, Dtype::f64, 0, {300, 3}, {false, true});
  const Upstream by(p);
  Context context;
  CHECK(error(p, by, run(context, p, by)) <= allowed(p));
}

TEST_CASE("any number of threads gives the same gradients") {
  NEEDS_THE_CPU;
  const auto cell = GENERATE(Cell::lstm, Cell::gru, Cell::gru_reset_before, Cell::rnn_tanh);
  const auto projection = GENERATE(0, 20);
  if (projection > 0 && cell != Cell::lstm) return;
  const auto reverse = GENERATE(std::vector<bool>{true}, std::vector<bool>{false, true});
  const RecurrentProblem p = problem_of(cell, 40, Dtype::f32, projection, ragged(60, 12), reverse);
  const Upstream by(p);
  Context one(Device::cpu(), {.threads = 1});
  const Gradients alone = run(one, p, by);
  for (const int threads : {2, 3}) {
    Context context(Device::cpu(), {.threads = threads});
    INFO(name_of(cell) << " threads " << threads);
    CHECK(differences(run(context, p, by), alone) == 0);
  }
}

TEST_CASE("threads that share the units of a step, and those that share its rows, agree") {
  NEEDS_THE_CPU;
  // Steps of these are large enough to meet over, and the batch passes the number of rows from
  // which each thread takes its own; the last panels are narrower than the others.
  const auto cell = GENERATE(Cell::lstm, Cell::gru, Cell::gru_reset_before, Cell::rnn_tanh);
  const auto projection = GENERATE(0, 90);
  if (projection > 0 && cell != Cell::lstm) return;
  const std::int64_t hidden = cell == Cell::rnn_tanh ? 230 : 150;
  for (const auto& lengths : {ragged(60, 12), {9, 4}}) {
    const RecurrentProblem p = problem_of(cell, hidden, Dtype::f32, projection, lengths);
    const Upstream by(p);
    Context one(Device::cpu(), {.threads = 1});
    const Gradients alone = run(one, p, by);
    CHECK(error(p, by, alone) <= allowed(p));
    for (const int threads : {2, 3, 4}) {
      Context context(Device::cpu(), {.threads = threads});
      INFO(name_of(cell) << " N " << lengths.size() << " threads " << threads);
      CHECK(differences(run(context, p, by), alone) == 0);
    }
  }
}

TEST_CASE("gradients of every cell agree with the reference on a GPU") {
  NEEDS_A_GPU;
  const Kind kind = GENERATE(from_range(std::begin(kKinds), std::end(kKinds)));
  const auto cell =
      GENERATE(Cell::lstm, Cell::gru, Cell::gru_reset_before, Cell::rnn_tanh, Cell::rnn_relu);
  const auto hidden = GENERATE(1, 8, 37);
  PACKRNN_ONE_IN(11);
  // Near zero, rounding decides whether relu lets a gradient through: no bound holds for that.
  const bool rounds = kind.math != F32Math::exact || size_of(kind.dtype) == 2;
  if (cell == Cell::rnn_relu && rounds) return;
  const auto check = [&](const RecurrentProblem& p) {
    const Upstream by(p);
    for (const char* const algorithm : {"", "step"}) {
      if (!rounds && *algorithm != 0) continue;  // there is no other
      Context context = context_of(kind, algorithm);
      INFO(name_of(kind) << " " << name_of(cell) << " H " << hidden << " P " << p.shape.projection
                         << " " << algorithm);
      const double share = error(p, by, run(context, p, by)) / allowed(p);
      CHECK(share <= 1.0);
      CHECK(share > 0.0);
    }
  };
  // More rows than a block takes, or fewer.
  const std::int64_t batch = hidden == 8 ? 19 : 13;
  check(problem_of(cell, hidden, kind, 0, ragged(batch, 8)));
  check(problem_of(cell, hidden, kind, 0, {3, 5, 0, 1}, {hidden == 1}, false));
  if (cell == Cell::lstm && hidden > 1)
    check(problem_of(cell, hidden, kind, hidden / 3, ragged(batch, 8)));
}

TEST_CASE("a GPU gives the gradients of the CPU to the bit") {
  NEEDS_A_GPU;
  const std::string target = kernels::cpu_target();
  if (target.find("AVX2") == std::string::npos && target.find("AVX3") == std::string::npos &&
      target.find("NEON") == std::string::npos)
    PACKRNN_SKIP("this CPU has no fused multiply-add: " + target);
  // Of a GRU that resets after, the CPU adds the gates in another order.
  const auto cell = GENERATE(Cell::lstm, Cell::gru_reset_before, Cell::rnn_tanh, Cell::rnn_relu);
  const auto dtype = GENERATE(Dtype::f32, Dtype::f64);
  for (const std::int64_t projection : {0, 5}) {
    if (projection > 0 && cell != Cell::lstm) continue;
    const RecurrentProblem p = problem_of(cell, 21, dtype, projection, ragged(9, 7));
    const Upstream by(p);
    Context cpu(Device::cpu(), {.threads = 1});
    Context context = context_of({dtype});
    const Gradients expected = run(cpu, p, by), got = run(context, p, by);
    INFO(name_of(cell) << " " << packrnn::name_of(dtype) << " P " << projection);
    CHECK(tests::differences(expected.dx, got.dx) == 0);
    for (std::size_t d = 0; d < 2; ++d) {
      CHECK(tests::differences(expected.direction[d].dh_0, got.direction[d].dh_0) == 0);
      CHECK(tests::differences(expected.direction[d].dc_0, got.direction[d].dc_0) == 0);
    }
  }
}

TEST_CASE("gradients of a sequence are the same alone and in company") {
  const auto cell = GENERATE(Cell::lstm, Cell::gru, Cell::gru_reset_before, Cell::rnn_relu);
  const Kind kind = GENERATE(Kind{Dtype::f32}, Kind{Dtype::bf16}, Kind{Dtype::f32, F32Math::tf32});
  if (!on_gpu() && (kind.dtype != Dtype::f32 || kind.math != F32Math::exact)) return;
  PACKRNN_ONE_IN(5);
  const RecurrentProblem all = problem_of(cell, 21, kind, 0, ragged(full_or_small(30, 18), 9));
  const Upstream by(all);
  Context context = context_of(kind);
  const Gradients company = run(context, all, by);
  CHECK(differences(company, run(context, all, by)) == 0);
  for (const std::int64_t n : {std::int64_t{0}, std::int64_t{5}, std::int64_t{17}}) {
    const std::int64_t T = all.lengths[static_cast<std::size_t>(n)];
    INFO(name_of(kind) << " " << name_of(cell) << " sequence " << n << " of length " << T);
    const std::vector<std::int64_t> rows = rows_of_sequence(all, n);
    RecurrentProblem p = problem_of(cell, 21, kind, 0, {T});
    Upstream mine(p);
    p.x = rows_at(all.x, rows);
    mine.dy = rows_at(by.dy, rows);
    for (std::size_t d = 0; d < 2; ++d) {
      // Weights are drawn by their shapes alone.
      p.direction[d].h_0 = rows_at(all.direction[d].h_0, {n});
      p.direction[d].c_0 = rows_at(all.direction[d].c_0, {n});
      mine.dh_n[d] = rows_at(by.dh_n[d], {n});
      mine.dc_n[d] = rows_at(by.dc_n[d], {n});
    }
    const Gradients alone = run(context, p, mine);
    CHECK(tests::differences(alone.dx, rows_at(company.dx, rows)) == 0);
    for (std::size_t d = 0; d < 2; ++d) {
      const Gradients::Direction &one = alone.direction[d], &with = company.direction[d];
      CHECK(tests::differences(one.dh_0, rows_at(with.dh_0, {n})) == 0);
      CHECK(tests::differences(one.dc_0, rows_at(with.dc_0, {n})) == 0);
    }
  }
}

TEST_CASE("a NaN of one sequence is in no gradient of another's input or state") {
  const auto cell = GENERATE(Cell::lstm, Cell::gru, Cell::gru_reset_before, Cell::rnn_tanh);
  const Kind kind = GENERATE(Kind{Dtype::f32}, Kind{Dtype::f16});
  if (!on_gpu() && kind.dtype != Dtype::f32) return;
  RecurrentProblem p = problem_of(cell, 10, kind, cell == Cell::lstm ? 4 : 0, {5, 4, 6, 2, 0});
  Upstream by(p);
  Context context = context_of(kind);
  const Gradients clean = run(context, p, by);
  // In the input of sequence 0, and in what comes back to 3.
  const auto spoil = [](Tensor& t, std::int64_t row) {
    Tensor wide = convert(t, Dtype::f64);
    wide.values<double>()[static_cast<std::size_t>(row * t.size(1))] = NAN;
    t = convert(wide, t.dtype());
  };
  spoil(p.x, p.layout->row(0, 2));
  spoil(by.dy, p.layout->row(3, 1));
  const Gradients got = run(context, p, by);
  for (const std::int64_t n : {1, 2, 4}) {
    INFO(name_of(cell) << " sequence " << n);
    const std::vector<std::int64_t> rows = rows_of_sequence(p, n);
    CHECK(tests::differences(rows_at(clean.dx, rows), rows_at(got.dx, rows)) == 0);
    for (std::size_t d = 0; d < 2; ++d) {
      CHECK(tests::differences(rows_at(clean.direction[d].dh_0, {n}),
                               rows_at(got.direction[d].dh_0, {n})) == 0);
      CHECK(tests::differences(rows_at(clean.direction[d].dc_0, {n}),
                               rows_at(got.direction[d].dc_0, {n})) == 0);
    }
  }
  for (const std::int64_t n : {0, 3})
    CHECK(std::isnan(doubles(rows_at(got.direction[0].dh_0, {n}))[0]));
}

TEST_CASE("lengths that only the device knows give the same gradients") {
  NEEDS_A_GPU;
  const auto cell = GENERATE(Cell::lstm, Cell::gru, Cell::gru_reset_before, Cell::rnn_tanh);
  const Kind kind = GENERATE(Kind{Dtype::f32}, Kind{Dtype::bf16});
  for (const std::int64_t projection : {0, 4}) {
    if (projection > 0 && cell != Cell::lstm) continue;
    const RecurrentProblem p = problem_of(cell, 10, kind, projection, {4, 0, 6, 1, 6});
    const Upstream by(p);
    Context context = context_of(kind);
    const Tensor lengths =
        context.to_device(Tensor::from(std::vector<std::int64_t>(p.lengths), {p.layout->batch()}));
    kernels::LayoutCapacity capacity;
    capacity.padded_length = 8;
    capacity.rows = 25;
    const PackedLayoutPtr layout = kernels::make_layout(context, lengths, capacity);
    const Gradients expected = run(context, p, by);
    const Gradients got = run(context, p, by, {.layout = layout.get()});
    INFO(name_of(kind) << " " << name_of(cell) << " P " << projection);
    const std::int64_t total = p.layout->total();
    CHECK(tests::differences(expected.dx, got.dx.view().rows(0, total)) == 0);
    CHECK(tests::differences(Tensor::zeros({25 - total, 7}, kind.dtype),
                             got.dx.view().rows(total, 25)) == 0);
    const Truth truth = truth_of(p, by);
    for (std::size_t d = 0; d < 2; ++d) {
      CHECK(tests::differences(expected.direction[d].dh_0, got.direction[d].dh_0) == 0);
      CHECK(tests::differences(expected.direction[d].dc_0, got.direction[d].dc_0) == 0);
      for (std::size_t i = 2; i < 7; ++i)
        if (!truth.direction[d][i].empty())
          CHECK(relative_error(*got.direction[d].all()[i], truth.direction[d][i]) <= allowed(p));
    }
  }
}

TEST_CASE("products in ranges of rows change no gradient, and the host waits for none") {
  NEEDS_A_GPU;
  const auto cell = GENERATE(Cell::lstm, Cell::gru, Cell::gru_reset_before);
  const Kind kind = GENERATE(Kind{Dtype::f32}, Kind{Dtype::f16});
  const RecurrentProblem p = problem_of(cell, 9, kind, 0, ragged(8, 7));
  const Upstream by(p);
  Context context = context_of(kind);
  const Gradients expected = run(context, p, by);
  for (const std::int64_t bytes : {1, 2000}) {
    const Backward backward = [&](Context& c, const auto& shape, const auto& layout, const auto& x,
                                  const auto& y, const auto& dy, auto directions, const auto& dx) {
      const std::int64_t waits = gpu::waits();
      kernels::cuda::recurrent_backward(c, shape, layout, x, y, dy, directions, dx,
                                        {.scratch_bytes = bytes});
      CHECK(gpu::waits() == waits);
    };
    CHECK(differences(run(context, p, by, {.backward = backward}), expected) == 0);
  }
}

/// Of one direction from the front, on the device: the gates of a forward, computed again, and what
/// belongs to them; on the host.
struct Recomputed {
  std::vector<double> gates, before, y, cells;
};
Recomputed recomputed(Context& context, const RecurrentProblem& p) {
  const kernels::RecurrentShape& s = p.shape;
  const RecurrentOutput out = p.run(context);
  const auto up = [&](const Tensor& t) { return t.defined() ? context.to_device(t) : Tensor(); };
  const RecurrentProblem::Direction& from = p.direction[0];
  Tensor panels = context.empty({kernels::recurrent_panel_elements(context.device(), s)}, s.dtype);
  kernels::pack_recurrent(context, s, {from.w_ih, from.w_hh, from.b_ih, from.b_hh, from.w_hr},
                          panels);
  const std::int64_t total = p.layout->total(), U = kernels::cuda::RecurrentPanels::of(s).units;
  const Tensor x = up(p.x), y = up(out.y), h_0 = up(from.h_0);
  Tensor before = context.empty({total, s.hidden}, s.dtype),
         reset = context.empty({total, s.hidden}, s.dtype),
         gates = context.empty({total, U, 4}, kernels::cell_dtype(s.dtype));
  kernels::cuda::recompute_gates(context,
                                 {.shape = s,
                                  .layout = p.layout->on(context),
                                  .rows = total,
                                  .reverse = p.reverse[0],
                                  .panels = panels.view().raw(),
                                  .x = x.view().raw(),
                                  .y = y.view().raw(),
                                  .h_0 = h_0.view().raw(),
                                  .before = before.span().raw(),
                                  .gates = gates.span().raw(),
                                  .reset = reset.span().raw(),
                                  .ldy = s.hidden},
                                 1 << 20);
  return {doubles(context.to_host(gates)), doubles(context.to_host(before)), doubles(out.y),
          doubles(out.cells)};
}

TEST_CASE("gates that are computed again have the forward's bits") {
  NEEDS_A_GPU;
  const auto cell = GENERATE(Cell::lstm, Cell::gru, Cell::gru_reset_before);
  const auto dtype = GENERATE(Dtype::f32, Dtype::f64);
  const auto reverse = GENERATE(false, true);
  const RecurrentProblem p = problem_of(cell, 21, dtype, 0, ragged(11, 6), {reverse});
  Context context = context_of({dtype});
  const Recomputed r = recomputed(context, p);
  const std::int64_t H = 21, U = 24;
  const auto fused = [&](double a, double b, double c) {
    return dtype == Dtype::f64
               ? std::fma(a, b, c)
               : static_cast<double>(
                     std::fma(static_cast<float>(a), static_cast<float>(b), static_cast<float>(c)));
  };
  const auto rounded = [&](double value) {
    return dtype == Dtype::f64 ? value : static_cast<double>(static_cast<float>(value));
  };
  // What the last lines of the cells make of them.
  for (std::int64_t n = 0; n < p.layout->batch(); ++n)
    for (std::int64_t t = 0; t < p.lengths[static_cast<std::size_t>(n)]; ++t)
      for (std::int64_t u = 0; u < H; ++u) {
        const auto at = [&](std::int64_t step) {
          return static_cast<std::size_t>(p.layout->row(n, step) * H + u);
        };
        const double* const g =
            r.gates.data() + (p.layout->row(n, t) * U + u) * 4;  // NOLINT(*-pointer-arithmetic)
        const std::int64_t from = reverse ? t + 1 : t - 1;
        const bool first = from < 0 || from == p.lengths[static_cast<std::size_t>(n)];
        if (cell == Cell::lstm) {
          const double c = first ? doubles(p.direction[0].c_0)[static_cast<std::size_t>(n * H + u)]
                                 : r.cells[at(from)];
          REQUIRE(fused(g[1], c, rounded(g[0] * g[2])) == r.cells[at(t)]);
        } else {
          const double h = r.before[at(t)];
          if (!first) REQUIRE(h == r.y[at(from)]);
          REQUIRE(fused(g[1], rounded(h - g[2]), g[2]) == r.y[at(t)]);
        }
      }
}

TEST_CASE("what the loss does not read has no gradient") {
  const auto cell = GENERATE(Cell::lstm, Cell::gru, Cell::rnn_tanh);
  const RecurrentProblem p = problem_of(cell, 5, Dtype::f64, 0, {4, 0, 1, 6});
  Upstream by(p);
  by.dy = {};
  Context context;
  CHECK(error(p, by, run(context, p, by)) <= allowed(p));
  by = Upstream(p);
  by.dh_n = std::vector<Tensor>(2);
  by.dc_n = std::vector<Tensor>(2);
  CHECK(error(p, by, run(context, p, by)) <= allowed(p));
}

TEST_CASE("what is not wanted is not touched, and missing it changes nothing else") {
  const auto cell = GENERATE(Cell::lstm, Cell::gru, Cell::gru_reset_before, Cell::rnn_tanh);
  const RecurrentProblem p =
      problem_of(cell, 5, Dtype::f32, cell == Cell::lstm ? 2 : 0, {4, 0, 1, 6});
  const Upstream by(p);
  Context context;
  const Gradients all = run(context, p, by);
  const auto some = [&](bool dx_only) {
    const Backward backward = [&](Context& c, const auto& shape, const auto& layout, const auto& x,
                                  const auto& y, const auto& dy, auto given, const auto& dx) {
      std::vector<kernels::RecurrentBackwardDirection> directions(given.begin(), given.end());
      for (kernels::RecurrentBackwardDirection& d : directions) {
        const TensorSpan b_hh = d.weights.b_hh;
        d.weights = {};
        if (!dx_only) d.weights.b_hh = b_hh;
        d.dh_0 = d.dc_0 = {};
      }
      kernels::recurrent_backward(c, shape, layout, x, y, dy, directions,
                                  dx_only ? dx : TensorSpan());
    };
    return run(context, p, by, {.backward = backward});
  };
  const Gradients only_dx = some(true), only_b = some(false);
  CHECK(tests::differences(only_dx.dx, all.dx) == 0);
  CHECK(tests::differences(only_b.dx, nans(all.dx.shape(), Dtype::f32)) == 0);
  for (std::size_t d = 0; d < 2; ++d) {
    CHECK(tests::differences(only_b.direction[d].b_hh, all.direction[d].b_hh) == 0);
    for (const Tensor* const t : {&only_dx.direction[d].w_hh, &only_b.direction[d].b_ih})
      CHECK(tests::differences(*t, Tensor::zeros(t->shape(), Dtype::f32)) == 0);
    CHECK(std::isnan(only_dx.direction[d].dh_0.view().data<float>()[0]));
  }
}

TEST_CASE("a second backward adds the same once more") {
  const auto cell = GENERATE(Cell::lstm, Cell::gru_reset_before);
  // Few tokens are one block of a sum: twice the sum is exact.
  const RecurrentProblem p = problem_of(cell, 9, Dtype::f32, cell == Cell::lstm ? 4 : 0, {4, 0, 7});
  const Upstream by(p);
  Context context;
  const Gradients once = run(context, p, by), twice = run(context, p, by, {.times = 2});
  CHECK(tests::differences(once.dx, twice.dx) == 0);
  for (std::size_t d = 0; d < 2; ++d) {
    const auto ones = once.direction[d].all(), twos = twice.direction[d].all();
    for (std::size_t i = 2; i < ones.size(); ++i) {
      if (!ones[i]->defined()) continue;
      Tensor doubled = ones[i]->clone();
      for (float& v : doubled.values<float>()) v *= 2;
      CHECK(tests::differences(doubled, *twos[i]) == 0);
    }
  }
}

TEST_CASE("a reserve changes nothing of the forward; batches of nothing") {
  Context context;
  for (const auto& lengths : {std::vector<std::int64_t>{}, std::vector<std::int64_t>{0, 0}}) {
    const RecurrentProblem p = problem_of(Cell::lstm, 5, Dtype::f64, 0, lengths);
    const Upstream by(p);
    const Gradients got = run(context, p, by);
    for (std::size_t d = 0; d < 2; ++d) {
      CHECK(tests::differences(got.direction[d].dh_0, by.dh_n[d]) == 0);
      CHECK(tests::differences(got.direction[d].dc_0, by.dc_n[d]) == 0);
    }
  }
  const auto cell = GENERATE(Cell::lstm, Cell::gru, Cell::gru_reset_before, Cell::rnn_tanh);
  const RecurrentProblem p = problem_of(cell, 19, Dtype::f32, 0, ragged(20, 6));
  std::vector<Tensor> reserves;
  const auto kept = [&](Context& c, const kernels::RecurrentShape& s, const PackedLayout& layout,
                        const TensorView& x, std::span<const kernels::RecurrentDirection> given,
                        const TensorSpan& y, const TensorSpan& cells) {
    std::vector<kernels::RecurrentDirection> directions(given.begin(), given.end());
    for (kernels::RecurrentDirection& d : directions) {
      reserves.push_back(
          c.to_device(nans({kernels::recurrent_reserve_elements(c.device(), s, layout.total())},
                           kernels::cell_dtype(s.dtype))));
      d.reserve = reserves.back();
    }
    kernels::recurrent_forward(c, s, layout, x, directions, y, cells);
  };
  CHECK(tests::differences(p.run(context), p.run(context, kept)) == 0);
}

TEST_CASE("packed weights have the same bits from either memory") {
  NEEDS_A_GPU;
  const auto cell = GENERATE(Cell::lstm, Cell::gru, Cell::gru_reset_before, Cell::rnn_tanh);
  const auto dtype = GENERATE(Dtype::f32, Dtype::f64, Dtype::f16, Dtype::bf16);
  Context context;
  for (const bool full : {false, true}) {
    const std::int64_t projection = full && cell == Cell::lstm ? 5 : 0;
    const RecurrentProblem p({cell, 6, 13, projection, dtype}, {2}, {false}, true, full);
    const kernels::RecurrentShape& s = p.shape;
    const RecurrentProblem::Direction& from = p.direction[0];
    const auto up = [&](const Tensor& t) { return t.defined() ? context.to_device(t) : Tensor(); };
    const Tensor w_ih = up(from.w_ih), w_hh = up(from.w_hh), b_ih = up(from.b_ih),
                 b_hh = up(from.b_hh), w_hr = up(from.w_hr);
    const auto same = [&](std::int64_t elements, const auto& pack) {
      Tensor host = context.to_device(nans({elements}, dtype)),
             device = context.to_device(nans({elements}, dtype));
      pack(context, s, {from.w_ih, from.w_hh, from.b_ih, from.b_hh, from.w_hr}, host);
      pack(context, s, {w_ih, w_hh, b_ih, b_hh, w_hr}, device);
      const Tensor a = context.to_host(host), b = context.to_host(device);
      return std::memcmp(a.view().raw(), b.view().raw(), a.view().bytes()) == 0;
    };
    INFO(name_of(cell) << " " << packrnn::name_of(dtype));
    CHECK(same(kernels::recurrent_panel_elements(context.device(), s), kernels::pack_recurrent));
    CHECK(same(kernels::recurrent_backward_panel_elements(context.device(), s),
               kernels::pack_recurrent_backward));
    Tensor panels = context.empty({kernels::recurrent_panel_elements(context.device(), s)}, dtype);
    CHECK_THROWS_WITH(
        kernels::pack_recurrent(context, s, {w_ih, from.w_hh, b_ih, b_hh, w_hr}, panels),
        Contains("w_hh is on cpu"));
  }
}

TEST_CASE("every algorithm of a GPU keeps the cell states for a backward") {
  NEEDS_A_GPU;
  const Kind kind = GENERATE(from_range(std::begin(kKinds), std::end(kKinds)));
  Context context = context_of(kind);
  const RecurrentProblem p = problem_of(Cell::lstm, 20, kind, 0, {4, 0, 6, 1, 3});
  const std::int64_t total = p.layout->total();
  unsigned runs = 0;
  for (const std::string algorithm : {"step", "persistent", "cluster"}) {
    ContextOptions options;
    options.f32_math = kind.math;
    options.algorithm = algorithm;
    Context wishing(Device::best(), options);
    try {
      kernels::explain_recurrent(wishing, p.shape, *p.layout, 2);
    } catch (const Unsupported&) {
      continue;
    }
    ++runs;
    INFO(name_of(kind) << " " << algorithm);
    const RecurrentOutput expected = p.run(wishing);
    // With one reserve, with both, and with the caller's own cells or without.
    for (const unsigned kept : {1U, 3U})
      for (const bool with_cells : {false, true}) {
        std::vector<Tensor> reserves;
        const RecurrentOutput got =
            p.run(wishing, [&](Context& c, const auto& s, const auto& layout, const auto& x,
                               auto given, const auto& y, const TensorSpan& cells) {
              std::vector<kernels::RecurrentDirection> directions(given.begin(), given.end());
              for (std::size_t d = 0; d < 2; ++d) {
                reserves.push_back(c.to_device(
                    nans({kernels::recurrent_reserve_elements(c.device(), s, layout.total())},
                         kernels::cell_dtype(s.dtype))));
                if (kept >> d & 1U) directions[d].reserve = reserves[d];
              }
              kernels::recurrent_forward(c, s, layout, x, directions, y,
                                         with_cells ? cells : TensorSpan());
            });
        if (with_cells) CHECK(tests::differences(expected, got) == 0);
        const std::vector<double> cells = doubles(expected.cells);
        for (std::size_t d = 0; d < 2; ++d) {
          if (!(kept >> d & 1U)) continue;
          const std::vector<double> mine = doubles(wishing.to_host(reserves[d]));
          std::int64_t off = 0;
          for (std::int64_t i = 0; i < total * 20; ++i)
            off += mine[static_cast<std::size_t>(i)] !=
                   cells[static_cast<std::size_t>(i / 20 * 40 + i % 20) + d * 20];
          CHECK(off == 0);
        }
      }
  }
  CHECK(runs >= (kind.dtype == Dtype::f64 ? 1 : 2));
}

TEST_CASE("a reserve grows with the valid tokens") {
  const kernels::RecurrentShape lstm{Cell::lstm, 7, 256}, gru{Cell::gru, 7, 256};
  const auto elements = [](const kernels::RecurrentShape& shape, std::int64_t total) {
    return kernels::recurrent_reserve_elements(Device::cpu(), shape, total);
  };
  CHECK(elements(lstm, 0) == 0);
  for (const auto* shape : {&lstm, &gru})
    CHECK(elements(*shape, 1000) == 1000 * elements(*shape, 1));
  // Gates and c, or gates and the sum of h in n; and a cache line, against rows of one cache set.
  CHECK(elements(lstm, 1) <= 5 * 256 + 16);
  CHECK(elements(gru, 1) <= 4 * 256 + 16);
}

TEST_CASE("a backward names what does not fit") {
  const Device device = Device::best();
  const kernels::RecurrentShape shape{Cell::gru, 3, 4, 0, Dtype::f32};
  Context context;
  CHECK_THROWS_WITH(kernels::recurrent_reserve_elements(device, shape, -3), Contains("-3"));
  kernels::RecurrentShape narrow = shape;
  narrow.storage = kernels::WeightStorage::f16;
  CHECK_THROWS_WITH(kernels::recurrent_backward_panel_elements(device, narrow), Contains("f16"));

  const PackedLayoutPtr layout = PackedLayout::make({2, 1});
  Tensor panels =
      context.empty({kernels::recurrent_backward_panel_elements(device, shape)}, Dtype::f32);
  Tensor reserve =
      context.empty({kernels::recurrent_reserve_elements(device, shape, 3)}, Dtype::f32);
  Tensor x = context.zeros({3, 3}, Dtype::f32), y = context.zeros({3, 4}, Dtype::f32),
         state = context.zeros({2, 4}, Dtype::f32);
  kernels::RecurrentBackwardDirection d;
  d.panels = panels;
  const auto backward = [&](const TensorView& dy) {
    kernels::recurrent_backward(context, shape, *layout, x, y, dy, {&d, 1}, {});
  };
  CHECK_THROWS_WITH(backward(y), Contains("reserve is missing"));
  d.reserve = reserve;
  CHECK_THROWS_WITH(backward(x), Contains("dy has shape [3, 3], expected [3, 4]"));
  d.dc_n = state;
  CHECK_THROWS_WITH(backward(y), Contains("dc_n: GRU has no cell state"));
  d.dc_n = {};
  d.weights.w_ih = y;
  CHECK_THROWS_WITH(backward(y), Contains("gradient of w_ih has shape [3, 4], expected [12, 3]"));
  d.weights.w_ih = {};
  d.weights.w_hr = y;
  CHECK_THROWS_WITH(backward(y), Contains("w_hr: the layer has no projection"));
}

TEST_CASE("a backward says how it will run") {
  const PackedLayoutPtr layout = PackedLayout::make({2, 1});
  const auto said = [&](const kernels::RecurrentShape& shape, const std::string& algorithm) {
    Context context = context_of({shape.dtype}, algorithm);
    return kernels::explain_recurrent_backward(context, shape, *layout, 1);
  };
  const std::string exact = said({Cell::gru, 3, 4, 0, Dtype::f32}, "");
  CHECK_THAT(exact, Contains("GRU f32") && Contains("backward"));
  CHECK_THAT(exact, Contains(on_gpu() ? "step: one fused kernel per step" : "on the CPU"));
  if (!on_gpu()) return;
  const kernels::RecurrentShape narrow{Cell::gru, 3, 4, 0, Dtype::bf16};
  CHECK_THAT(said(narrow, ""), Contains("backward persistent: 1 group"));
  CHECK_THAT(said(narrow, "step"), Contains("step: one fused kernel per step; persistent: not"));
  CHECK_THAT(said({Cell::lstm, 3, 4, 2, Dtype::bf16}, ""),
             Contains("two fused kernels per step") && Contains("projection"));
}

// Gradients of one recurrent layer against the reference's, summed over sequences run alone.
#include "packrnn/kernels/recurrent_backward.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

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

/// What the loss says about a problem's results.
struct Upstream {
  Tensor dy;
  std::vector<Tensor> dh_n, dc_n;  // per direction; undefined: zeros

  explicit Upstream(const RecurrentProblem& p) {
    const auto D = static_cast<std::int64_t>(p.reverse.size());
    const std::int64_t N = p.layout->batch();
    std::uint64_t seed = 100;
    dy = uniform({p.layout->total(), D * p.shape.state()}, p.shape.dtype, ++seed, 1.0);
    for (std::int64_t d = 0; d < D; ++d) {
      dh_n.push_back(uniform({N, p.shape.state()}, p.shape.dtype, ++seed, 1.0));
      dc_n.push_back(p.shape.cell == Cell::lstm
                         ? uniform({N, p.shape.hidden}, p.shape.dtype, ++seed, 1.0)
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

/// Forward, then backward `times`, each into what the one before left of the weights' gradients.
Gradients run(Context& context, const RecurrentProblem& p, const Upstream& by, int times = 1) {
  const kernels::RecurrentShape& s = p.shape;
  const Device device = context.device();
  const auto D = static_cast<std::int64_t>(p.reverse.size());
  const std::int64_t N = p.layout->batch(), total = p.layout->total(), S = s.state(), H = s.hidden,
                     rows = gates(s.cell) * H;
  const bool lstm = s.cell == Cell::lstm;
  struct Memory {
    Tensor panels, back, h_n, c_n, reserve;
  };
  std::vector<Memory> memory(p.reverse.size());
  Gradients out;
  out.dx = nans({total, s.input}, s.dtype);
  out.direction.resize(p.reverse.size());
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
    m.h_n = nans({N, S}, s.dtype);
    if (lstm) m.c_n = nans({N, H}, s.dtype);
    m.reserve = nans({kernels::recurrent_reserve_elements(device, s, total)}, s.dtype);
    forward.push_back({.panels = m.panels,
                       .reverse = p.reverse[d],
                       .h_0 = from.h_0,
                       .c_0 = from.c_0,
                       .h_n = m.h_n,
                       .c_n = m.c_n,
                       .reserve = m.reserve});
    Gradients::Direction& to = out.direction[d];
    to.dh_0 = nans({N, S}, s.dtype);
    if (lstm) to.dc_0 = nans({N, H}, s.dtype);
    to.w_ih = Tensor::zeros({rows, s.input}, s.dtype);
    to.w_hh = Tensor::zeros({rows, S}, s.dtype);
    to.b_ih = Tensor::zeros({rows}, s.dtype);
    to.b_hh = Tensor::zeros({rows}, s.dtype);
    if (s.projection > 0) to.w_hr = Tensor::zeros({s.projection, H}, s.dtype);
    backward.push_back({.panels = m.back,
                        .reverse = p.reverse[d],
                        .h_0 = from.h_0,
                        .c_0 = from.c_0,
                        .reserve = m.reserve,
                        .dh_n = by.dh_n[d],
                        .dc_n = by.dc_n[d],
                        .dh_0 = to.dh_0,
                        .dc_0 = to.dc_0,
                        .weights = {to.w_ih, to.w_hh, to.b_ih, to.b_hh, to.w_hr}});
  }
  Tensor y = nans({total, D * S}, s.dtype);
  for (int i = 0; i < times; ++i) {
    kernels::recurrent_forward(context, s, *p.layout, p.x, forward, y);
    kernels::recurrent_backward(context, s, *p.layout, p.x, y, by.dy, backward, out.dx);
  }
  return out;
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

/// In f64 what is agreed on. In f32 the forward's own tolerance for each factor of a gradient (a
/// gate and what comes back through it, hence twice), where the chain back has as many steps as
/// the chain forward and terms of all gates; a weight's gradient walks over all tokens instead of
/// over the steps of one sequence.
double allowed(const RecurrentProblem& p) {
  if (p.shape.dtype == Dtype::f64) return 1e-11;
  const reference::Work work{gates(p.shape.cell) * p.shape.hidden + p.shape.input,
                             std::max<std::int64_t>(1, p.layout->total()), 1, 1.0};
  return 2 * reference::tolerance(reference::kF32, work);
}

std::vector<std::int64_t> ragged(std::int64_t count, std::int64_t longest) {
  std::vector<std::int64_t> lengths;
  for (std::int64_t n = 0; n < count; ++n) lengths.push_back((n * 7 + 1) % (longest + 1));
  return lengths;
}

RecurrentProblem problem_of(Cell cell, std::int64_t hidden, Dtype dtype, std::int64_t projection,
                            std::vector<std::int64_t> lengths,
                            std::vector<bool> reverse = {false, true}, bool states = true) {
  return {{cell, 7, hidden, projection, dtype}, std::move(lengths), std::move(reverse), states};
}

#define NEEDS_A_BACKWARD \
  if (on_gpu()) PACKRNN_SKIP("no backward on a GPU yet")

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
  NEEDS_A_BACKWARD;
  const auto cell = GENERATE(Cell::lstm, Cell::gru, Cell::rnn_tanh);
  const RecurrentProblem p = problem_of(cell, 6, Dtype::f64, 0, {300, 3}, {false, true});
  const Upstream by(p);
  Context context;
  CHECK(error(p, by, run(context, p, by)) <= allowed(p));
}

TEST_CASE("any number of threads gives the same gradients") {
  NEEDS_A_BACKWARD;
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

TEST_CASE("gradients of a sequence are the same alone and in company") {
  NEEDS_A_BACKWARD;
  const auto cell = GENERATE(Cell::lstm, Cell::gru, Cell::gru_reset_before, Cell::rnn_relu);
  const RecurrentProblem all = problem_of(cell, 21, Dtype::f32, 0, ragged(30, 9));
  const Upstream by(all);
  Context context;
  const Gradients company = run(context, all, by);
  const auto take = [](const Tensor& from, const std::vector<std::int64_t>& rows) {
    if (!from.defined()) return Tensor();
    const std::int64_t width = from.size(1);
    Tensor out = Tensor::empty({std::ssize(rows), width}, from.dtype());
    for (std::size_t r = 0; r < rows.size(); ++r)
      std::copy_n(from.view().data<float>() + rows[r] * width, width,
                  out.span().data<float>() + static_cast<std::int64_t>(r) * width);
    return out;
  };
  for (const std::int64_t n : {std::int64_t{0}, std::int64_t{5}, std::int64_t{17}}) {
    const std::int64_t T = all.lengths[static_cast<std::size_t>(n)];
    INFO(name_of(cell) << " sequence " << n << " of length " << T);
    std::vector<std::int64_t> rows;
    for (std::int64_t t = 0; t < T; ++t) rows.push_back(all.layout->row(n, t));
    RecurrentProblem p = problem_of(cell, 21, Dtype::f32, 0, {T});
    Upstream mine(p);
    p.x = take(all.x, rows);
    mine.dy = take(by.dy, rows);
    for (std::size_t d = 0; d < 2; ++d) {
      // Weights are drawn by their shapes alone.
      p.direction[d].h_0 = take(all.direction[d].h_0, {n});
      p.direction[d].c_0 = take(all.direction[d].c_0, {n});
      mine.dh_n[d] = take(by.dh_n[d], {n});
      mine.dc_n[d] = take(by.dc_n[d], {n});
    }
    const Gradients alone = run(context, p, mine);
    CHECK(tests::differences(alone.dx, take(company.dx, rows)) == 0);
    for (std::size_t d = 0; d < 2; ++d) {
      CHECK(tests::differences(alone.direction[d].dh_0, take(company.direction[d].dh_0, {n})) == 0);
      CHECK(tests::differences(alone.direction[d].dc_0, take(company.direction[d].dc_0, {n})) == 0);
    }
  }
}

TEST_CASE("what the loss does not read has no gradient") {
  NEEDS_A_BACKWARD;
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

TEST_CASE("a second backward adds the same once more") {
  NEEDS_A_BACKWARD;
  const auto cell = GENERATE(Cell::lstm, Cell::gru_reset_before);
  // Few tokens are one block of a sum: twice the sum is exact.
  const RecurrentProblem p = problem_of(cell, 9, Dtype::f32, cell == Cell::lstm ? 4 : 0, {4, 0, 7});
  const Upstream by(p);
  Context context;
  const Gradients once = run(context, p, by), twice = run(context, p, by, 2);
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
  NEEDS_A_BACKWARD;
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
          nans({kernels::recurrent_reserve_elements(c.device(), s, layout.total())}, s.dtype));
      d.reserve = reserves.back();
    }
    kernels::recurrent_forward(c, s, layout, x, directions, y, cells);
  };
  CHECK(tests::differences(p.run(context), p.run(context, kept)) == 0);
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
  if (on_gpu()) {
    CHECK_THROWS_WITH(kernels::recurrent_reserve_elements(device, shape, 3),
                      Contains("not on a GPU yet"));
    return;
  }
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
  Tensor x = Tensor::zeros({3, 3}, Dtype::f32), y = Tensor::zeros({3, 4}, Dtype::f32),
         state = Tensor::zeros({2, 4}, Dtype::f32);
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

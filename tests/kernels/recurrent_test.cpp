// The recurrent kernel by itself; its numbers on every instruction set. What layers make of it is
// tested in tests/layers.
#include "packrnn/kernels/recurrent.hpp"

#include <cmath>
#include <string>
#include <vector>

#include "packrnn/kernels/cpu_target.hpp"
#include "packrnn/runtime/error.hpp"
#include "packrnn/runtime/random.hpp"
#include "tests/catch.hpp"
#include "tests/kernels/cpu_targets.hpp"
#include "tests/reference/rnn.hpp"
#include "tests/reference/tolerance.hpp"

using namespace packrnn;
using Catch::Matchers::Contains;
using kernels::Cell;

namespace {

Tensor uniform(Shape shape, Dtype dtype, std::uint64_t seed, double bound) {
  Tensor t = Tensor::empty(shape, dtype);
  Generator generator(seed);
  fill_uniform(generator, t, -bound, bound);
  return t;
}

std::vector<double> doubles(const TensorView& t) {
  const Tensor wide = convert(t, Dtype::f64);
  return {wide.values<double>().begin(), wide.values<double>().end()};
}

/// One layer, one direction, weights and input drawn by a fixed seed.
struct Problem {
  kernels::RecurrentShape shape;
  PackedLayoutPtr layout;
  Tensor w_ih, w_hh, b_ih, b_hh, w_hr, x, h_0, c_0;

  Problem(kernels::RecurrentShape s, const Lengths& lengths)
      : shape(s), layout(PackedLayout::make(lengths)) {
    const std::int64_t rows = kernels::gates(s.cell) * s.hidden, N = layout->batch();
    const double bound = 1.0 / std::sqrt(double(s.hidden));
    w_ih = uniform({rows, s.input}, s.dtype, 1, bound);
    w_hh = uniform({rows, s.state()}, s.dtype, 2, bound);
    b_ih = uniform({rows}, s.dtype, 3, bound);
    b_hh = uniform({rows}, s.dtype, 4, bound);
    if (s.projection > 0) w_hr = uniform({s.projection, s.hidden}, s.dtype, 5, bound);
    x = uniform({layout->total(), s.input}, s.dtype, 6, 1.0);
    h_0 = uniform({N, s.state()}, s.dtype, 7, 1.0);
    if (s.cell == Cell::lstm) c_0 = uniform({N, s.hidden}, s.dtype, 8, 1.0);
  }

  struct Output {
    Tensor y, h_n, c_n;
  };

  Output run(int threads, bool reverse) const {
    Tensor panels = Tensor::empty({kernels::recurrent_panel_elements(shape)}, shape.dtype);
    kernels::pack_recurrent(shape, {w_ih, w_hh, b_ih, b_hh, w_hr}, panels);
    const std::int64_t N = layout->batch();
    Output out{Tensor::empty({layout->total(), shape.state()}, shape.dtype),
               Tensor::empty({N, shape.state()}, shape.dtype),
               {}};
    if (shape.cell == Cell::lstm) out.c_n = Tensor::empty({N, shape.hidden}, shape.dtype);
    Context context(Device::cpu(), {.threads = threads});
    const kernels::RecurrentDirection direction{.panels = panels,
                                                .reverse = reverse,
                                                .h_0 = h_0,
                                                .c_0 = c_0,
                                                .h_n = out.h_n,
                                                .c_n = out.c_n};
    kernels::recurrent_forward(context, shape, *layout, x, {&direction, 1}, out.y);
    return out;
  }

  /// Largest error of outputs and states against the reference, as a share of what is allowed.
  double error(const Output& out, bool reverse) const {
    const reference::Config config{static_cast<reference::Cell>(shape.cell),
                                   shape.input,
                                   shape.hidden,
                                   1,
                                   shape.projection,
                                   true,
                                   false};
    std::vector<reference::Parameter> parameters = reference::parameters(config);
    for (auto& p : parameters) {
      const Tensor& from = p.name == "weight_ih_l0"   ? w_ih
                           : p.name == "weight_hh_l0" ? w_hh
                           : p.name == "bias_ih_l0"   ? b_ih
                           : p.name == "bias_hh_l0"   ? b_hh
                                                      : w_hr;
      p.value = doubles(from);
    }
    const std::vector<double> xs = doubles(x), ys = doubles(out.y), hs = doubles(h_0),
                              hn = doubles(out.h_n);
    const std::vector<double> cs = c_0.defined() ? doubles(c_0) : std::vector<double>();
    const std::vector<double> cn = c_0.defined() ? doubles(out.c_n) : std::vector<double>();
    double worst = 0;
    for (std::int64_t n = 0; n < layout->batch(); ++n) {
      const std::int64_t T = layout->lengths()[std::size_t(n)], S = shape.state(), H = shape.hidden;
      const auto row = [&](std::int64_t t) { return layout->row(n, reverse ? T - 1 - t : t); };
      reference::Sequence sequence;
      for (std::int64_t t = 0; t < T; ++t)
        sequence.x.insert(sequence.x.end(), xs.begin() + row(t) * shape.input,
                          xs.begin() + (row(t) + 1) * shape.input);
      sequence.h0.assign(hs.begin() + n * S, hs.begin() + (n + 1) * S);
      if (!cs.empty()) sequence.c0.assign(cs.begin() + n * H, cs.begin() + (n + 1) * H);
      const reference::Result truth = reference::run(config, parameters, sequence);
      const double allowed = reference::tolerance(
          shape.dtype == Dtype::f32 ? reference::kF32 : reference::kF64,
          reference::work(config, std::max<std::int64_t>(T, 1), std::max(truth.magnitude, 1.0)));
      const auto compare = [&](double got, double want) {
        const double share = std::abs(got - want) / allowed;
        worst = std::isnan(share) ? INFINITY : std::max(worst, share);
      };
      for (std::int64_t t = 0; t < T; ++t)
        for (std::int64_t j = 0; j < S; ++j)
          compare(ys[std::size_t(row(t) * S + j)], truth.y[std::size_t(t * S + j)]);
      for (std::int64_t j = 0; j < S; ++j)
        compare(hn[std::size_t(n * S + j)], truth.h_n[std::size_t(j)]);
      if (!cn.empty())
        for (std::int64_t j = 0; j < H; ++j)
          compare(cn[std::size_t(n * H + j)], truth.c_n[std::size_t(j)]);
    }
    return worst;
  }
};

}  // namespace

TEST_CASE("every cell agrees with the double reference on every instruction set") {
  const auto cell =
      GENERATE(Cell::lstm, Cell::gru, Cell::gru_reset_before, Cell::rnn_tanh, Cell::rnn_relu);
  const auto dtype = GENERATE(Dtype::f32, Dtype::f64);
  const auto hidden = GENERATE(1, 9, 67);
  const auto reverse = GENERATE(false, true);
  // Rows 1 .. 70 live at some step: every tile height, one and two groups, rows and columns.
  std::vector<std::int64_t> lengths;
  for (std::int64_t n = 0; n < 70; ++n) lengths.push_back((n * 37) % 71);
  const Problem problem({cell, 5, hidden, cell == Cell::lstm && hidden > 1 ? hidden / 3 : 0, dtype},
                        Lengths(lengths));
  for_each_cpu_target([&](const std::string& target) {
    const int threads = hidden == 67 ? 2 : 1;
    INFO(target << " " << name_of(cell) << " H " << hidden << " reverse " << reverse);
    CHECK(problem.error(problem.run(threads, reverse), reverse) <= 1.0);
  });
}

TEST_CASE("the instruction set in use has a name") {
  for_each_cpu_target([](const std::string& target) {
    CHECK_THAT(kernels::cpu_target(), Contains(target) && Contains("-bit vectors"));
  });
}

TEST_CASE("the recurrent kernel names what does not fit") {
  const Problem p({Cell::gru, 3, 4, 0, Dtype::f32}, Lengths{2, 1});
  Tensor panels = Tensor::empty({kernels::recurrent_panel_elements(p.shape)}, Dtype::f32);
  CHECK_THROWS_WITH(kernels::pack_recurrent(p.shape, {p.w_hh, p.w_hh, {}, {}, {}}, panels),
                    Contains("w_ih has shape [12, 4], expected [12, 3]"));
  kernels::pack_recurrent(p.shape, {p.w_ih, p.w_hh, p.b_ih, p.b_hh, {}}, panels);
  Context context(Device::cpu(), {.threads = 1});
  Tensor y = Tensor::empty({3, 4}, Dtype::f32), h_n = Tensor::empty({2, 4}, Dtype::f32);
  kernels::RecurrentDirection d{
      .panels = panels, .reverse = false, .h_0 = {}, .c_0 = {}, .h_n = h_n, .c_n = {}};
  const auto forward = [&](const TensorView& x) {
    kernels::recurrent_forward(context, p.shape, *p.layout, x, {&d, 1}, y);
  };
  CHECK_THROWS_WITH(forward(p.w_hh), Contains("x has shape [12, 4], expected [3, 3]"));
  d.c_0 = h_n;
  CHECK_THROWS_WITH(forward(p.x), Contains("c_0: GRU has no cell state"));
  d.c_0 = {};
  d.h_0 = y;
  CHECK_THROWS_WITH(forward(p.x), Contains("h_0 has shape [3, 4], expected [2, 4]"));
  d.h_0 = {};
  CHECK_NOTHROW(forward(p.x));
  CHECK_THROWS_WITH(kernels::recurrent_panel_elements({Cell::gru, 3, 4, 2, Dtype::f32}),
                    Contains("projection 2 is for an LSTM only"));
  CHECK_THROWS_AS(kernels::recurrent_panel_elements({Cell::gru, 3, 4, 0, Dtype::bf16}),
                  Unsupported);
}

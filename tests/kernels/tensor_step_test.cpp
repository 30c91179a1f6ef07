// The recurrence on tensor cores step by step, without what surrounds it in a layer: against the
// double reference, and to the bit where bits are promised.
#include "packrnn/kernels/cuda/tensor_step.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "packrnn/kernels/cuda/recurrent_panels.hpp"
#include "packrnn/runtime/context.hpp"
#include "packrnn/runtime/error.hpp"
#include "packrnn/runtime/random.hpp"
#include "tests/catch.hpp"
#include "tests/reference/rnn.hpp"
#include "tests/reference/tolerance.hpp"
#include "tests/shapes.hpp"

namespace packrnn::tests {
namespace {

using Catch::Contains;
using kernels::Cell;
using kernels::cuda::DirectionRun;
using kernels::cuda::RecurrentPanels;
using kernels::cuda::RecurrentRun;

std::vector<double> doubles(const TensorView& t) {
  if (!t.defined()) return {};
  const Tensor wide = convert(t, Dtype::f64);
  return {wide.values<double>().begin(), wide.values<double>().end()};
}

/// Numbers that every dtype and tf32 hold exactly, so that only the states are rounded.
Tensor uniform(Shape shape, Dtype dtype, std::uint64_t seed, double bound) {
  Tensor t = Tensor::empty(shape, Dtype::f32);
  Generator generator(seed);
  fill_uniform(generator, t, -bound, bound);
  for (float& value : t.values<float>()) value = std::round(value * 128.0F) / 128.0F;
  return convert(t, dtype);
}

/// How a run is cut up and what the host is supposed to know.
struct Way {
  std::vector<std::int64_t> cuts;  // steps where a range ends and the next begins
  bool known = true;
};

struct Problem {
  kernels::RecurrentShape shape;
  std::vector<std::int64_t> lengths;
  int directions = 2;  // the second one reverse

  std::int64_t columns() const { return RecurrentPanels::of(shape).units * gates(shape.cell); }
  kernels::RecurrentWeights weights(std::vector<Tensor>& keep, int direction) const {
    const std::int64_t rows = gates(shape.cell) * shape.hidden;
    const double bound = 2.0 / std::sqrt(static_cast<double>(shape.hidden));
    const auto make = [&](Shape s, std::uint64_t seed) {
      keep.push_back(uniform(s, shape.dtype, seed + 100 * std::uint64_t(direction), bound));
      return keep.back().view();
    };
    keep.reserve(8);
    return {make({rows, shape.input}, 1), make({rows, shape.state()}, 2), make({rows}, 3),
            make({rows}, 4),
            shape.projection > 0 ? make({shape.projection, shape.hidden}, 5) : TensorView()};
  }
  Tensor x(std::int64_t sequence) const {  // [length, I]
    const std::int64_t length = lengths[static_cast<std::size_t>(sequence)];
    return uniform({length, shape.input}, shape.dtype, 1000 + std::uint64_t(sequence), 1.0);
  }
  Tensor state(std::int64_t sequence, int direction, bool cell) const {
    return uniform({cell ? shape.hidden : shape.state()}, cell ? Dtype::f32 : shape.dtype,
                   2000 + std::uint64_t(4 * sequence + 2 * direction + cell), 1.0);
  }
};

struct Output {
  std::vector<double> y, h_n, c_n, cells;  // in the caller's order: y and cells per sequence
};

reference::Config config_of(const kernels::RecurrentShape& s) {
  return {static_cast<reference::Cell>(s.cell), s.input, s.hidden, 1, s.projection, true, false};
}

/// x W_ih^T + b_ih + b_hh (of a GRU's n: b_ih only), unit-major, f32: what the layer hands over.
std::vector<float> input_products(const Problem& p, int direction, const TensorView& x) {
  std::vector<Tensor> keep;
  const kernels::RecurrentWeights w = p.weights(keep, direction);
  const std::vector<double> ih = doubles(w.w_ih), b_ih = doubles(w.b_ih), b_hh = doubles(w.b_hh),
                            xs = doubles(x);
  const std::int64_t G = gates(p.shape.cell), H = p.shape.hidden, I = p.shape.input;
  const std::int64_t rows = I > 0 ? std::int64_t(xs.size()) / I : 0;
  std::vector<float> gx(std::size_t(rows * p.columns()), 0.0F);
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t u = 0; u < H; ++u)
      for (std::int64_t g = 0; g < G; ++g) {
        const std::int64_t row = g * H + u;
        double sum = b_ih[std::size_t(row)];
        if (p.shape.cell != Cell::gru || g != 2) sum += b_hh[std::size_t(row)];
        for (std::int64_t i = 0; i < I; ++i)
          sum += ih[std::size_t(row * I + i)] * xs[std::size_t(r * I + i)];
        gx[std::size_t(r * p.columns() + u * G + g)] = float(sum);
      }
  return gx;
}

/// The sequences `which` as one batch.
std::vector<Output> run(const Problem& p, F32Math math, const std::vector<std::int64_t>& which,
                        const Way& way = {}) {
  const kernels::RecurrentShape& s = p.shape;
  const std::int64_t S = s.state(), H = s.hidden, D = p.directions;
  const auto N = std::int64_t(which.size());
  std::vector<std::int64_t> lengths;
  for (const std::int64_t n : which) lengths.push_back(p.lengths[std::size_t(n)]);
  const PackedLayoutPtr layout = PackedLayout::make(lengths);
  ContextOptions options;
  options.f32_math = math;
  Context context(Device::best(), options);
  std::vector<Tensor> keep;  // device memory
  const auto up = [&](const TensorView& view) -> void* {
    keep.push_back(context.to_device(view));
    return keep.back().span().raw();
  };
  const auto room = [&](Shape shape, Dtype dtype) -> TensorSpan {
    keep.push_back(context.empty(shape, dtype));
    return keep.back().span();
  };
  const RecurrentPanels panels = RecurrentPanels::of(s);
  RecurrentRun r;
  r.shape = s;
  r.panels = panels;
  r.layout = layout->on(context);
  r.directions = p.directions;
  r.ldy = D * S + 3;  // as wide as somebody likes
  r.ldcells = D * H;
  keep.reserve(64);
  const std::int64_t total = std::max<std::int64_t>(1, layout->total());
  const TensorSpan y = room({total, r.ldy}, s.dtype), cells = room({total, D * H}, Dtype::f32);
  std::vector<TensorSpan> h_n, c_n;
  std::vector<const float*> gx;
  for (int d = 0; d < p.directions; ++d) {
    DirectionRun& run = r.direction[d];
    std::vector<Tensor> host;
    const kernels::RecurrentWeights w = p.weights(host, d);
    Tensor packed = Tensor::empty({panels.elements}, s.dtype);
    kernels::cuda::fill_panels(s, w, packed.span().raw());
    run.panels = up(packed);
    run.reverse = d == 1;
    std::vector<float> products(std::size_t(total * p.columns()), 0.0F);
    Tensor h_0 = Tensor::empty({N, S}, s.dtype), c_0 = Tensor::empty({N, H}, Dtype::f32);
    for (std::int64_t n = 0; n < N; ++n) {
      const std::int64_t caller = which[std::size_t(n)];
      const std::vector<float> own = input_products(p, d, p.x(caller));
      for (std::int64_t t = 0; t < lengths[std::size_t(n)]; ++t)
        std::copy_n(own.begin() + t * p.columns(), p.columns(),
                    products.begin() + layout->row(n, t) * p.columns());
      const auto put = [n](const Tensor& from, Tensor& to) {
        std::copy_n(
            static_cast<const std::byte*>(from.view().raw()), from.view().bytes(),
            static_cast<std::byte*>(to.span().raw()) + std::size_t(n) * from.view().bytes());
      };
      put(p.state(caller, d, false), h_0);
      put(p.state(caller, d, true), c_0);
    }
    gx.push_back(static_cast<const float*>(up(Tensor::from(products, {total, p.columns()}))));
    run.h_0 = up(h_0);
    h_n.push_back(room({N, S}, s.dtype));
    run.h_n = h_n.back().raw();
    run.y = static_cast<std::byte*>(y.raw()) + std::size_t(d * S) * size_of(s.dtype);
    c_n.push_back(room({N, H}, Dtype::f32));
    if (s.cell == Cell::lstm) {
      run.c_0 = up(c_0);
      run.c_n = c_n.back().raw();
      run.cells = static_cast<float*>(cells.raw()) + d * H;
      run.c_state = room({N, panels.units}, Dtype::f32).raw();
    }
  }
  const std::int64_t steps = layout->steps();
  std::vector<std::int64_t> ends = way.cuts;
  ends.push_back(steps);
  const auto walk = [&](int d, std::int64_t first, std::int64_t last) {
    RecurrentRun one = r;  // a direction meets the ranges in its own order
    one.directions = 1;
    one.direction[0] = r.direction[d];
    one.first_step = std::int32_t(first);
    one.last_step = std::int32_t(last);
    one.direction[0].gx = gx[std::size_t(d)] + layout->offsets()[std::size_t(first)] * p.columns();
    if (way.known) one.batch_sizes = layout->batch_sizes();
    kernels::cuda::tensor_step_forward(context, one);
  };
  if (way.cuts.empty()) {
    r.last_step = std::int32_t(steps);
    if (way.known) r.batch_sizes = layout->batch_sizes();
    for (int d = 0; d < p.directions; ++d) r.direction[d].gx = gx[std::size_t(d)];
    kernels::cuda::tensor_step_forward(context, r);
  } else {
    for (std::size_t i = 0; i < ends.size(); ++i) walk(0, i == 0 ? 0 : ends[i - 1], ends[i]);
    if (p.directions == 2)
      for (std::size_t i = ends.size(); i-- > 0;) walk(1, i == 0 ? 0 : ends[i - 1], ends[i]);
  }
  std::vector<Output> outputs(which.size());
  const std::vector<double> ys = doubles(context.to_host(y)), cs = doubles(context.to_host(cells));
  for (int d = 0; d < p.directions; ++d) {
    const std::vector<double> h = doubles(context.to_host(h_n[std::size_t(d)])),
                              c = doubles(context.to_host(c_n[std::size_t(d)]));
    for (std::int64_t n = 0; n < N; ++n) {
      Output& out = outputs[std::size_t(n)];
      for (std::int64_t t = 0; t < lengths[std::size_t(n)]; ++t) {
        const std::int64_t row = layout->row(n, t);
        out.y.insert(out.y.end(), ys.begin() + row * r.ldy + d * S,
                     ys.begin() + row * r.ldy + (d + 1) * S);
        if (s.cell == Cell::lstm)
          out.cells.insert(out.cells.end(), cs.begin() + row * D * H + d * H,
                           cs.begin() + row * D * H + (d + 1) * H);
      }
      if (lengths[std::size_t(n)] == 0) continue;  // not its business
      out.h_n.insert(out.h_n.end(), h.begin() + n * S, h.begin() + (n + 1) * S);
      if (s.cell == Cell::lstm)
        out.c_n.insert(out.c_n.end(), c.begin() + n * H, c.begin() + (n + 1) * H);
    }
  }
  return outputs;
}

std::vector<std::int64_t> everyone(const Problem& p) {
  std::vector<std::int64_t> which;
  for (std::size_t n = 0; n < p.lengths.size(); ++n) which.push_back(std::int64_t(n));
  return which;
}

/// Largest error against the reference, as a share of what is allowed.
double error(const Problem& p, const std::vector<Output>& outputs, reference::Precision precision) {
  const reference::Config config = config_of(p.shape);
  const std::int64_t S = p.shape.state(), H = p.shape.hidden;
  double worst = 0;
  for (std::size_t n = 0; n < p.lengths.size(); ++n) {
    const std::int64_t T = p.lengths[n];
    if (T == 0) continue;
    for (int d = 0; d < p.directions; ++d) {
      std::vector<Tensor> keep;
      const kernels::RecurrentWeights w = p.weights(keep, d);
      std::vector<reference::Parameter> parameters = reference::parameters(config);
      for (auto& parameter : parameters)
        parameter.value = doubles(parameter.name == "weight_ih_l0"   ? w.w_ih
                                  : parameter.name == "weight_hh_l0" ? w.w_hh
                                  : parameter.name == "bias_ih_l0"   ? w.b_ih
                                  : parameter.name == "bias_hh_l0"   ? w.b_hh
                                                                     : w.w_hr);
      const auto turned = [&](std::vector<double> values, std::int64_t width) {
        if (d == 0) return values;
        for (std::int64_t t = 0; t < T / 2; ++t)
          std::swap_ranges(values.begin() + t * width, values.begin() + (t + 1) * width,
                           values.begin() + (T - 1 - t) * width);
        return values;
      };
      reference::Sequence sequence;
      sequence.x = turned(doubles(p.x(std::int64_t(n))), p.shape.input);
      sequence.h0 = doubles(p.state(std::int64_t(n), d, false));
      if (p.shape.cell == Cell::lstm) sequence.c0 = doubles(p.state(std::int64_t(n), d, true));
      const reference::Result truth = reference::run(config, parameters, sequence);
      const double allowed = reference::tolerance(
          precision, reference::work(config, T, std::max(truth.magnitude, 1.0)));
      const auto compare = [&](const std::vector<double>& got, std::int64_t from,
                               const std::vector<double>& want) {
        REQUIRE(got.size() >= std::size_t(from) + want.size());
        for (std::size_t i = 0; i < want.size(); ++i) {
          const double share = std::abs(got[std::size_t(from) + i] - want[i]) / allowed;
          worst = std::isnan(share) ? INFINITY : std::max(worst, share);
        }
      };
      // Output keeps one direction after the other.
      compare(outputs[n].y, d * T * S, turned(truth.y, S));
      compare(outputs[n].h_n, d * S, truth.h_n);
      if (p.shape.cell != Cell::lstm) continue;
      compare(outputs[n].c_n, d * H, truth.c_n);
      compare(outputs[n].cells, d * T * H, turned(truth.cells, H));
    }
  }
  return worst;
}

bool same(const Output& a, const Output& b) {
  return a.y == b.y && a.h_n == b.h_n && a.c_n == b.c_n && a.cells == b.cells;
}

/// The kinds of arithmetic, and what they may cost: unit roundoffs of sums and of the states that
/// enter a product.
struct Kind {
  const char* name;
  Dtype dtype;
  F32Math math;
  reference::Precision precision;
};
const Kind kKinds[] = {
    {"bf16", Dtype::bf16, F32Math::exact, reference::kBf16},
    {"f16", Dtype::f16, F32Math::exact, reference::kF16},
    {"tf32", Dtype::f32, F32Math::tf32, {0x1p-24, 0x1p-11}},
    {"tf32x3", Dtype::f32, F32Math::tf32x3, {0x1p-24, 0x1p-22}},
};

bool no_gpu() { return Device::best().type != DeviceType::cuda; }

}  // namespace

TEST_CASE("the tensor-core step path agrees with the double reference") {
  if (no_gpu()) PACKRNN_SKIP("no CUDA device");
  const Kind& kind = kKinds[GENERATE(0, 1, 2, 3)];
  const auto cell =
      GENERATE(Cell::lstm, Cell::gru, Cell::gru_reset_before, Cell::rnn_tanh, Cell::rnn_relu);
  const std::int64_t hidden = GENERATE(1, 20, 37);
  PACKRNN_ONE_IN(2);
  for (const bool projected : {false, true}) {
    if (projected && (cell != Cell::lstm || hidden == 1)) continue;
    const Problem p{{cell, 5, hidden, projected ? hidden / 3 : 0, kind.dtype}, {3, 0, 6, 1, 6}, 2};
    INFO(kind.name << " " << kernels::name_of(cell) << " H " << hidden << " P "
                   << p.shape.projection);
    CHECK(error(p, run(p, kind.math, everyone(p)), kind.precision) <= 1.0);
  }
}

TEST_CASE("a sequence gets the same bits in any company, in any ranges, known or not") {
  if (no_gpu()) PACKRNN_SKIP("no CUDA device");
  const Kind& kind = kKinds[GENERATE(0, 3)];
  const auto cell = GENERATE(Cell::lstm, Cell::gru, Cell::gru_reset_before);
  const Problem p{
      {cell, 4, 20, cell == Cell::lstm ? 7 : 0, kind.dtype}, {4, 7, 0, 2, 7, 1, 5, 3, 3}, 2};
  INFO(kind.name << " " << kernels::name_of(cell));
  const std::vector<Output> together = run(p, kind.math, everyone(p));
  for (std::size_t n = 0; n < p.lengths.size(); ++n) {
    if (p.lengths[n] == 0) continue;
    INFO("sequence " << n);
    CHECK(same(run(p, kind.math, {std::int64_t(n)})[0], together[n]));
  }
  const auto equal = [&](const Way& way) {
    const std::vector<Output> other = run(p, kind.math, everyone(p), way);
    for (std::size_t n = 0; n < other.size(); ++n) {
      INFO("sequence " << n);
      CHECK(same(other[n], together[n]));
    }
  };
  equal({{}, false});
  equal({{1, 3, 6}, true});
  equal({{4}, false});
}

TEST_CASE("an exact layer is refused by the tensor-core step path") {
  if (no_gpu()) PACKRNN_SKIP("no CUDA device");
  Context context;
  RecurrentRun r;
  r.shape = {Cell::lstm, 2, 3, 0, Dtype::f64};
  CHECK_THROWS_AS(kernels::cuda::tensor_step_forward(context, r), Unsupported);
  r.shape.dtype = Dtype::f32;
  ContextOptions options;
  options.f32_math = F32Math::exact;
  Context exact(Device::best(), options);
  CHECK_THROWS_WITH(kernels::cuda::tensor_step_forward(exact, r), Contains("f32"));
}

}  // namespace packrnn::tests

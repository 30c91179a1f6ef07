// One recurrent layer with weights and inputs drawn by fixed seeds, to be run on any context and
// held against the double reference.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "packrnn/kernels/cuda/recurrent.hpp"
#include "packrnn/kernels/recurrent.hpp"
#include "packrnn/runtime/random.hpp"
#include "tests/reference/rnn.hpp"
#include "tests/reference/tolerance.hpp"
#include "tests/shapes.hpp"

namespace packrnn::tests {

inline std::vector<double> doubles(const TensorView& t) {
  if (!t.defined()) return {};
  const Tensor wide = convert(t, Dtype::f64);
  return {wide.values<double>().begin(), wide.values<double>().end()};
}

inline Tensor uniform(Shape shape, Dtype dtype, std::uint64_t seed, double bound) {
  Tensor t = Tensor::empty(shape, Dtype::f64);
  Generator generator(seed);
  fill_uniform(generator, t, -bound, bound);
  return convert(t, dtype);
}

/// Elements whose bits differ, where both are NaN not counted: a payload is nobody's promise.
template <class T>
std::int64_t differences_of(const TensorView& a, const TensorView& b) {
  std::int64_t count = a.elements() == b.elements() ? 0 : 1;
  for (std::int64_t i = 0; i < std::min(a.elements(), b.elements()); ++i) {
    const T x = a.data<T>()[i], y = b.data<T>()[i];
    const bool both_nan = x != x && y != y;
    if (!both_nan && std::memcmp(&x, &y, sizeof(T)) != 0) ++count;
  }
  return count;
}
inline std::int64_t differences(const TensorView& a, const TensorView& b) {
  if (!a.defined() && !b.defined()) return 0;
  if (!a.defined() || !b.defined() || a.dtype() != b.dtype()) return 1;
  if (a.dtype() == Dtype::f32) return differences_of<float>(a, b);
  // 16-bit elements by their values.
  return differences_of<double>(convert(a, Dtype::f64), convert(b, Dtype::f64));
}

struct RecurrentOutput {  // on the host
  Tensor y, cells;
  std::vector<Tensor> h_n, c_n;  // per direction
};
inline std::int64_t differences(const RecurrentOutput& a, const RecurrentOutput& b) {
  std::int64_t count = differences(a.y, b.y) + differences(a.cells, b.cells);
  for (std::size_t d = 0; d < a.h_n.size(); ++d)
    count += differences(a.h_n[d], b.h_n[d]) + differences(a.c_n[d], b.c_n[d]);
  return count;
}

struct RecurrentProblem {
  kernels::RecurrentShape shape;
  std::vector<std::int64_t> lengths;
  std::vector<bool> reverse = {false};  // one entry per direction
  bool states = true, bias = true;

  struct Direction {
    Tensor w_ih, w_hh, b_ih, b_hh, w_hr, h_0, c_0;
  };
  std::vector<Direction> direction = {};
  PackedLayoutPtr layout = {};
  /// What error() measures by; none: what the dtype promises.
  std::optional<reference::Precision> held_to = {};
  Tensor x = {};

  RecurrentProblem(kernels::RecurrentShape s, std::vector<std::int64_t> given,
                   std::vector<bool> reversed = {false}, bool with_states = true,
                   bool with_bias = true)
      : shape(s),
        lengths(std::move(given)),
        reverse(std::move(reversed)),
        states(with_states),
        bias(with_bias),
        layout(PackedLayout::make(Lengths(lengths))) {
    const std::int64_t rows = gates(s.cell) * s.hidden, N = layout->batch();
    const double bound = 1.0 / std::sqrt(static_cast<double>(s.hidden));
    std::uint64_t seed = 0;
    for (std::size_t d = 0; d < reverse.size(); ++d) {
      Direction& to = direction.emplace_back();
      to.w_ih = uniform({rows, s.input}, s.dtype, ++seed, bound);
      to.w_hh = uniform({rows, s.state()}, s.dtype, ++seed, bound);
      if (bias) to.b_ih = uniform({rows}, s.dtype, ++seed, bound);
      if (bias) to.b_hh = uniform({rows}, s.dtype, ++seed, bound);
      if (s.projection > 0) to.w_hr = uniform({s.projection, s.hidden}, s.dtype, ++seed, bound);
      if (states) to.h_0 = uniform({N, s.state()}, s.dtype, ++seed, 1.0);
      if (states && s.cell == kernels::Cell::lstm)
        to.c_0 = uniform({N, s.hidden}, kernels::cell_dtype(s.dtype), ++seed, 1.0);
    }
    x = uniform({layout->total(), s.input}, s.dtype, ++seed, 1.0);
  }

  using Forward = std::function<void(
      Context&, const kernels::RecurrentShape&, const PackedLayout&, const TensorView&,
      std::span<const kernels::RecurrentDirection>, const TensorSpan&, const TensorSpan&)>;
  /// Runs on the context's device: by kernels::recurrent_forward unless told otherwise, with the
  /// problem's layout unless one is given, which then says how many rows there are.
  RecurrentOutput run(Context& context, const Forward& forward = kernels::recurrent_forward,
                      const PackedLayout* other = nullptr) const {
    const PackedLayout& rows = other ? *other : *layout;
    const std::int64_t N = rows.batch(), total = rows.total(), S = shape.state(), H = shape.hidden;
    const auto D = static_cast<std::int64_t>(reverse.size());
    const bool lstm = shape.cell == kernels::Cell::lstm;
    const Dtype cell = kernels::cell_dtype(shape.dtype);
    const auto up = [&](const Tensor& t) { return t.defined() ? context.to_device(t) : Tensor(); };
    struct OnDevice {
      Tensor panels, h_0, c_0, h_n, c_n;
    };
    std::vector<OnDevice> memory(reverse.size());
    std::vector<kernels::RecurrentDirection> runs;
    for (std::size_t d = 0; d < reverse.size(); ++d) {
      const Direction& from = direction[d];
      OnDevice& to = memory[d];
      to.panels =
          context.empty({kernels::recurrent_panel_elements(context.device(), shape)}, shape.dtype);
      kernels::pack_recurrent(context, shape,
                              {from.w_ih, from.w_hh, from.b_ih, from.b_hh, from.w_hr}, to.panels);
      to.h_0 = up(from.h_0);
      to.c_0 = up(from.c_0);
      to.h_n = context.empty({N, S}, shape.dtype);
      if (lstm) to.c_n = context.empty({N, H}, cell);
      runs.push_back({.panels = to.panels,
                      .reverse = reverse[d],
                      .h_0 = to.h_0,
                      .c_0 = to.c_0,
                      .h_n = to.h_n,
                      .c_n = to.c_n});
    }
    Tensor wide = Tensor::zeros({total, shape.input}, shape.dtype);
    std::memcpy(wide.span().raw(), x.view().raw(), std::min(x.view().bytes(), wide.view().bytes()));
    const Tensor x_there = context.to_device(wide);
    Tensor y = context.empty({total, D * S}, shape.dtype);
    Tensor cells = lstm ? context.empty({total, D * H}, cell) : Tensor();
    forward(context, shape, rows, x_there, runs, y, cells);
    RecurrentOutput out;
    out.y = context.to_host(y);
    if (lstm) out.cells = context.to_host(cells);
    for (const OnDevice& from : memory) {
      out.h_n.push_back(context.to_host(from.h_n));
      out.c_n.push_back(lstm ? context.to_host(from.c_n) : Tensor());
    }
    return out;
  }

  reference::Config config() const {
    return {static_cast<reference::Cell>(shape.cell),
            shape.input,
            shape.hidden,
            1,
            shape.projection,
            bias,
            false};
  }
  reference::Precision precision() const {
    if (held_to) return *held_to;
    switch (shape.dtype) {
      case Dtype::f64:
        return reference::kF64;
      case Dtype::f16:
        return reference::kF16;
      case Dtype::bf16:
        return reference::kBf16;
      default:
        return reference::kF32;
    }
  }

  /// Largest error of everything in `out` against the reference, as a share of what is allowed.
  double error(const RecurrentOutput& out) const {
    double worst = 0;
    for (std::size_t d = 0; d < reverse.size(); ++d) worst = std::max(worst, error(out, d));
    return worst;
  }

 private:
  double error(const RecurrentOutput& out, std::size_t d) const {
    const Direction& from = direction[d];
    std::vector<reference::Parameter> parameters = reference::parameters(config());
    for (auto& p : parameters)
      p.value = doubles(p.name == "weight_ih_l0"   ? from.w_ih
                        : p.name == "weight_hh_l0" ? from.w_hh
                        : p.name == "bias_ih_l0"   ? from.b_ih
                        : p.name == "bias_hh_l0"   ? from.b_hh
                                                   : from.w_hr);
    const auto D = static_cast<std::int64_t>(reverse.size()), index = static_cast<std::int64_t>(d);
    const std::vector<double> xs = doubles(x), ys = doubles(out.y), hs = doubles(from.h_0),
                              cs = doubles(from.c_0), hn = doubles(out.h_n[d]),
                              cn = doubles(out.c_n[d]), cells = doubles(out.cells);
    const std::int64_t S = shape.state(), H = shape.hidden, I = shape.input;
    double worst = 0;
    for (std::int64_t n = 0; n < layout->batch(); ++n) {
      const std::int64_t T = lengths[static_cast<std::size_t>(n)];
      const auto row = [&](std::int64_t t) { return layout->row(n, reverse[d] ? T - 1 - t : t); };
      reference::Sequence sequence;
      for (std::int64_t t = 0; t < T; ++t)
        sequence.x.insert(sequence.x.end(), xs.begin() + row(t) * I, xs.begin() + (row(t) + 1) * I);
      if (!hs.empty()) sequence.h0.assign(hs.begin() + n * S, hs.begin() + (n + 1) * S);
      if (!cs.empty()) sequence.c0.assign(cs.begin() + n * H, cs.begin() + (n + 1) * H);
      const reference::Result truth = reference::run(config(), parameters, sequence);
      const double allowed = reference::tolerance(
          precision(),
          reference::work(config(), std::max<std::int64_t>(T, 1), std::max(truth.magnitude, 1.0)));
      const auto compare = [&](double got, double want) {
        const double share = std::abs(got - want) / allowed;
        worst = std::isnan(share) ? INFINITY : std::max(worst, share);
      };
      const auto at = [](const std::vector<double>& values, std::int64_t i) {
        return values[static_cast<std::size_t>(i)];
      };
      for (std::int64_t t = 0; t < T; ++t) {
        for (std::int64_t j = 0; j < S; ++j)
          compare(at(ys, (row(t) * D + index) * S + j), at(truth.y, t * S + j));
        if (!cells.empty())
          for (std::int64_t j = 0; j < H; ++j)
            compare(at(cells, (row(t) * D + index) * H + j), at(truth.cells, t * H + j));
      }
      for (std::int64_t j = 0; j < S; ++j) compare(at(hn, n * S + j), at(truth.h_n, j));
      if (!cn.empty())
        for (std::int64_t j = 0; j < H; ++j) compare(at(cn, n * H + j), at(truth.c_n, j));
    }
    return worst;
  }
};

/// Enough blocks for a launch: each of a simulated device's threads has a stack, a large one with
/// sanitizers, and makes each wait longer for ThreadSanitizer.
inline int most_blocks() { return full_or_small(40, kTsan ? 4 : 10); }
/// The mapping with no more groups than that.
inline kernels::cuda::Mapping with_few_groups(kernels::cuda::Mapping m, std::size_t directions) {
  const int together = m.blocks * (m.directions_in_turn ? 1 : static_cast<int>(directions));
  m.groups = std::max(1, std::min(m.groups, most_blocks() / together));
  return m;
}

inline std::string described(const kernels::cuda::Mapping& m,
                             const std::string& groups = "groups") {
  return std::to_string(m.blocks) + " blocks of " + std::to_string(m.units) + " units, " +
         std::to_string(m.groups) + " " + groups + ", " + std::to_string(m.rows) + " rows";
}

inline bool on_gpu() { return Device::best().type == DeviceType::cuda; }

#define NEEDS_A_GPU \
  if (!on_gpu()) PACKRNN_SKIP("the device under test is the CPU")

/// On a GPU, by this algorithm and mapping; in ranges of steps whose input products take so many
/// bytes; with another layout than the problem's, if one is given.
inline RecurrentOutput run_choice(Context& context, const RecurrentProblem& problem,
                                  const kernels::cuda::Choice& choice,
                                  std::int64_t input_product_bytes = std::int64_t{1} << 30,
                                  const PackedLayout* layout = nullptr) {
  const kernels::cuda::RunOptions options{input_product_bytes, &choice};
  return problem.run(
      context,
      [&](Context& c, const auto& shape, const auto& rows, const auto& x, auto directions,
          const auto& y, const auto& cells) {
        kernels::cuda::recurrent_forward(c, shape, rows, x, directions, y, cells, options);
      },
      layout);
}

}  // namespace packrnn::tests

// Against sums over tables in extended precision, written down plainly; the layer's test counts all
// paths.
#include "packrnn/kernels/ctc.hpp"

#include "packrnn/kernels/layout.hpp"
#include "tests/kernels/numbers.hpp"
#include "tests/shapes.hpp"

namespace packrnn::kernels {
namespace {

using namespace packrnn::tests;

using Real = long double;
constexpr Real kNever = -std::numeric_limits<Real>::infinity();

Real add_logs(Real a, Real b) {
  if (a == kNever || b == kNever) return std::max(a, b);
  return std::max(a, b) + std::log1p(std::exp(-std::abs(a - b)));
}

// Loss and gradient of one sequence of logits [T, C].
struct Plain {
  double loss = 0;
  Doubles gradient;
};
Plain plain_ctc(const Doubles& logits, std::int64_t C, const Ints& labels, std::int64_t blank,
                double scale) {
  const auto at = [](std::int64_t i) { return static_cast<std::size_t>(i); };
  const std::int64_t T = std::ssize(logits) / C, S = 2 * std::ssize(labels) + 1;
  if (T == 0) return {labels.empty() ? 0 : kInfinity, {}};
  Ints spelled;
  for (const std::int64_t label : labels) {
    spelled.push_back(blank);
    spelled.push_back(label);
  }
  spelled.push_back(blank);
  std::vector<Real> log_p;
  for (std::int64_t t = 0; t < T; ++t) {
    Real sum = 0;
    for (std::int64_t c = 0; c < C; ++c) sum += std::exp(Real{logits[at(t * C + c)]});
    for (std::int64_t c = 0; c < C; ++c)
      log_p.push_back(Real{logits[at(t * C + c)]} - std::log(sum));
  }
  const auto p_of = [&](std::int64_t t, std::int64_t s) {
    return log_p[at(t * C + spelled[at(s)])];
  };
  const auto skips = [&](std::int64_t s) {
    return s >= 2 && spelled[at(s)] != blank && spelled[at(s)] != spelled[at(s - 2)];
  };
  // alpha counts step t itself, beta does not.
  std::vector<Real> alpha(at(T * S), kNever), beta(at(T * S), kNever);
  for (std::int64_t t = 0; t < T; ++t)
    for (std::int64_t s = 0; s < S; ++s) {
      Real before = t == 0 && s < 2 ? 0 : kNever;
      for (std::int64_t back = 0; t > 0 && back <= (skips(s) ? 2 : std::min<std::int64_t>(1, s));
           ++back)
        before = add_logs(before, alpha[at((t - 1) * S + s - back)]);
      alpha[at(t * S + s)] = before + p_of(t, s);
    }
  for (std::int64_t t = T - 1; t >= 0; --t)
    for (std::int64_t s = 0; s < S; ++s) {
      Real after = t == T - 1 && s >= S - 2 ? 0 : kNever;
      for (std::int64_t on = 0; t < T - 1 && on <= 2 && s + on < S; ++on)
        if (on < 2 || skips(s + 2))
          after = add_logs(after, beta[at((t + 1) * S + s + on)] + p_of(t + 1, s + on));
      beta[at(t * S + s)] = after;
    }
  Real whole = alpha[at(T * S - 1)];
  if (S > 1) whole = add_logs(whole, alpha[at(T * S - 2)]);
  Plain result{static_cast<double>(-whole), {}};
  for (std::int64_t t = 0; t < T; ++t)
    for (std::int64_t c = 0; c < C; ++c) {
      Real share = 0;
      for (std::int64_t s = 0; s < S; ++s)
        if (spelled[at(s)] == c)
          share += std::exp(alpha[at(t * S + s)] + beta[at(t * S + s)] - whole);
      const Real g = Real{scale} * (std::exp(log_p[at(t * C + c)]) - share);
      result.gradient.push_back(whole == kNever || scale == 0 ? 0 : static_cast<double>(g));
    }
  return result;
}

struct CtcCase {
  Ints lengths, label_counts;
  std::int64_t classes = 5, blank = 0;
};

// Labels of which half repeat the one before.
Ints random_labels(std::int64_t count, std::int64_t classes, std::int64_t blank, Random& random) {
  Ints labels;
  while (std::ssize(labels) < count) {
    const std::int64_t label =
        !labels.empty() && random.below(2) == 0 ? labels.back() : random.below(classes);
    if (label != blank) labels.push_back(label);
  }
  return labels;
}

struct Labels {
  Ints all, begins{0};
};
Labels labels_of(const CtcCase& one, std::uint64_t seed) {
  Random random(seed);
  Labels result;
  for (const std::int64_t count : one.label_counts) {
    const Ints own = random_labels(count, one.classes, one.blank, random);
    result.all.insert(result.all.end(), own.begin(), own.end());
    result.begins.push_back(std::ssize(result.all));
  }
  return result;
}

struct CtcRun {
  Target whole, losses, gradient;

  CtcRun(Context& context, const TensorView& logits, const PackedLayout& layout,
         const CtcLabels& labels, const TensorView& scales)
      : whole(context, {layout.total()}, Dtype::f64),
        losses(context, {layout.batch()}, Dtype::f64),
        gradient(context, logits.shape(), logits.dtype()) {
    ctc(context, logits, layout, labels, whole, losses);
    ctc_backward(context, logits, layout, labels, whole.span(), losses.span(), scales, gradient);
  }
  bool guards_intact() const {
    return whole.guards_intact() && losses.guards_intact() && gradient.guards_intact();
  }
};

// Rows of a sequence, one after the other.
Doubles rows_of(const Doubles& packed, const PackedLayout& layout, std::int64_t n, std::int64_t C) {
  Doubles rows;
  for (std::int64_t t = 0; t < layout.lengths()[static_cast<std::size_t>(n)]; ++t) {
    const auto begin = packed.begin() + layout.row(n, t) * C;
    rows.insert(rows.end(), begin, begin + C);
  }
  return rows;
}

void check_ctc(Context& context, const CtcCase& one, Dtype dtype, std::uint64_t seed) {
  CAPTURE(one.lengths, one.label_counts, one.classes, one.blank, dtype);
  const auto layout = PackedLayout::make(one.lengths);
  const std::int64_t C = one.classes, N = layout->batch();
  const Tensor logits = random_tensor({layout->total(), C}, dtype, seed);
  const Labels labels = labels_of(one, seed);
  const Tensor labels_there = context.to_device(Tensor::from(labels.all, {std::ssize(labels.all)}));
  Doubles scales = doubles_of(random_tensor({N}, Dtype::f64, seed + 1));
  if (N > 4) scales[4] = 0;
  const Tensor scales_there = context.to_device(Tensor::from(scales, {N})),
               logits_there = context.to_device(logits);
  const CtcLabels spelled{labels_there, labels.begins, one.blank};
  const CtcRun run(context, logits_there, *layout, spelled, scales_there);
  const Doubles losses = doubles_on(context, run.losses.span()),
                gradient = doubles_on(context, run.gradient.span()), x = doubles_of(logits);
  CHECK(run.guards_intact());
  for (std::int64_t n = 0; n < N; ++n) {
    const auto k = static_cast<std::size_t>(n);
    CAPTURE(n);
    const Ints own(labels.all.begin() + labels.begins[k],
                   labels.all.begin() + labels.begins[k + 1]);
    const Plain expected = plain_ctc(rows_of(x, *layout, n, C), C, own, one.blank, scales[k]);
    // A step adds log values of the order of the loss, and rounds each some times.
    const auto steps = static_cast<double>(one.lengths[k]);
    const double size = std::isfinite(expected.loss) ? 10 + std::abs(expected.loss) : 1;
    const double sums = 8 * (steps + 8);
    REQUIRE(far_off({losses[k]}, {expected.loss}, within(Dtype::f64, sums, size)) == "");
    REQUIRE(far_off(rows_of(gradient, *layout, n, C), expected.gradient,
                    within(dtype, sums, size)) == "");
  }
  const CtcRun again(context, logits_there, *layout, spelled, scales_there);
  CHECK(again.losses.bytes() == run.losses.bytes());
  CHECK(again.gradient.bytes() == run.gradient.bytes());
}

TEST_CASE("CTC and its gradient are sums over tables of states") {
  Context context;
  std::uint64_t seed = 0;
  const std::vector<CtcCase> cases = {
      {{4, 9, 0, 6, 1, 0, 5, 3}, {2, 3, 0, 4, 1, 2, 0, 3}},  // some impossible, some of nothing
      {{4, 9, 6}, {2, 3, 1}, 5, 4},
      {{3}, {0}, 1, 0},
      {{}, {}},
      {{0, 0}, {0, 0}},
      {{7, 12}, {3, 5}, 90, 17},  // more classes than lanes
  };
  for (const CtcCase& one : cases)
    for (const Dtype dtype : computable_dtypes(context)) check_ctc(context, one, dtype, ++seed);
}

TEST_CASE(
    "CTC of more labels than a block has threads, and more sequences than a grid has blocks") {
  Context context;
  check_ctc(context, {{full_or_small<std::int64_t>(300, 270), 20}, {140, 9}, 4}, Dtype::f32, 1);
  Random random(9);
  CtcCase many;
  for (int n = 0; n < 70; ++n) {
    many.lengths.push_back(random.below(5));
    many.label_counts.push_back(random.below(3));
  }
  check_ctc(context, many, Dtype::f64, 2);
}

TEST_CASE("a sequence's CTC has the same bits alone and in a batch") {
  Context context;
  const CtcCase one{{4, 9, 6}, {2, 3, 4}};
  const auto layout = PackedLayout::make(one.lengths);
  const Tensor logits = random_tensor({layout->total(), 5}, Dtype::f32, 3);
  const Labels labels = labels_of(one, 3);
  const Tensor scales = context.to_device(Tensor::from({1.0, 2.0, 3.0}, {3}));
  const Tensor all = context.to_device(Tensor::from(labels.all, {std::ssize(labels.all)}));
  const CtcRun batch(context, context.to_device(logits), *layout, {all, labels.begins, 0}, scales);
  const Doubles gradient = doubles_on(context, batch.gradient.span());
  for (std::int64_t n = 0; n < 3; ++n) {
    const auto k = static_cast<std::size_t>(n);
    const std::int64_t T = one.lengths[k];
    const auto alone = PackedLayout::make({T});
    const Tensor rows = Tensor::from(rows_of(doubles_of(logits), *layout, n, 5), {T, 5});
    const Ints begins = {0, one.label_counts[k]};
    const CtcRun single(context, context.to_device(convert(rows, Dtype::f32)), *alone,
                        {all.view().rows(labels.begins[k], labels.begins[k + 1]), begins, 0},
                        scales.view().rows(n, n + 1));
    CHECK(single.losses.bytes() == bytes_on(context, batch.losses.span().rows(n, n + 1)));
    CHECK(doubles_on(context, single.gradient.span()) == rows_of(gradient, *layout, n, 5));
  }
}

TEST_CASE("a NaN stays in its sequence's CTC") {
  Context context;
  const auto layout = PackedLayout::make({3, 4});
  Tensor logits = random_tensor({7, 4}, Dtype::f32, 3);
  logits.values<float>()[static_cast<std::size_t>(layout->row(0, 1) * 4 + 3)] = NAN;
  const Tensor labels = context.to_device(Tensor::from<std::int64_t>({1, 2}, {2})),
               scales = context.to_device(Tensor::from({1.0, 1.0}, {2}));
  const Ints begins = {0, 1, 2};
  const CtcRun run(context, context.to_device(logits), *layout, {labels, begins, 0}, scales);
  const Doubles losses = doubles_on(context, run.losses.span()),
                gradient = doubles_on(context, run.gradient.span());
  CHECK(std::isnan(losses[0]));
  CHECK(std::isfinite(losses[1]));
  for (std::int64_t t = 0; t < 4; ++t)
    CHECK(std::isfinite(gradient[static_cast<std::size_t>(layout->row(1, t) * 4)]));
  CHECK(std::isnan(gradient[static_cast<std::size_t>(layout->row(0, 0) * 4)]));
}

TEST_CASE("CTC over a layout made on the device, with rows left over") {
  Context context;
  if (!on_gpu(context)) PACKRNN_SKIP("a layout made on the CPU is known");
  const Ints lengths = {2, 0, 4};
  const auto known = PackedLayout::make(lengths);
  const auto layout = make_layout(context, context.to_device(Tensor::from(lengths, {3})),
                                  {.padded_length = 5, .rows = 9});
  const Tensor logits = random_tensor({9, 4}, Dtype::f32, 3), there = context.to_device(logits);
  const Tensor labels = context.to_device(Tensor::from<std::int64_t>({1, 2, 2}, {3})),
               scales = context.to_device(Tensor::from({1.0, 1.0, 1.0}, {3}));
  const Ints begins = {0, 1, 1, 3};
  const CtcRun run(context, there, *layout, {labels, begins, 0}, scales),
      expected(context, there.view().rows(0, 6), *known, {labels, begins, 0}, scales);
  CHECK(run.losses.bytes() == expected.losses.bytes());
  CHECK(bytes_on(context, run.gradient.span().rows(0, 6)) == expected.gradient.bytes());
  CHECK(doubles_on(context, run.gradient.span().rows(6, 9)) == Doubles(12));
  CHECK(run.guards_intact());
}

TEST_CASE("a label that is no class, or the blank, is named; on a GPU by the next wait") {
  Context context;
  const auto layout = PackedLayout::make({3, 4});
  const Tensor logits = context.to_device(random_tensor({7, 4}, Dtype::f32, 3)),
               scales = context.to_device(Tensor::from({1.0, 1.0}, {2}));
  const Ints begins = {0, 2, 4};
  for (const std::int64_t bad :
       {std::int64_t{0}, std::int64_t{-1}, std::int64_t{4}, std::int64_t{1} << 50}) {
    const Tensor labels = context.to_device(Tensor::from<std::int64_t>({1, 2, 3, bad}, {4}));
    const std::string value = "targets[3] is " + std::to_string(bad);
    const auto call = [&] { return CtcRun(context, logits, *layout, {labels, begins, 0}, scales); };
    if (!on_gpu(context)) {
      check_throws([&] { call(); }, {value.c_str(), "0 to 3", "blank"});
      continue;
    }
    const CtcRun run = call();
    check_throws([&] { context.synchronize(); }, {value.c_str(), "0 to 3", "blank, 0"});
    const Doubles losses = doubles_on(context, run.losses.span()),
                  gradient = doubles_on(context, run.gradient.span());
    CHECK(std::isfinite(losses[0]));
    CHECK(std::isnan(losses[1]));
    for (std::int64_t n = 0; n < 2; ++n)
      for (const double g : rows_of(gradient, *layout, n, 4)) CHECK(std::isnan(g) == (n == 1));
  }
}

TEST_CASE("arguments of CTC that do not fit are refused") {
  Context context;
  const auto layout = PackedLayout::make({2, 1});
  const Tensor logits = context.zeros({3, 4}, Dtype::f32), few = context.zeros({2, 4}, Dtype::f32),
               labels = context.to_device(Tensor::from<std::int64_t>({1, 2}, {2}));
  Tensor whole = context.zeros({3}, Dtype::f64), losses = context.zeros({2}, Dtype::f64),
         gradient = context.zeros({3, 4}, Dtype::f64);
  const Ints good = {0, 1, 2}, falling = {0, 2, 1}, far = {0, 1, 3}, short_one = {0, 2};
  const auto run = [&](const TensorView& x, const TensorView& spelled, const Ints& begins,
                       std::int64_t blank) {
    return [&, x, spelled, begins, blank] {
      ctc(context, x, *layout, {spelled, begins, blank}, whole, losses);
    };
  };
  check_throws(run(few, labels, good, 0), {"logits", "[2, 4]", "[3, 4]"});
  check_throws(run(logits, labels, good, 4), {"blank is 4"});
  check_throws(run(logits, labels, falling, 0), {"begins has 1 after 2"});
  check_throws(run(logits, labels, far, 0), {"begins ends at 3", "2 labels"});
  check_throws(run(logits, labels, short_one, 0), {"begins has 2 entries", "3"});
  check_throws(run(logits, losses, good, 0), {"targets", "f64", "i64"});
  check_throws(run(logits, logits, good, 0), {"targets", "[3, 4]"});
  check_throws(
      [&] {
        ctc_backward(context, logits, *layout, {labels, good, 0}, whole, losses, losses, gradient);
      },
      {"gradient", "f64", "f32"});
}

}  // namespace
}  // namespace packrnn::kernels

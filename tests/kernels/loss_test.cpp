// Against plain loops in double, on any device; what a GPU's kernels find wrong in targets.
#include "packrnn/kernels/loss.hpp"

#include "tests/kernels/numbers.hpp"
#include "tests/shapes.hpp"

namespace packrnn::kernels {
namespace {

using namespace packrnn::tests;

// Rows and classes: every size of team, and more rows than a grid's first round takes.
struct Rows {
  std::int64_t rows, classes;
};
std::vector<Rows> all_rows(const Context& context) {
  std::vector<Rows> all = {{0, 3}, {1, 1}, {5, 2}, {40, 5}, {19, 9}, {7, 17}, {9, 40}, {3, 100}};
  all.push_back({2, 2048});
  all.push_back(full_or_small(Rows{70, 2500}, Rows{3, 2500}));
  if (on_gpu(context)) all.push_back(full_or_small(Rows{17000, 2}, Rows{300, 2}));
  return all;
}

// ---- cross entropy ------------------------------------------------------------------------------

struct Expected {
  Doubles whole, losses, weights, gradient;
};

Expected plain_cross_entropy(const Rows& shape, const Doubles& x, const Ints& targets,
                             const Doubles& class_weights, std::int64_t ignore, double smoothing,
                             const Doubles& scales) {
  Expected result;
  const std::int64_t C = shape.classes;
  const auto weight = [&](std::int64_t c) {
    return class_weights.empty() ? 1.0 : class_weights[static_cast<std::size_t>(c)];
  };
  for (std::int64_t m = 0; m < shape.rows; ++m) {
    const double* const row = x.data() + m * C;
    double sum = 0;
    for (std::int64_t c = 0; c < C; ++c) sum += std::exp(row[c]);
    const double whole = std::log(sum);
    const std::int64_t y = targets[static_cast<std::size_t>(m)];
    double loss = 0;
    Doubles gradient(static_cast<std::size_t>(C));
    // Each class c has a part of the target: loss = sum of part_c (-log p_c).
    for (std::int64_t k = 0; k < C && y != ignore; ++k) {
      const double part =
          ((k == y ? 1 - smoothing : 0) + smoothing / static_cast<double>(C)) * weight(k);
      if (part == 0) continue;
      loss += part * (whole - row[k]);
      for (std::int64_t c = 0; c < C; ++c)
        gradient[static_cast<std::size_t>(c)] +=
            part * (std::exp(row[c]) / sum - (c == k ? 1.0 : 0.0));
    }
    result.whole.push_back(whole);
    result.losses.push_back(loss);
    result.weights.push_back(y == ignore ? 0 : weight(y));
    for (const double g : gradient)
      result.gradient.push_back(scales[static_cast<std::size_t>(m)] * g);
  }
  return result;
}

// What the kernels assign, all in one.
struct CrossEntropyRun {
  Target whole, losses, weights, gradient;

  CrossEntropyRun(Context& context, const CrossEntropy& terms, const TensorView& logits,
                  const TensorView& targets, const TensorView& scales)
      : whole(context, targets.shape(), Dtype::f64),
        losses(context, targets.shape(), Dtype::f64),
        weights(context, targets.shape(), Dtype::f64),
        gradient(context, logits.shape(), logits.dtype()) {
    cross_entropy(context, terms, logits, targets, whole, losses, weights);
    cross_entropy_backward(context, terms, logits, targets, whole.span(), scales, gradient);
  }
  bool guards_intact() const {
    return whole.guards_intact() && losses.guards_intact() && weights.guards_intact() &&
           gradient.guards_intact();
  }
};

TEST_CASE("cross entropy of rows is the plain sum over classes") {
  Context context;
  std::uint64_t seed = 0;
  for (const Rows& shape : all_rows(context))
    for (const Dtype dtype : computable_dtypes(context))
      for (const bool weighted : {false, true})
        for (const double smoothing : {0.0, 0.25}) {
          const auto [M, C] = shape;
          // The plain loop is then of the order of C squared.
          if (M * C * C > 10'000'000 && smoothing > 0) continue;
          if (M * C > 10000 && dtype == Dtype::f64) continue;
          CAPTURE(M, C, dtype, weighted, smoothing);
          Random random(++seed);
          const Tensor logits = random_tensor({M, C}, dtype, seed);
          Ints targets;
          for (std::int64_t m = 0; m < M; ++m)
            targets.push_back(random.below(5) == 0 ? -7 : random.below(C));
          Doubles weights, scales = doubles_of(random_tensor({M}, Dtype::f64, seed + 1000));
          if (M > 3) scales[3] = 0;
          for (std::int64_t c = 0; weighted && c < C; ++c)
            weights.push_back(random.below(4) == 0 ? 0.0 : 0.5 + random.number() / 4);
          const Tensor class_weights =
              weighted ? context.to_device(Tensor::from(weights, {C})) : Tensor();
          const Tensor on_device = context.to_device(logits),
                       classes = context.to_device(Tensor::from(targets, {M})),
                       factors = context.to_device(Tensor::from(scales, {M}));
          const CrossEntropy terms{class_weights, -7, smoothing};
          const CrossEntropyRun run(context, terms, on_device, classes, factors);
          const Expected expected = plain_cross_entropy(shape, doubles_of(logits), targets, weights,
                                                        -7, smoothing, scales);
          const auto terms_of_sum = static_cast<double>(C);
          const auto close = within(Dtype::f64, terms_of_sum, 4);
          CHECK(far_off(doubles_on(context, run.whole.span()), expected.whole, close) == "");
          CHECK(far_off(doubles_on(context, run.losses.span()), expected.losses, close) == "");
          CHECK(doubles_on(context, run.weights.span()) == expected.weights);
          CHECK(far_off(doubles_on(context, run.gradient.span()), expected.gradient,
                        within(dtype, terms_of_sum, 4)) == "");
          CHECK(run.guards_intact());
          if (M == 0 || M > 100) continue;
          // Again, and a row by itself: the same bits.
          const CrossEntropyRun again(context, terms, on_device, classes, factors);
          CHECK(again.gradient.bytes() == run.gradient.bytes());
          CHECK(again.losses.bytes() == run.losses.bytes());
          const std::int64_t m = M / 2;
          const CrossEntropyRun alone(context, terms, on_device.view().rows(m, m + 1),
                                      classes.view().rows(m, m + 1), factors.view().rows(m, m + 1));
          CHECK(alone.losses.bytes() == bytes_on(context, run.losses.span().rows(m, m + 1)));
          CHECK(alone.gradient.bytes() == bytes_on(context, run.gradient.span().rows(m, m + 1)));
        }
}

TEST_CASE("a NaN or an infinity stays in its row of cross entropy") {
  Context context;
  for (const Dtype dtype : computable_dtypes(context))
    for (const std::int64_t C : {3, 40, 2100})
      for (const double bad : {kNaN, kInfinity}) {
        CAPTURE(dtype, C, bad);
        Tensor logits = random_tensor({4, C}, Dtype::f64, 5);
        logits.values<double>()[static_cast<std::size_t>(2 * C - 1)] = bad;  // of row 1
        for (std::int64_t c = 0; c < C; ++c)                                 // all of row 3
          logits.values<double>()[static_cast<std::size_t>(3 * C + c)] = -kInfinity;
        const Tensor classes = context.to_device(Tensor::from<std::int64_t>({0, 1, 2, 1}, {4}));
        const Tensor ones = context.to_device(Tensor::from({1.0, 1.0, 1.0, 1.0}, {4}));
        const CrossEntropyRun run(context, {}, context.to_device(convert(logits, dtype)), classes,
                                  ones);
        const Doubles losses = doubles_on(context, run.losses.span()),
                      gradient = doubles_on(context, run.gradient.span());
        for (std::size_t m = 0; m < 4; ++m) {
          CHECK(std::isnan(losses[m]) == (m % 2 == 1));
          CHECK(std::isnan(gradient[m * static_cast<std::size_t>(C)]) == (m % 2 == 1));
        }
      }
}

// ---- elements -----------------------------------------------------------------------------------

struct ElementRun {
  Target losses, gradient;

  ElementRun(Context& context, const ElementTerms& terms, const TensorView& input,
             const TensorView& target, const TensorView& scales)
      : losses(context, scales.shape(), Dtype::f64),
        gradient(context, input.shape(), input.dtype()) {
    element_losses(context, terms, input, target, losses);
    element_losses_backward(context, terms, input, target, scales, gradient);
  }
};

TEST_CASE("losses of elements are plain sums over their rows") {
  Context context;
  std::uint64_t seed = 0;
  for (const Rows& shape : all_rows(context))
    for (const Dtype dtype : computable_dtypes(context))
      for (const ElementLoss loss : {ElementLoss::squared_error, ElementLoss::binary_cross_entropy})
        for (const int weights : {0, 1, 2}) {
          const auto [M, part] = shape;
          if (M * part > 10000 && (weights != 1 || dtype == Dtype::f64)) continue;
          CAPTURE(M, part, dtype, static_cast<int>(loss), weights);
          const bool chances = loss == ElementLoss::binary_cross_entropy;
          const Tensor input = random_tensor({M, part}, dtype, ++seed);
          Doubles y = doubles_of(random_tensor({M, part}, Dtype::f64, seed + 500, 1.0));
          if (chances)
            for (double& value : y) value = value > 0.5 ? 1 : value < -0.5 ? 0 : std::abs(value);
          const Tensor target = tensor_of(y, {M, part}, dtype);
          // None, for each of a row's elements, for all elements.
          const Shape weight_shape = weights == 1 ? Shape{part} : Shape{M, part};
          Tensor weight, pos_weight;
          if (weights > 0) {
            weight = random_tensor(weight_shape, Dtype::f64, seed + 1000);
            for (double& w : weight.values<double>()) w = w < -1 ? 0 : std::abs(w);
            pos_weight = random_tensor({part}, Dtype::f64, seed + 2000);
            for (double& w : pos_weight.values<double>()) w = std::abs(w);
          }
          const Tensor scales = random_tensor({M}, Dtype::f64, seed + 3000);
          const Doubles x = doubles_of(input), t = doubles_of(target);
          Doubles losses, gradient;
          for (std::int64_t m = 0; m < M; ++m) {
            double sum = 0;
            for (std::int64_t f = 0; f < part; ++f) {
              const auto i = static_cast<std::size_t>(m * part + f);
              const double w =
                  weights == 0
                      ? 1
                      : weight.values<double>()[weights == 1 ? static_cast<std::size_t>(f) : i];
              const double q =
                  weights == 0 ? 1 : pos_weight.values<double>()[static_cast<std::size_t>(f)];
              const double s = 1 / (1 + std::exp(-x[i]));
              const double one = (x[i] - t[i]) * (x[i] - t[i]);
              sum += w * (chances ? -(q * t[i] * std::log(s) + (1 - t[i]) * std::log(1 - s)) : one);
              const double slope =
                  chances ? (1 - t[i]) * s - q * t[i] * (1 - s) : 2 * (x[i] - t[i]);
              gradient.push_back(scales.values<double>()[static_cast<std::size_t>(m)] * w * slope);
            }
            losses.push_back(sum);
          }
          const Tensor weight_there = weights > 0 ? context.to_device(weight) : Tensor(),
                       pos_there = weights > 0 ? context.to_device(pos_weight) : Tensor(),
                       input_there = context.to_device(input),
                       target_there = context.to_device(target),
                       scales_there = context.to_device(scales);
          const ElementTerms terms{loss, weight_there, pos_there};
          const ElementRun run(context, terms, input_there, target_there, scales_there);
          const auto count = static_cast<double>(part);
          CHECK(far_off(doubles_on(context, run.losses.span()), losses,
                        within(Dtype::f64, count, 40)) == "");
          CHECK(far_off(doubles_on(context, run.gradient.span()), gradient,
                        within(dtype, count, 40)) == "");
          CHECK(run.losses.guards_intact());
          CHECK(run.gradient.guards_intact());
          const ElementRun again(context, terms, input_there, target_there, scales_there);
          CHECK(again.losses.bytes() == run.losses.bytes());
          CHECK(again.gradient.bytes() == run.gradient.bytes());
        }
}

TEST_CASE("binary cross entropy of large logits neither overflows nor cancels") {
  Context context;
  const Doubles x = {700, -700, kInfinity, -kInfinity, 1e-3, kNaN};
  const Doubles y = {1, 0, 1, 0, 0.5, 1};
  const Tensor ones = context.to_device(Tensor::from(Doubles(6, 1.0), {6}));
  const ElementRun run(context, {.loss = ElementLoss::binary_cross_entropy},
                       context.to_device(tensor_of(x, {6}, Dtype::f32)),
                       context.to_device(tensor_of(y, {6}, Dtype::f32)), ones);
  const Doubles losses = doubles_on(context, run.losses.span()),
                gradient = doubles_on(context, run.gradient.span());
  CHECK(losses[0] == std::log1p(std::exp(-700.0)));
  CHECK(losses[1] == losses[0]);
  for (const std::size_t i : {2, 3}) {
    CHECK(losses[i] == 0);
    CHECK(gradient[i] == 0);
  }
  CHECK(std::isfinite(gradient[4]));
  CHECK(std::isnan(losses[5]));
  CHECK(std::isnan(gradient[5]));
}

// ---- argmax -------------------------------------------------------------------------------------

TEST_CASE("argmax is the first of the largest, a NaN before all") {
  Context context;
  for (const Dtype dtype : computable_dtypes(context))
    for (const auto& [M, C] : all_rows(context)) {
      if (M * C > 40000) continue;
      CAPTURE(dtype, M, C);
      Random random(static_cast<std::uint64_t>(M + C));
      Doubles values;
      Ints expected;
      for (std::int64_t m = 0; m < M; ++m) {
        // Few values, so that many are equal.
        for (std::int64_t c = 0; c < C; ++c) values.push_back(static_cast<double>(random.below(4)));
        if (m % 3 == 1) values[static_cast<std::size_t>(m * C + random.below(C))] = kNaN;
        if (m % 3 == 1) values[static_cast<std::size_t>(m * C + random.below(C))] = kNaN;
        if (m % 3 == 2) values[static_cast<std::size_t>(m * C + random.below(C))] = kInfinity;
        if (m % 5 == 4)
          for (std::int64_t c = 0; c < C; ++c)
            values[static_cast<std::size_t>(m * C + c)] = -kInfinity;
        const double* const row = values.data() + m * C;
        std::int64_t best = 0;
        for (std::int64_t c = 1; c < C; ++c)
          if (!std::isnan(row[best]) && (std::isnan(row[c]) || row[c] > row[best])) best = c;
        expected.push_back(best);
      }
      const Target result(context, {M}, Dtype::i64);
      argmax(context, context.to_device(tensor_of(values, {M, C}, dtype)), result);
      CHECK(result.bytes() == bytes_of(TensorView(expected.data(), {M})));
      CHECK(result.guards_intact());
    }
}

TEST_CASE("indices widen") {
  Context context;
  for (const std::int64_t count : {0, 1, 1000, 20000}) {
    Ints expected;
    Random random(7);
    for (std::int64_t i = 0; i < count; ++i) expected.push_back(random.below(1000) - 500);
    const Tensor wide = Tensor::from(expected, {count});
    for (const Dtype dtype : {Dtype::i32, Dtype::i64}) {
      Tensor indices = Tensor::empty({count}, dtype);
      for (std::size_t i = 0; i < expected.size(); ++i) {
        if (dtype == Dtype::i32)
          indices.values<std::int32_t>()[i] = static_cast<std::int32_t>(expected[i]);
        else
          indices.values<std::int64_t>()[i] = expected[i];
      }
      const Target result(context, {count}, Dtype::i64);
      widen_indices(context, context.to_device(indices), result);
      CHECK(result.bytes() == bytes_of(wide));
      CHECK(result.guards_intact());
    }
  }
  const Target result(context, {2}, Dtype::i64);
  check_throws([&] { widen_indices(context, context.zeros({2}, Dtype::f32), result); }, {"f32"});
}

// ---- what is refused, and what kernels find -----------------------------------------------------

TEST_CASE("a class out of range is named; on a GPU by the next wait, and only its row is NaN") {
  Context context;
  for (const std::int64_t bad : {std::int64_t{-1}, std::int64_t{5}, std::int64_t{1} << 40,
                                 std::numeric_limits<std::int64_t>::min()})
    for (const double smoothing : {0.0, 0.5}) {
      CAPTURE(bad, smoothing);
      const Tensor logits = context.to_device(random_tensor({3, 5}, Dtype::f32, 3)),
                   weights = context.to_device(Tensor::from(Doubles(5, 1.0), {5})),
                   targets = context.to_device(Tensor::from<std::int64_t>({0, bad, 4}, {3})),
                   scales = context.to_device(Tensor::from({1.0, 1.0, 1.0}, {3}));
      const CrossEntropy terms{weights, -100, smoothing};
      const std::string value = std::to_string(bad);
      const std::initializer_list<const char*> parts = {"targets[1]", value.c_str(), "0 to 4",
                                                        "-100"};
      if (!on_gpu(context)) {
        check_throws([&] { CrossEntropyRun(context, terms, logits, targets, scales); }, parts);
        continue;
      }
      const CrossEntropyRun run(context, terms, logits, targets, scales);
      check_throws([&] { context.synchronize(); }, parts);
      const Doubles losses = doubles_on(context, run.losses.span()),
                    gradient = doubles_on(context, run.gradient.span());
      for (std::size_t i = 0; i < 15; ++i) {
        CHECK(std::isnan(losses[i / 5]) == (i / 5 == 1));
        CHECK(std::isnan(gradient[i]) == (i / 5 == 1));
      }
    }
}

TEST_CASE("a class weight that is negative or not finite is named") {
  Context context;
  for (const double bad : {-0.5, kNaN, kInfinity}) {
    const Tensor logits = context.to_device(random_tensor({1, 3}, Dtype::f32, 3)),
                 weights = context.to_device(Tensor::from({1.0, 1.0, bad}, {3})),
                 targets = context.to_device(Tensor::from<std::int64_t>({0}, {1}));
    const Target whole(context, {1}, Dtype::f64), losses(context, {1}, Dtype::f64);
    check_throws(
        [&] {
          cross_entropy(context, {.class_weights = weights}, logits, targets, whole, losses);
          context.synchronize();
        },
        {"class_weights[2]",
         std::isnan(bad) ? "nan"
         : bad < 0       ? "-0.5"
                         : "inf",
         "0 or more"});
  }
}

TEST_CASE("a target of binary cross entropy that is no probability is named") {
  Context context;
  for (const Dtype dtype : computable_dtypes(context))
    for (const double bad : {-0.5, 1.5, kNaN}) {
      CAPTURE(dtype, bad);
      const Tensor input = context.to_device(random_tensor({3, 2}, dtype, 3)),
                   target = context.to_device(tensor_of({0, 1, 0.5, bad, 1, 1}, {3, 2}, dtype)),
                   scales = context.to_device(Tensor::from({1.0, 1.0, 1.0}, {3}));
      const ElementTerms terms{.loss = ElementLoss::binary_cross_entropy};
      const std::initializer_list<const char*> parts = {"targets[3]",
                                                        std::isnan(bad) ? "nan"
                                                        : bad < 0       ? "-0.5"
                                                                        : "1.5",
                                                        "0 to 1"};
      if (!on_gpu(context)) {
        check_throws([&] { ElementRun(context, terms, input, target, scales); }, parts);
        continue;
      }
      const ElementRun run(context, terms, input, target, scales);
      check_throws([&] { context.synchronize(); }, parts);
      const Doubles losses = doubles_on(context, run.losses.span()),
                    gradient = doubles_on(context, run.gradient.span());
      for (std::size_t m = 0; m < 3; ++m) CHECK(std::isnan(losses[m]) == (m == 1));
      for (std::size_t i = 0; i < 6; ++i) CHECK(std::isnan(gradient[i]) == (i == 3));
    }
}

TEST_CASE("arguments of losses that do not fit are refused") {
  Context context;
  const Tensor logits = context.zeros({3, 4}, Dtype::f32), rows = context.zeros({3}, Dtype::f64),
               classes = context.zeros({3}, Dtype::i64), few = context.zeros({2}, Dtype::f64),
               integers = context.zeros({3, 4}, Dtype::i32),
               none = context.zeros({3, 0}, Dtype::f32);
  Tensor out = context.zeros({3}, Dtype::f64), gradient = context.zeros({3, 4}, Dtype::f32),
         wide = context.zeros({3, 4}, Dtype::f64), index = context.zeros({2}, Dtype::i64);
  check_throws([&] { cross_entropy(context, {}, none, classes, out, out); }, {"logits", "[3, 0]"});
  check_throws([&] { cross_entropy(context, {}, logits, rows, out, out); }, {"targets", "f64"});
  check_throws([&] { cross_entropy(context, {.class_weights = few}, logits, classes, out, out); },
               {"class_weights", "[2]", "[4]"});
  check_throws([&] { cross_entropy(context, {.label_smoothing = 2}, logits, classes, out, out); },
               {"label_smoothing is 2"});
  check_throws<Unsupported>([&] { cross_entropy(context, {}, integers, classes, out, out); },
                            {"cross_entropy", "i32"});
  check_throws([&] { cross_entropy_backward(context, {}, logits, classes, rows, rows, wide); },
               {"gradient", "f64", "f32"});
  check_throws([&] { element_losses(context, {}, logits, wide, out); }, {"target", "f64"});
  check_throws([&] { element_losses(context, {}, logits, logits, wide.span().rows(0, 3)); },
               {"losses", "[M]"});
  check_throws([&] { element_losses_backward(context, {}, logits, logits, rows, wide); },
               {"gradient", "f64", "f32"});
  Tensor five = context.zeros({5}, Dtype::f64);
  check_throws([&] { element_losses(context, {}, logits, logits, five); }, {"losses", "5", "12"});
  check_throws([&] { argmax(context, logits, index); }, {"result", "[2]", "[3]"});
  if (!on_gpu(context)) return;
  const Tensor here = Tensor::zeros({3, 4}, Dtype::f32);
  check_throws([&] { cross_entropy(context, {}, here, classes, out, out); }, {"logits", "cpu"});
}

}  // namespace
}  // namespace packrnn::kernels

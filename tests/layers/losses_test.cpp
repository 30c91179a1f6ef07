#include "packrnn/layers/losses.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <vector>

#include "packrnn/kernels/layout.hpp"
#include "packrnn/runtime/gpu.hpp"
#include "tests/golden/golden.hpp"
#include "tests/layers/layer_fixture.hpp"

namespace packrnn::tests {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kEpsilon = std::numeric_limits<double>::epsilon();

using Loss = std::function<Variable(Tape&, const Variable&)>;

struct Outcome {
  Tensor value, gradient;
};

// The loss and its gradient for an upstream one, of ones where not defined.
Outcome outcome(Context& context, const TensorView& input, const Loss& loss,
                const Doubles& by = {}) {
  Tape tape(context);
  const Variable x = tape.input(context.to_device(input));
  const Variable y = loss(tape, x);
  const Doubles upstream =
      by.empty() ? Doubles(static_cast<std::size_t>(y.shape().elements()), 1.0) : by;
  tape.backward({{y, context.to_device(tensor_of(upstream, y.shape(), y.dtype()))}});
  return {context.to_host(y.value()), context.to_host(x.gradient())};
}
Outcome outcome(const TensorView& input, const Loss& loss, const Doubles& by = {}) {
  Context context = test_context();
  return outcome(context, input, loss, by);
}

// Loss rows in the caller's layout, from a loss over packed variables.
template <class PackedLoss>
Loss over(const PackedLayoutPtr& layout, PackedLoss loss) {
  return [=](Tape& tape, const Variable& x) { return loss(tape, PackedVariable{x, layout}); };
}

Doubles random_values(std::int64_t count, unsigned seed, double bound = 2.0) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<double> uniform(-bound, bound);
  Doubles result(static_cast<std::size_t>(count));
  for (double& value : result) value = static_cast<float>(uniform(generator));
  return result;
}
Counts random_classes(std::int64_t count, std::int64_t classes, unsigned seed) {
  std::mt19937 generator(seed);
  return random_lengths(generator, count, 0, classes - 1);
}
Tensor classes_of(const Counts& values) {
  return Tensor::from(values, {static_cast<std::int64_t>(values.size())});
}

void check_close(const Doubles& got, const Doubles& expected, double tolerance) {
  REQUIRE(got.size() == expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    CAPTURE(i, got[i], expected[i]);
    CHECK((got[i] == expected[i] ||
           std::abs(got[i] - expected[i]) <= tolerance * (1 + std::abs(expected[i]))));
  }
}

// The gradient against central differences of sum(by * value), each h apart: they are off by h^2
// and by what rounding the sum gives over h.
void check_gradient(const Doubles& input, const Shape& shape, const Loss& loss) {
  constexpr double kStep = 1e-5;
  const auto probe = outcome(tensor_of(input, shape, Dtype::f64), loss);
  const Doubles by = random_values(probe.value.elements(), 99, 1.0);
  const auto total = [&](const Doubles& at) {
    const Doubles value = doubles_of(outcome(tensor_of(at, shape, Dtype::f64), loss).value);
    double sum = 0;
    for (std::size_t i = 0; i < value.size(); ++i) sum += by[i] * value[i];
    return sum;
  };
  Doubles expected(input.size());
  for (std::size_t i = 0; i < input.size(); ++i) {
    Doubles up = input, down = input;
    up[i] += kStep;
    down[i] -= kStep;
    expected[i] = (total(up) - total(down)) / (2 * kStep);
  }
  const double tolerance =
      10 * kStep * kStep + 100 * kEpsilon * (1 + std::abs(total(input))) / kStep;
  check_close(doubles_of(outcome(tensor_of(input, shape, Dtype::f64), loss, by).gradient), expected,
              tolerance);
}

const LossReduction kReductions[] = {LossReduction::none, LossReduction::sum, LossReduction::mean};
const Per kPers[] = {Per::token, Per::sequence};

// ---- as PyTorch ---------------------------------------------------------------------------------

golden::File golden_file(const std::string& loss) {
  return golden::read(PACKRNN_SOURCE_DIR "/tests/golden/losses_" + loss + ".safetensors");
}
Tensor golden_tensor(const golden::File& file, const std::string& name, Dtype dtype = Dtype::f64) {
  const golden::Tensor& tensor = file.at(name);
  return tensor_of(tensor.value, Shape(tensor.shape), dtype);
}
Tensor golden_classes(const golden::File& file, const std::string& name) {
  const Doubles& values = file.at(name).value;
  return classes_of(Counts(values.begin(), values.end()));
}

// Of f64, or of f32: results are rounded once, from inputs that a float holds exactly.
void check_golden(const golden::File& file, int k, const Loss& loss) {
  CAPTURE(file.name, k);
  const std::string at = "." + std::to_string(k);
  for (const Dtype dtype : {Dtype::f64, Dtype::f32}) {
    const Outcome got =
        outcome(golden_tensor(file, "logits", dtype), loss, file.at("by" + at).value);
    const double tolerance = dtype == Dtype::f64 ? 100 * kEpsilon : 4 * 0x1p-24;
    CHECK(got.value.dtype() == dtype);
    check_close(doubles_of(got.value), file.at("value" + at).value, tolerance);
    check_close(doubles_of(got.gradient), file.at("gradient" + at).value, tolerance);
  }
}

TEST_CASE("cross entropy is PyTorch's: weights, smoothing, rows left out, reductions") {
  const golden::File file = golden_file("cross_entropy");
  const Tensor weight = golden_tensor(file, "weight");
  int k = 0;
  for (const LossReduction reduction : kReductions)
    for (const bool weighted : {false, true})
      for (const double smoothing : {0.0, 0.1})
        for (const std::int64_t ignored : {-100, 1}) {
          Tensor targets = golden_classes(file, "targets");
          if (ignored == 1)
            for (auto& y : targets.values<std::int64_t>()) y = std::max<std::int64_t>(y, 0);
          check_golden(file, k++, [&](Tape& tape, const Variable& x) {
            return host::cross_entropy(tape, x, targets,
                                       {.class_weights = weighted ? weight.view() : TensorView{},
                                        .ignore_index = ignored,
                                        .label_smoothing = smoothing,
                                        .reduction = reduction});
          });
        }
  CHECK_FALSE(file.has("value." + std::to_string(k)));
}

TEST_CASE("squared error and binary cross entropy are PyTorch's") {
  const golden::File mse = golden_file("mse"), bce = golden_file("bce");
  const Tensor weight = golden_tensor(bce, "weight"), pos_weight = golden_tensor(bce, "pos_weight");
  int mse_k = 0, bce_k = 0;
  for (const LossReduction reduction : kReductions) {
    check_golden(mse, mse_k++, [&](Tape& tape, const Variable& x) {
      return host::mse_loss(tape, x, golden_tensor(mse, "target", x.dtype()), reduction);
    });
    for (const bool weighted : {false, true})
      for (const bool pos_weighted : {false, true})
        check_golden(bce, bce_k++, [&](Tape& tape, const Variable& x) {
          return host::bce_with_logits(
              tape, x, golden_tensor(bce, "target", x.dtype()),
              {.weight = weighted ? weight.view() : TensorView{},
               .pos_weight = pos_weighted ? pos_weight.view() : TensorView{},
               .reduction = reduction});
        });
  }
  CHECK_FALSE(mse.has("value." + std::to_string(mse_k)));
  CHECK_FALSE(bce.has("value." + std::to_string(bce_k)));
}

TEST_CASE("CTC is PyTorch's: repeats, no targets, as many as steps, more than fit") {
  const golden::File file = golden_file("ctc");
  const Tensor lengths = golden_classes(file, "lengths"),
               target_lengths = golden_classes(file, "target_lengths"),
               targets = golden_classes(file, "targets");
  const PackedLayoutPtr layout = PackedLayout::make(lengths);
  const auto packed = [&](const Doubles& padded) {
    Doubles rows(static_cast<std::size_t>(layout->total() * 4));
    for (std::int64_t n = 0; n < 4; ++n)
      for (std::int64_t t = 0; t < layout->lengths()[static_cast<std::size_t>(n)]; ++t)
        std::copy_n(padded.begin() + (t * 4 + n) * 4, 4, rows.begin() + layout->row(n, t) * 4);
    return rows;
  };
  for (int k = 0; k < 3; ++k) {
    CAPTURE(k);
    const std::string at = "." + std::to_string(k);
    const Tensor logits =
        tensor_of(packed(file.at("logits").value), {layout->total(), 4}, Dtype::f64);
    const Outcome got =
        outcome(logits,
                over(layout,
                     [&](Tape& tape, const PackedVariable& x) {
                       return host::ctc_loss(tape, x, targets, target_lengths,
                                             {.zero_infinity = true, .reduction = kReductions[k]});
                     }),
                file.at("by" + at).value);
    check_close(doubles_of(got.value), file.at("value" + at).value, 1000 * kEpsilon);
    check_close(doubles_of(got.gradient), packed(file.at("gradient" + at).value), 1000 * kEpsilon);
  }
}

// ---- CTC by counting all paths ------------------------------------------------------------------

// Labels that a path spells.
Counts spelled(const Counts& path, std::int64_t blank) {
  Counts result;
  for (std::size_t t = 0; t < path.size(); ++t)
    if (path[t] != blank && (t == 0 || path[t] != path[t - 1])) result.push_back(path[t]);
  return result;
}

TEST_CASE("CTC is the sum over all paths, for all targets") {
  constexpr std::int64_t C = 3;
  for (const std::int64_t blank : {0, 2})
    for (std::int64_t steps = 0; steps <= 5; ++steps) {
      const Doubles logits = random_values(steps * C, static_cast<unsigned>(steps), 3.0);
      std::map<Counts, double> probability;
      std::int64_t paths = 1;
      for (std::int64_t t = 0; t < steps; ++t) paths *= C;
      for (std::int64_t path = 0; path < paths; ++path) {
        Counts classes;
        double product = 1;
        for (std::int64_t t = 0, rest = path; t < steps; ++t, rest /= C) {
          const double* const row = logits.data() + t * C;
          classes.push_back(rest % C);
          product *=
              std::exp(row[rest % C]) / (std::exp(row[0]) + std::exp(row[1]) + std::exp(row[2]));
        }
        probability[spelled(classes, blank)] += product;
      }
      const PackedLayoutPtr layout = PackedLayout::make({steps});
      for (const auto& [labels, p] : probability) {
        CAPTURE(blank, steps, labels);
        const Loss loss = over(layout, [&](Tape& tape, const PackedVariable& x) {
          return host::ctc_loss(tape, x, classes_of(labels),
                                {static_cast<std::int64_t>(labels.size())},
                                {.blank = blank, .reduction = LossReduction::none});
        });
        const Outcome got = outcome(tensor_of(logits, {steps, C}, Dtype::f64), loss);
        check_close(doubles_of(got.value), {-std::log(p)}, 1000 * kEpsilon);
        if (steps == 4) check_gradient(logits, {steps, C}, loss);
      }
    }
}

TEST_CASE("CTC of what no steps can spell is infinite, with zeros for a gradient") {
  const PackedLayoutPtr layout = PackedLayout::make({2, 0, 0, 3});
  const Counts labels = {1, 1, 2, 1};
  const Doubles logits = random_values(5 * 3, 3);
  for (const bool zero : {false, true}) {
    const Outcome got =
        outcome(tensor_of(logits, {5, 3}, Dtype::f32),
                over(layout, [&](Tape& tape, const PackedVariable& x) {
                  return host::ctc_loss(tape, x, classes_of(labels), {2, 1, 0, 1},
                                        {.zero_infinity = zero, .reduction = LossReduction::none});
                }));
    const Doubles value = doubles_of(got.value), gradient = doubles_of(got.gradient);
    CHECK(value[0] == (zero ? 0.0 : kInfinity));
    CHECK(value[1] == (zero ? 0.0 : kInfinity));
    CHECK(value[2] == 0.0);
    CHECK(value[3] > 0.0);
    for (std::int64_t t = 0; t < 2; ++t)
      for (std::int64_t c = 0; c < 3; ++c)
        CHECK(gradient[static_cast<std::size_t>(layout->row(0, t) * 3 + c)] == 0.0);
    CHECK(gradient[static_cast<std::size_t>(layout->row(3, 0) * 3)] != 0.0);
  }
}

TEST_CASE("CTC of log-probabilities is CTC of logits, and long sequences do not underflow") {
  const std::int64_t steps = 3000;
  const PackedLayoutPtr layout = PackedLayout::make({steps});
  const Counts labels = random_classes(200, 2, 4);
  Counts shifted;
  for (const std::int64_t label : labels) shifted.push_back(label + 1);
  const Outcome got = outcome(tensor_of(random_values(steps * 3, 5), {steps, 3}, Dtype::f32),
                              over(layout, [&](Tape& tape, const PackedVariable& x) {
                                return host::ctc_loss(tape, x, classes_of(shifted), {200});
                              }));
  CHECK(std::isfinite(doubles_of(got.value)[0]));
  // Softmax and shares both add up to 1 in each step.
  const Doubles gradient = doubles_of(got.gradient);
  for (std::size_t t = 0; t < 3000; ++t) CHECK(std::abs(sum({gradient.data() + 3 * t, 3})) <= 1e-9);
}

// ---- reductions over packed data ----------------------------------------------------------------

TEST_CASE("packed cross entropy by plain loops, per token and per sequence") {
  const Counts lengths = {2, 5, 0, 3, 1};
  const PackedLayoutPtr layout = PackedLayout::make(lengths);
  constexpr std::int64_t C = 4;
  const std::int64_t total = layout->total();
  const Doubles logits = random_values(total * C, 7), weight = {0.5, 1.0, 0.0, 2.0};
  Counts targets = random_classes(total, C, 8);
  targets[static_cast<std::size_t>(layout->row(1, 2))] = -7;
  targets[static_cast<std::size_t>(layout->row(4, 0))] = -7;  // all of a sequence

  Doubles token(static_cast<std::size_t>(total)), average(5);
  double all = 0, all_weight = 0, sequences = 0, counted = 0;
  for (std::int64_t n = 0; n < 5; ++n) {
    double sequence = 0, sequence_weight = 0;
    for (std::int64_t t = 0; t < lengths[static_cast<std::size_t>(n)]; ++t) {
      const std::int64_t row = layout->row(n, t), y = targets[static_cast<std::size_t>(row)];
      if (y == -7) continue;
      double denominator = 0;
      for (std::int64_t c = 0; c < C; ++c)
        denominator += std::exp(logits[static_cast<std::size_t>(row * C + c)]);
      const double w = weight[static_cast<std::size_t>(y)];
      const double loss =
          -w * std::log(std::exp(logits[static_cast<std::size_t>(row * C + y)]) / denominator);
      token[static_cast<std::size_t>(row)] = loss;
      sequence += loss;
      sequence_weight += w;
    }
    all += sequence;
    all_weight += sequence_weight;
    if (sequence_weight > 0) {
      average[static_cast<std::size_t>(n)] = sequence / sequence_weight;
      sequences += sequence / sequence_weight;
      counted += 1;
    }
  }
  const std::map<std::pair<Per, LossReduction>, Doubles> expected = {
      {{Per::token, LossReduction::none}, token},
      {{Per::token, LossReduction::sum}, {all}},
      {{Per::token, LossReduction::mean}, {all / all_weight}},
      {{Per::sequence, LossReduction::none}, average},
      {{Per::sequence, LossReduction::sum}, {sequences}},
      {{Per::sequence, LossReduction::mean}, {sequences / counted}}};
  const Tensor weights = tensor_of(weight, {C}, Dtype::f32);
  for (const auto& [how, values] : expected) {
    const Loss loss = over(layout, [&, how = how](Tape& tape, const PackedVariable& x) {
      return host::cross_entropy(
          tape, x, PackedSequence(convert(classes_of(targets), Dtype::i32), layout),
          {.class_weights = weights, .ignore_index = -7, .reduction = how.second}, how.first);
    });
    check_close(doubles_of(outcome(tensor_of(logits, {total, C}, Dtype::f64), loss).value), values,
                100 * kEpsilon);
    check_gradient(logits, {total, C}, loss);
  }
}

TEST_CASE("gradients of element losses per token and per sequence") {
  const PackedLayoutPtr layout = PackedLayout::make({2, 0, 3, 1});
  const Shape shape{6, 2};
  const Doubles input = random_values(12, 1), unit = {0, 1, .5, 1, 0, .25, 1, 1, 0, 0, .75, 1};
  const Tensor weight = tensor_of({1, 2, 0, .5, 1, 1, 3, 1, .25, 1, 2, 1}, shape, Dtype::f64);
  const Tensor pos_weight = Tensor::from({2.0, 0.5}, {2});
  for (const LossReduction reduction : kReductions)
    for (const Per per : kPers) {
      const auto target = [&] {
        return PackedSequence(tensor_of(unit, shape, Dtype::f64), layout);
      };
      check_gradient(input, shape, over(layout, [&](Tape& tape, const PackedVariable& x) {
                       return host::mse_loss(tape, x, target(), reduction, per);
                     }));
      check_gradient(input, shape, over(layout, [&](Tape& tape, const PackedVariable& x) {
                       return host::bce_with_logits(
                           tape, x, target(),
                           {.weight = weight, .pos_weight = pos_weight, .reduction = reduction},
                           per);
                     }));
    }
  const Outcome mean = outcome(
      tensor_of(input, shape, Dtype::f64), over(layout, [&](Tape& tape, const PackedVariable& x) {
        return host::mse_loss(tape, x, {Tensor::zeros(shape, Dtype::f64), layout},
                              LossReduction::none, Per::sequence);
      }));
  Doubles expected(4);
  for (std::int64_t n = 0; n < 4; ++n) {
    const std::int64_t length = layout->lengths()[static_cast<std::size_t>(n)];
    for (std::int64_t t = 0; t < length; ++t)
      for (std::int64_t f = 0; f < 2; ++f) {
        const double x = input[static_cast<std::size_t>(layout->row(n, t) * 2 + f)];
        expected[static_cast<std::size_t>(n)] += x * x / static_cast<double>(2 * length);
      }
  }
  check_close(doubles_of(mean.value), expected, 10 * kEpsilon);
}

TEST_CASE("a sequence's losses and gradients have the same bits alone and in a batch") {
  const Counts lengths = {4, 9, 0, 6, 1}, target_lengths = {2, 3, 0, 4, 1};
  const PackedLayoutPtr layout = PackedLayout::make(lengths);
  constexpr std::int64_t C = 5;
  const std::int64_t total = layout->total();
  const Tensor logits = tensor_of(random_values(total * C, 11), {total, C}, Dtype::f32);
  const Counts classes = random_classes(total, C, 12);
  const Counts labels = {1, 2, 3, 3, 1, 4, 2, 1, 2, 3};
  const auto losses = [&](const PackedLayoutPtr& rows, const Counts& y, const Counts& spelling,
                          const Counts& counts) {
    return std::vector<Loss>{
        over(rows,
             [=](Tape& tape, const PackedVariable& x) {
               return host::cross_entropy(
                   tape, x, {classes_of(y), rows},
                   {.label_smoothing = 0.1, .reduction = LossReduction::none}, Per::sequence);
             }),
        over(rows,
             [=](Tape& tape, const PackedVariable& x) {
               return host::mse_loss(tape, x, {Tensor::zeros(x.data.shape(), Dtype::f32), rows},
                                     LossReduction::none, Per::sequence);
             }),
        over(rows,
             [=](Tape& tape, const PackedVariable& x) {
               return host::bce_with_logits(tape, x,
                                            {Tensor::zeros(x.data.shape(), Dtype::f32), rows},
                                            {.reduction = LossReduction::none}, Per::sequence);
             }),
        over(rows, [=](Tape& tape, const PackedVariable& x) {
          return host::ctc_loss(tape, x, classes_of(spelling), counts,
                                {.reduction = LossReduction::none});
        })};
  };
  const auto together = losses(layout, classes, labels, target_lengths);
  std::int64_t first_label = 0;
  for (std::int64_t n = 0; n < 5; ++n) {
    const std::int64_t length = lengths[static_cast<std::size_t>(n)],
                       count = target_lengths[static_cast<std::size_t>(n)];
    Tensor rows = Tensor::empty({length, C}, Dtype::f32);
    Counts own_classes;
    for (std::int64_t t = 0; t < length; ++t) {
      const std::int64_t row = layout->row(n, t);
      std::ranges::copy(logits.view().rows(row, row + 1).values<float>(),
                        rows.span().rows(t, t + 1).values<float>().begin());
      own_classes.push_back(classes[static_cast<std::size_t>(row)]);
    }
    const Counts own_labels(labels.begin() + first_label, labels.begin() + first_label + count);
    first_label += count;
    const auto alone = losses(PackedLayout::make({length}), own_classes, own_labels, {count});
    for (std::size_t k = 0; k < alone.size(); ++k) {
      CAPTURE(n, k);
      const Outcome batch = outcome(logits, together[k]), single = outcome(rows, alone[k]);
      CHECK(batch.value.values<float>()[static_cast<std::size_t>(n)] ==
            single.value.values<float>()[0]);
      for (std::int64_t t = 0; t < length; ++t) {
        const std::int64_t row = layout->row(n, t);
        CHECK(same_bits(batch.gradient.view().rows(row, row + 1),
                        single.gradient.view().rows(t, t + 1)));
      }
    }
  }
}

TEST_CASE("losses have the same bits on any number of threads") {
  std::mt19937 generator(5);
  const Counts lengths = random_lengths(generator, 40, 20, 60);
  const PackedLayoutPtr layout = PackedLayout::make(lengths);
  constexpr std::int64_t C = 20;
  const std::int64_t total = layout->total();
  const Shape shape{total, C};
  const Doubles values = random_values(total * C, 6);
  const Tensor classes = classes_of(random_classes(total, C, 7));
  Counts labels;
  for (const std::int64_t label : random_classes(400, C - 1, 8)) labels.push_back(label + 1);
  const Counts target_lengths(40, 10);
  for (const Dtype dtype : {Dtype::f32, Dtype::f64}) {
    const Tensor logits = tensor_of(values, shape, dtype), zeros = Tensor::zeros(shape, dtype);
    const std::vector<Loss> losses = {
        [&](Tape& tape, const Variable& x) { return host::cross_entropy(tape, x, classes); },
        [&](Tape& tape, const Variable& x) { return host::mse_loss(tape, x, zeros); },
        [&](Tape& tape, const Variable& x) { return host::bce_with_logits(tape, x, zeros); },
        over(layout, [&](Tape& tape, const PackedVariable& x) {
          return host::ctc_loss(tape, x, classes_of(labels), target_lengths);
        })};
    for (const Loss& loss : losses) {
      const Outcome one = outcome(logits, loss);
      for (const int threads : teams({2, 3})) {
        Context context = test_context(threads);
        const Outcome more = outcome(context, logits, loss);
        CHECK(same_bits(more.value, one.value));
        CHECK(same_bits(more.gradient, one.gradient));
      }
    }
  }
}

// ---- what is not a number, and nothing at all ---------------------------------------------------

TEST_CASE("a NaN stays in its row, and what does not count may be anything") {
  const Doubles logits = {1, 2, kNaN, 0, 3, 1};
  const auto run = [&](const Counts& targets, LossReduction reduction) {
    return outcome(tensor_of(logits, {3, 2}, Dtype::f64), [&](Tape& tape, const Variable& x) {
      return host::cross_entropy(tape, x, classes_of(targets), {.reduction = reduction});
    });
  };
  const Outcome rows = run({0, 1, 0}, LossReduction::none);
  for (std::size_t m = 0; m < 3; ++m) {
    CHECK(std::isnan(rows.value.values<double>()[m]) == (m == 1));
    CHECK(std::isnan(rows.gradient.values<double>()[2 * m]) == (m == 1));
  }
  CHECK(std::isnan(run({0, 1, 0}, LossReduction::mean).value.values<double>()[0]));
  const Outcome left_out = run({0, -100, 0}, LossReduction::mean);
  CHECK(std::isfinite(left_out.value.values<double>()[0]));
  CHECK(left_out.gradient.values<double>()[2] == 0.0);

  const Tensor weights = Tensor::from({1.0, 0.0}, {2});
  const Outcome weightless =
      outcome(tensor_of(logits, {3, 2}, Dtype::f64), [&](Tape& tape, const Variable& x) {
        return host::cross_entropy(tape, x, classes_of({0, 1, 0}),
                                   {.class_weights = weights, .reduction = LossReduction::none});
      });
  CHECK(doubles_of(weightless.value)[1] == 0.0);
  CHECK(doubles_of(weightless.gradient)[2] == 0.0);

  const PackedLayoutPtr layout = PackedLayout::make({1, 2});
  const Outcome ctc = outcome(tensor_of(logits, {3, 2}, Dtype::f64),
                              over(layout, [&](Tape& tape, const PackedVariable& x) {
                                return host::ctc_loss(tape, x, classes_of({1, 1}), {1, 1},
                                                      {.reduction = LossReduction::none});
                              }));
  const std::int64_t other = layout->row(1, 0);
  CHECK(std::isnan(ctc.value.values<double>()[0]));  // row 1 is the short sequence's
  CHECK(std::isfinite(ctc.value.values<double>()[1]));
  CHECK(std::isfinite(ctc.gradient.values<double>()[static_cast<std::size_t>(2 * other)]));
}

TEST_CASE("what an upstream gradient of 0 leaves out may be NaN") {
  const Tensor logits = tensor_of({1, 2, kNaN, kNaN, 3, 1}, {3, 2}, Dtype::f64);
  const PackedLayoutPtr layout = PackedLayout::make({1, 1, 1});
  const std::vector<Loss> losses = {
      [](Tape& tape, const Variable& x) {
        return host::cross_entropy(tape, x, classes_of({0, 1, 0}),
                                   {.reduction = LossReduction::none});
      },
      over(layout,
           [&](Tape& tape, const PackedVariable& x) {
             return host::mse_loss(tape, x, {Tensor::zeros({3, 2}, Dtype::f64), layout},
                                   LossReduction::none, Per::sequence);
           }),
      over(layout, [](Tape& tape, const PackedVariable& x) {
        return host::ctc_loss(tape, x, classes_of({1, 1, 1}), {1, 1, 1},
                              {.reduction = LossReduction::none});
      })};
  for (const Loss& loss : losses) {
    const Doubles gradient = doubles_of(outcome(logits, loss, {1, 0, 1}).gradient);
    CHECK(gradient[0] != 0.0);
    CHECK(gradient[2] == 0.0);
    CHECK(gradient[3] == 0.0);
    CHECK(gradient[4] != 0.0);
  }
}

TEST_CASE("the mean of nothing is 0, with zeros for gradients") {
  const Tensor logits = tensor_of(random_values(4, 1), {2, 2}, Dtype::f32);
  const Outcome ignored = outcome(logits, [&](Tape& tape, const Variable& x) {
    return host::cross_entropy(tape, x, classes_of({-100, -100}));
  });
  CHECK(doubles_of(ignored.value) == Doubles{0});
  CHECK(doubles_of(ignored.gradient) == Doubles(4));
  const Tensor none = Tensor::empty({0, 2}, Dtype::f32);
  const PackedLayoutPtr layout = PackedLayout::make({0, 0});
  const std::vector<Loss> losses = {
      [&](Tape& tape, const Variable& x) { return host::cross_entropy(tape, x, classes_of({})); },
      [&](Tape& tape, const Variable& x) { return host::mse_loss(tape, x, none); },
      [&](Tape& tape, const Variable& x) { return host::bce_with_logits(tape, x, none); },
      over(layout,
           [&](Tape& tape, const PackedVariable& x) {
             return host::cross_entropy(tape, x, {classes_of({}), layout}, {}, Per::sequence);
           }),
      over(layout, [&](Tape& tape, const PackedVariable& x) {
        return host::ctc_loss(tape, x, classes_of({}), {0, 0});
      })};
  for (const Loss& loss : losses) CHECK(doubles_of(outcome(none, loss).value) == Doubles{0});
  const Tensor no_features = Tensor::empty({3, 0}, Dtype::f32);
  const PackedLayoutPtr rows = PackedLayout::make({1, 2});
  const auto featureless = [&](LossReduction reduction) {
    return outcome(
        no_features, over(rows, [&](Tape& tape, const PackedVariable& x) {
          return host::mse_loss(tape, x, {no_features.clone(), rows}, reduction, Per::sequence);
        }));
  };
  CHECK(doubles_of(featureless(LossReduction::mean).value) == Doubles{0});
  CHECK(doubles_of(featureless(LossReduction::none).value) == Doubles{0, 0});
}

TEST_CASE("a scalar is one element") {
  const Tensor three = tensor_of({3}, {}, Dtype::f64), target = tensor_of({1}, {}, Dtype::f64);
  for (const LossReduction reduction : kReductions) {
    const Outcome got = outcome(three, [&](Tape& tape, const Variable& x) {
      return host::mse_loss(tape, x, target, reduction);
    });
    CHECK(got.value.shape() == Shape{});
    CHECK(doubles_of(got.value) == Doubles{4});
    CHECK(doubles_of(got.gradient) == Doubles{4});
  }
}

TEST_CASE("large and infinite logits") {
  const Doubles logits = {1000, -1000, kInfinity, -kInfinity, -1000, 1000};
  const Doubles targets = {1, 0, 1, 0, 1, 0};
  const Outcome bce =
      outcome(tensor_of(logits, {6}, Dtype::f64), [&](Tape& tape, const Variable& x) {
        return host::bce_with_logits(tape, x, tensor_of(targets, {6}, Dtype::f64),
                                     {.reduction = LossReduction::none});
      });
  CHECK(doubles_of(bce.value) == Doubles{0, 0, 0, 0, 1000, 1000});
  CHECK(doubles_of(bce.gradient) == Doubles{0, 0, 0, 0, -1, 1});
  // A class that is masked out with -infinity and has no weight may take part in smoothing.
  const Tensor weight = Tensor::from({1.0, 1.0, 0.0}, {3});
  const Outcome masked = outcome(
      tensor_of({900, 900, -kInfinity}, {1, 3}, Dtype::f64), [&](Tape& tape, const Variable& x) {
        return host::cross_entropy(tape, x, classes_of({0}),
                                   {.class_weights = weight, .label_smoothing = 0.3});
      });
  check_close(doubles_of(masked.value), {0.9 * std::log(2.0)}, 1000 * kEpsilon);
  CHECK(doubles_of(masked.gradient)[2] == 0.0);
}

TEST_CASE("a loss that nothing follows has no part in the gradient; constants have none") {
  Context context = test_context();
  Tape tape(context);
  const Variable x = tape.input(context.to_device(tensor_of({1, 2}, {1, 2}, Dtype::f32)));
  const Tensor zeros = Tensor::zeros({1, 2}, Dtype::f32);
  const PackedLayoutPtr layout = PackedLayout::make({1});
  const Variable loss = host::cross_entropy(tape, x, classes_of({1}));
  host::mse_loss(tape, x, zeros);
  host::cross_entropy(tape, x, classes_of({0}));
  host::ctc_loss(tape, {x, layout}, classes_of({1}), {1});
  const Variable constant = x.detach();
  CHECK_FALSE(host::mse_loss(tape, constant, zeros).needs_gradient());
  CHECK_FALSE(host::cross_entropy(tape, constant, classes_of({0})).needs_gradient());
  CHECK_FALSE(host::ctc_loss(tape, {constant, layout}, classes_of({1}), {1}).needs_gradient());
  tape.backward(loss);
  const double p = 1 / (1 + std::exp(1.0));
  check_close(doubles_of(context.to_host(x.gradient())), {p, -p}, 0x1p-23);
}

TEST_CASE("argmax: the first of equals, a NaN before all") {
  Context context = test_context();
  for (const Dtype dtype : layer_dtypes()) {
    const Tensor rows =
        tensor_of({1, 3, 3, -1, -2, -kInfinity, 5, kNaN, 6, kNaN, 7, kNaN}, {4, 3}, dtype);
    const Tensor result = host::argmax(context, rows);
    CHECK(std::ranges::equal(result.values<std::int64_t>(), Counts{1, 0, 1, 0}));
  }
  check_refused("no classes",
                [&] {
                  host::argmax(context, Tensor::empty({2, 0}, Dtype::f32));
                },
                {"[2, 0]"});
  check_refused("a vector", [&] { host::argmax(context, Tensor::empty({2}, Dtype::f32)); },
                {"[2]"});
}

// ---- what only a GPU does -----------------------------------------------------------------------

// Losses of all kinds over packed rows of `shape`, in which an element's target is 0 or a class 1.
std::vector<Loss> all_losses(const PackedLayoutPtr& layout, const Shape& shape,
                             LossReduction reduction, Per per) {
  const std::int64_t total = layout->total();
  const Counts classes = random_classes(total, shape[1], 3);
  const auto zeros = [=](const Variable& x) {
    return PackedSequence(Tensor::zeros(shape, x.dtype()), layout);
  };
  return {over(layout,
               [=](Tape& tape, const PackedVariable& x) {
                 return host::cross_entropy(tape, x, {classes_of(classes), layout},
                                            {.label_smoothing = 0.1, .reduction = reduction}, per);
               }),
          over(layout,
               [=](Tape& tape, const PackedVariable& x) {
                 return host::mse_loss(tape, x, zeros(x.data), reduction, per);
               }),
          over(layout,
               [=](Tape& tape, const PackedVariable& x) {
                 return host::bce_with_logits(tape, x, zeros(x.data), {.reduction = reduction},
                                              per);
               }),
          over(layout, [=](Tape& tape, const PackedVariable& x) {
            return host::ctc_loss(tape, x, classes_of(Counts(layout->lengths().size(), 1)),
                                  Counts(layout->lengths().size(), 1), {.reduction = reduction});
          })};
}

TEST_CASE("losses of 16 bits are those of the same numbers in f32, their gradients rounded once") {
  if (!on_device()) PACKRNN_SKIP("the CPU does not compute in 16 bits");
  const PackedLayoutPtr layout = PackedLayout::make({3, 1, 4});
  const Shape shape{8, 5};
  for (const Dtype dtype : {Dtype::f16, Dtype::bf16})
    for (const LossReduction reduction : kReductions)
      for (const Per per : kPers) {
        const Tensor narrow = tensor_of(random_values(40, 2), shape, dtype);
        int k = 0;
        for (const Loss& loss : all_losses(layout, shape, reduction, per)) {
          CAPTURE(dtype, static_cast<int>(reduction), static_cast<int>(per), k++);
          const Outcome got = outcome(narrow, loss),
                        f32 = outcome(convert(narrow, Dtype::f32), loss),
                        f64 = outcome(convert(narrow, Dtype::f64), loss);
          CHECK(got.value.dtype() == Dtype::f32);
          CHECK(same_bits(got.value, f32.value));
          CHECK(same_bits(got.gradient, convert(f64.gradient, dtype)));
        }
      }
  // A mean over more rows than f16 counts to.
  const Outcome many =
      outcome(Tensor::zeros({70'000, 2}, Dtype::f16), [](Tape& tape, const Variable& x) {
        return host::cross_entropy(tape, x, Tensor::zeros({70'000}, Dtype::i64));
      });
  CHECK(many.value.values<float>()[0] == static_cast<float>(std::log(2.0)));
}

TEST_CASE("a loss and its gradient do not wait for a GPU") {
  if (!on_device()) PACKRNN_SKIP("there is nothing to wait for");
  const PackedLayoutPtr layout = PackedLayout::make({3, 1, 4});
  const Shape shape{8, 5};
  Context context = test_context();
  const Tensor input = context.to_device(tensor_of(random_values(40, 2), shape, Dtype::f32));
  for (const LossReduction reduction : kReductions)
    for (const Per per : kPers)
      for (const Loss& loss : all_losses(layout, shape, reduction, per)) {
        Tape tape(context);
        Tensor copy = context.empty(shape, Dtype::f32);
        context.copy(input, copy);
        const std::int64_t before = gpu::waits();
        const Variable x = tape.input(std::move(copy)), y = loss(tape, x);
        Tensor upstream = context.zeros(y.shape(), y.dtype());
        tape.backward({{y, upstream}});
        argmax(context, x.value());
        CHECK(gpu::waits() == before);
        context.synchronize();
      }
}

TEST_CASE("packed losses of a layout that only the device knows leave out the rows left over") {
  if (!on_device()) PACKRNN_SKIP("a layout made on the CPU is known");
  Context context = test_context();
  const Counts lengths = {3, 0, 4};
  const PackedLayoutPtr known = PackedLayout::make(lengths);
  const auto layout = kernels::make_layout(context, context.to_device(classes_of(lengths)),
                                           {.padded_length = 4, .rows = 9});
  Doubles values = random_values(9 * 5, 2);
  const Tensor rows = tensor_of({values.begin(), values.begin() + 7 * 5}, {7, 5}, Dtype::f32);
  std::fill(values.begin() + 7 * 5, values.end(), kNaN);
  const Tensor with_more = tensor_of(values, {9, 5}, Dtype::f32);
  for (const LossReduction reduction : {LossReduction::sum, LossReduction::mean})
    for (const Per per : kPers) {
      const auto loss = [&](const PackedLayoutPtr& at, std::int64_t total) {
        return over(at, [=](Tape& tape, const PackedVariable& x) {
          Counts classes = {0, 1, 2, 3, 4, 0, 1};
          classes.resize(static_cast<std::size_t>(total));
          return packrnn::cross_entropy(
              tape, x, PackedSequence(tape.context().to_device(classes_of(classes)), at),
              {.reduction = reduction}, per);
        });
      };
      const Outcome got = outcome(context, with_more, loss(layout, 9)),
                    expected = outcome(context, rows, loss(known, 7));
      CHECK(same_bits(got.value, expected.value));
      CHECK(same_bits(got.gradient.view().rows(0, 7), expected.gradient));
      for (const float g : got.gradient.view().rows(7, 9).values<float>()) CHECK(g == 0.0F);
    }
}

// ---- refusals -----------------------------------------------------------------------------------

TEST_CASE("wrong arguments of losses are refused with their values") {
  Context context = test_context();
  Tape tape(context);
  const auto input = [&](Tensor value) { return tape.input(context.to_device(value)); };
  const Variable x = input(Tensor::zeros({3, 4}, Dtype::f32));
  const PackedLayoutPtr layout = PackedLayout::make({2, 1}), other = PackedLayout::make({1, 2});
  const PackedVariable packed{x, layout};
  // What a GPU's kernels find wrong in data, the next wait says.
  const auto refused = [&](const char* what, const std::vector<std::string>& parts,
                           const std::function<void()>& call) {
    check_refused(
        what,
        [&] {
          call();
          context.synchronize();
        },
        parts);
  };
  refused("class", {"targets[1] is 4", "0 to 3", "-100"}, [&] {
    host::cross_entropy(tape, x, classes_of({0, 4, 1}));
  });
  refused("negative class", {"targets[2] is -1", "0 to 3"}, [&] {
    host::cross_entropy(tape, x, classes_of({0, 3, -1}));
  });
  refused("count", {"targets has shape [2]", "[3]"}, [&] {
    host::cross_entropy(tape, x, classes_of({0, 1}));
  });
  refused("dtype", {"targets has dtype f32"},
          [&] { host::cross_entropy(tape, x, Tensor::zeros({3}, Dtype::f32)); });
  refused("smoothing", {"label_smoothing is 1.5", "0 to 1"}, [&] {
    host::cross_entropy(tape, x, classes_of({0, 1, 2}), {.label_smoothing = 1.5});
  });
  refused("weights' shape", {"class_weights has shape [3]", "[4]"}, [&] {
    host::cross_entropy(tape, x, classes_of({0, 1, 2}),
                        {.class_weights = Tensor::zeros({3}, Dtype::f32)});
  });
  refused("weight", {"class_weights[1] is -1"}, [&] {
    const Tensor weights = Tensor::from({1.0, -1.0, 1.0, 1.0}, {4});
    host::cross_entropy(tape, x, classes_of({0, 1, 2}), {.class_weights = weights});
  });
  refused("rank", {"logits has shape [3]", "[M, C]"}, [&] {
    host::cross_entropy(tape, input(Tensor::zeros({3}, Dtype::f32)), classes_of({0, 1, 2}));
  });
  refused("other rows", {"targets has lengths 1 2", "expected 2 1"}, [&] {
    host::cross_entropy(tape, packed, {classes_of({0, 1, 2}), other});
  });
  refused("not defined", {"logits is not defined"},
          [&] { host::cross_entropy(tape, Variable{}, classes_of({0})); });
  refused("target shape", {"target has shape [4, 3]", "[3, 4]"}, [&] {
    host::mse_loss(tape, x, Tensor::zeros({4, 3}, Dtype::f32));
  });
  refused("target dtype", {"dtype f64", "f32"}, [&] {
    host::mse_loss(tape, x, Tensor::zeros({3, 4}, Dtype::f64));
  });
  refused("pos_weight", {"pos_weight has shape [3]", "[3, 4]"}, [&] {
    host::bce_with_logits(tape, x, Tensor::zeros({3, 4}, Dtype::f32),
                          {.pos_weight = Tensor::zeros({3}, Dtype::f32)});
  });
  refused("probability", {"targets[1] is 1.5", "0 to 1"}, [&] {
    host::bce_with_logits(tape, input(Tensor::zeros({2}, Dtype::f32)),
                          tensor_of({1, 1.5}, {2}, Dtype::f32));
  });
  refused("probability", {"targets[0] is nan", "0 to 1"}, [&] {
    host::bce_with_logits(tape, input(Tensor::zeros({2}, Dtype::f64)),
                          tensor_of({kNaN, 1}, {2}, Dtype::f64));
  });
  refused("label", {"targets[2] is 4", "0 to 3"}, [&] {
    host::ctc_loss(tape, packed, classes_of({1, 2, 4}), {2, 1});
  });
  refused("the blank", {"targets[0] is 0", "the blank"}, [&] {
    host::ctc_loss(tape, packed, classes_of({0, 2, 3}), {2, 1});
  });
  refused("blank", {"blank is 4", "0 to 3"}, [&] {
    host::ctc_loss(tape, packed, classes_of({1, 2, 3}), {2, 1}, {.blank = 4});
  });
  refused("too few targets", {"target_lengths[1] is 2", "only 1 of 3"}, [&] {
    host::ctc_loss(tape, packed, classes_of({1, 2, 3}), {2, 2});
  });
  refused("too many targets", {"targets has shape [3]", "[2]"}, [&] {
    host::ctc_loss(tape, packed, classes_of({1, 2, 3}), {1, 1});
  });
  refused("negative length", {"lengths[0] is -1"}, [&] {
    host::ctc_loss(tape, packed, classes_of({1, 2, 3}), {-1, 1});
  });
  refused("sequences", {"target_lengths has 1 entries", "expected 2"}, [&] {
    host::ctc_loss(tape, packed, classes_of({1, 2, 3}), {3});
  });
  CHECK_THROWS_AS(
      host::mse_loss(tape, tape.constant(context.to_device(Tensor::zeros({1}, Dtype::i64))),
                     Tensor::zeros({1}, Dtype::i64)),
      Unsupported);
}

}  // namespace
}  // namespace packrnn::tests

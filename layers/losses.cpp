#include "packrnn/layers/losses.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "packrnn/kernels/ctc.hpp"
#include "packrnn/kernels/loss.hpp"
#include "packrnn/layers/arguments.hpp"
#include "packrnn/runtime/expects.hpp"

namespace packrnn {
namespace {

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

// ---- reductions ---------------------------------------------------------------------------------

// Every reduction is linear in the losses of the rows: each is multiplied by the scale of its group
// and added, in order of rows, to an element of the result.
struct Reduction {
  Shape shape;                      // of the result
  std::vector<std::int64_t> group;  // of each row; empty: all rows are group 0
  std::vector<double> scale;        // of each group

  double scale_of(std::int64_t row) const { return scale[group.empty() ? 0 : at(group[at(row)])]; }
  std::size_t element_of(std::int64_t row) const {
    if (shape.rank() == 0) return 0;
    return at(group.empty() ? row : group[at(row)]);
  }
};

double inverse(double weight) { return weight > 0 ? 1 / weight : 0; }

// Of rows that count `weight` each; `unreduced` is the shape of all their losses.
Reduction per_row(LossReduction how, const Shape& unreduced, const std::vector<double>& weight) {
  if (how == LossReduction::none) return {unreduced, {}, {1.0}};
  if (how == LossReduction::sum) return {{}, {}, {1.0}};
  double total = 0;
  for (const double w : weight) total += w;
  return {{}, {}, {inverse(total)}};
}

// Of packed rows: each sequence is averaged.
Reduction per_sequence(LossReduction how, const PackedLayout& layout,
                       const std::vector<double>& weight) {
  Reduction result{how == LossReduction::none ? Shape{layout.batch()} : Shape{},
                   std::vector<std::int64_t>(weight.size()),
                   std::vector<double>(at(layout.batch()))};
  double counted = 0;
  for (std::int64_t n = 0; n < layout.batch(); ++n) {
    double total = 0;
    for (std::int64_t t = 0; t < layout.lengths()[at(n)]; ++t) {
      const std::int64_t row = layout.row(n, t);
      result.group[at(row)] = n;
      total += weight[at(row)];
    }
    result.scale[at(n)] = inverse(total);
    if (total > 0) counted += 1;
  }
  if (how == LossReduction::mean)
    for (double& scale : result.scale) scale *= inverse(counted);
  return result;
}

// What a scale of 0 leaves out may be anything, NaN too.
Tensor reduce(const Reduction& reduction, const Tensor& losses, Dtype dtype) {
  Tensor sums = Tensor::zeros(reduction.shape, Dtype::f64);
  const auto values = losses.values<double>();
  for (std::int64_t row = 0; row < losses.elements(); ++row)
    if (const double scale = reduction.scale_of(row); scale != 0)
      sums.values<double>()[reduction.element_of(row)] += scale * values[at(row)];
  return convert(sums, dtype);
}

// f64 [rows]: d total / d row's loss, given that of the result.
Tensor scales_of(const Reduction& reduction, const TensorView& upstream, std::int64_t rows) {
  const Tensor gradient = convert(upstream, Dtype::f64);
  Tensor result = Tensor::zeros({rows}, Dtype::f64);
  for (std::int64_t row = 0; row < rows; ++row)
    if (const double scale = reduction.scale_of(row); scale != 0)
      result.values<double>()[at(row)] =
          scale * gradient.values<double>()[reduction.element_of(row)];
  return result;
}

// ---- arguments ----------------------------------------------------------------------------------

void expects_input(std::string_view loss, std::string_view name, const Variable& input,
                   const Context& context) {
  if (context.device() != Device::cpu())
    throw Unsupported(fmt::format("{}: not on a GPU yet", loss));
  expects(input.defined(), "{} is not defined", name);
  expects_on_device(name, input.value(), context);
  expects_computable(loss, input.dtype(), context);
}

void expects_same_rows(std::string_view name, const PackedVariable& input,
                       const PackedSequence& target) {
  expects(input.defined(), "the packed variable is not defined");
  expects(target.defined(), "{} is not defined", name);
  const PackedLayout &a = *input.layout, &b = target.layout();
  expects(same_rows(a, b), "{} has lengths {} in sorted order {}, expected {} in {}", name,
          fmt::join(b.lengths(), " "), fmt::join(b.sorted_indices(), " "),
          fmt::join(a.lengths(), " "), fmt::join(a.sorted_indices(), " "));
}

// A copy of class indices as i64.
Tensor indices_of(const TensorView& targets, const Context& context) {
  expects(targets.defined(), "targets is not defined");
  expects(targets.dtype() == Dtype::i32 || targets.dtype() == Dtype::i64,
          "targets has dtype {}, expected i32 or i64", targets.dtype());
  expects_on_device("targets", targets, context);
  return convert(targets, Dtype::i64);
}

// A copy as f64 of weights that may be left out, of the shape of the input's last dimensions.
Tensor weights_of(std::string_view name, const TensorView& weights, const Shape& input,
                  const Context& context) {
  if (!weights.defined()) return {};
  expects(is_floating(weights.dtype()), "{} has dtype {}, expected a floating dtype", name,
          weights.dtype());
  expects(weights.shape().rank() <= input.rank() &&
              weights.shape() == input.from(input.rank() - weights.shape().rank()),
          "{} has shape {}, expected that of the last dimensions of {}", name, weights.shape(),
          input);
  expects_on_device(name, weights, context);
  return convert(weights, Dtype::f64);
}

// ---- cross entropy ------------------------------------------------------------------------------

struct CrossEntropyState {
  Tensor targets, class_weights, log_sum_exp;
  kernels::CrossEntropy terms;
  Reduction reduction;
};

// `layout`: of packed logits whose sequences are averaged; else null.
Variable cross_entropy_of(Tape& tape, const Variable& logits, const TensorView& targets,
                          const CrossEntropyOptions& options, const PackedLayout* layout) {
  Context& context = tape.context();
  expects_input("cross_entropy", "logits", logits, context);
  expects(logits.shape().rank() == 2 && logits.size(1) >= 1,
          "logits has shape {}, expected [M, C] with one class or more", logits.shape());
  auto state = std::make_shared<CrossEntropyState>();
  state->targets = indices_of(targets, context);
  if (options.class_weights.defined())
    expects(options.class_weights.shape() == logits.shape().from(1),
            "class_weights has shape {}, expected {}", options.class_weights.shape(),
            logits.shape().from(1));
  state->class_weights =
      weights_of("class_weights", options.class_weights, logits.shape(), context);
  for (std::int64_t c = 0; c < state->class_weights.elements(); ++c) {
    const double weight = state->class_weights.values<double>()[at(c)];
    expects(weight >= 0 && std::isfinite(weight),
            "class_weights[{}] is {}, expected 0 or more, and finite", c, weight);
  }
  state->terms = {state->class_weights, options.ignore_index, options.label_smoothing};
  const std::int64_t rows = logits.size(0);
  state->log_sum_exp = Tensor::empty({rows}, Dtype::f64);
  Tensor losses = Tensor::empty({rows}, Dtype::f64);
  kernels::cross_entropy(context, state->terms, logits.value(), state->targets, state->log_sum_exp,
                         losses);

  std::vector<double> weight(at(rows), 1.0);
  for (std::int64_t m = 0; m < rows; ++m) {
    const std::int64_t y = state->targets.values<std::int64_t>()[at(m)];
    if (y == options.ignore_index)
      weight[at(m)] = 0;
    else if (state->class_weights.defined())
      weight[at(m)] = state->class_weights.values<double>()[at(y)];
  }
  state->reduction = layout != nullptr ? per_sequence(options.reduction, *layout, weight)
                                       : per_row(options.reduction, {rows}, weight);
  Variable result =
      tape.result(reduce(state->reduction, losses, logits.dtype()), logits.needs_gradient());
  if (result.needs_gradient())
    tape.record([state, value = logits.value_ptr(), into = logits.gradient_ptr(),
                 from = result.gradient_ptr()](Context& then) {
      const Tensor upstream = from->take(then);
      if (!upstream.defined()) return;
      const Tensor scales = scales_of(state->reduction, upstream, value->size(0));
      Tensor gradient = then.empty(value->shape(), value->dtype());
      kernels::cross_entropy_backward(then, state->terms, *value, state->targets,
                                      state->log_sum_exp, scales, gradient);
      into->add(then, std::move(gradient));
    });
  return result;
}

// ---- losses of elements -------------------------------------------------------------------------

struct ElementState {
  Tensor target, weight, pos_weight;
  kernels::ElementTerms terms;
  Reduction reduction;
  std::int64_t rows = 0;
};

struct ElementArguments {
  std::string_view loss, input_name, target_name;
  kernels::ElementLoss kind;
  BceOptions options;
};

ElementArguments squared_error(LossReduction reduction) {
  return {
      "mse_loss", "input", "target", kernels::ElementLoss::squared_error, {.reduction = reduction}};
}
ElementArguments binary_cross_entropy(const BceOptions& options) {
  return {"bce_with_logits", "logits", "targets", kernels::ElementLoss::binary_cross_entropy,
          options};
}

Variable elements_of(Tape& tape, const Variable& input, const TensorView& target,
                     const ElementArguments& arguments, const PackedLayout* layout) {
  const BceOptions& options = arguments.options;
  Context& context = tape.context();
  expects_input(arguments.loss, arguments.input_name, input, context);
  expects(target.defined() && target.shape() == input.shape() && target.dtype() == input.dtype(),
          "{} has shape {} and dtype {}, expected {} and {}", arguments.target_name, target.shape(),
          target.dtype(), input.shape(), input.dtype());
  expects_on_device(arguments.target_name, target, context);
  auto state = std::make_shared<ElementState>();
  state->target = Tensor::copy_of(target);
  state->weight = weights_of("weight", options.weight, input.shape(), context);
  state->pos_weight = weights_of("pos_weight", options.pos_weight, input.shape(), context);
  state->terms = {arguments.kind, state->weight, state->pos_weight};
  // Single elements, or sums over a step where those are all that is asked for.
  const std::int64_t elements = input.shape().elements();
  const bool single = layout == nullptr && options.reduction == LossReduction::none;
  state->rows = single || input.shape().rank() == 0 ? elements : input.size(0);
  const double each =
      state->rows == 0 ? 0 : static_cast<double>(elements) / static_cast<double>(state->rows);
  const std::vector<double> weight(at(state->rows), each);
  state->reduction = layout != nullptr ? per_sequence(options.reduction, *layout, weight)
                                       : per_row(options.reduction, input.shape(), weight);
  Tensor losses = Tensor::empty({state->rows}, Dtype::f64);
  kernels::element_losses(context, state->terms, input.value(), state->target, losses);
  Variable result =
      tape.result(reduce(state->reduction, losses, input.dtype()), input.needs_gradient());
  if (result.needs_gradient())
    tape.record([state, value = input.value_ptr(), into = input.gradient_ptr(),
                 from = result.gradient_ptr()](Context& then) {
      const Tensor upstream = from->take(then);
      if (!upstream.defined()) return;
      const Tensor scales = scales_of(state->reduction, upstream, state->rows);
      Tensor gradient = then.empty(value->shape(), value->dtype());
      kernels::element_losses_backward(then, state->terms, *value, state->target, scales, gradient);
      into->add(then, std::move(gradient));
    });
  return result;
}

// ---- connectionist temporal classification ------------------------------------------------------

struct CtcState {
  PackedLayoutPtr layout;
  Tensor targets, log_sum_exp, losses;
  std::vector<std::int64_t> begins;
  Reduction reduction;
  std::int64_t blank = 0;

  kernels::CtcLabels labels() const { return {targets.values<std::int64_t>(), begins, blank}; }
};

// Of losses [N] with targets of these lengths.
Reduction per_target(LossReduction how, std::span<const std::int64_t> target_lengths) {
  const auto count = static_cast<std::int64_t>(target_lengths.size());
  if (how != LossReduction::mean) return per_row(how, {count}, {});
  Reduction result;
  for (std::int64_t n = 0; n < count; ++n) {
    const std::int64_t length = std::max<std::int64_t>(1, target_lengths[at(n)]);
    result.group.push_back(n);
    result.scale.push_back(1 / (static_cast<double>(length) * static_cast<double>(count)));
  }
  return result;
}

}  // namespace

Variable cross_entropy(Tape& tape, const Variable& logits, const TensorView& targets,
                       const CrossEntropyOptions& options) {
  return cross_entropy_of(tape, logits, targets, options, nullptr);
}

Variable cross_entropy(Tape& tape, const PackedVariable& logits, const PackedSequence& targets,
                       const CrossEntropyOptions& options, Per per) {
  expects_same_rows("targets", logits, targets);
  return cross_entropy_of(tape, logits.data, targets.data(), options,
                          per == Per::sequence ? logits.layout.get() : nullptr);
}

Variable mse_loss(Tape& tape, const Variable& input, const TensorView& target,
                  LossReduction reduction) {
  return elements_of(tape, input, target, squared_error(reduction), nullptr);
}

Variable mse_loss(Tape& tape, const PackedVariable& input, const PackedSequence& target,
                  LossReduction reduction, Per per) {
  expects_same_rows("target", input, target);
  return elements_of(tape, input.data, target.data(), squared_error(reduction),
                     per == Per::sequence ? input.layout.get() : nullptr);
}

Variable bce_with_logits(Tape& tape, const Variable& logits, const TensorView& targets,
                         const BceOptions& options) {
  return elements_of(tape, logits, targets, binary_cross_entropy(options), nullptr);
}

Variable bce_with_logits(Tape& tape, const PackedVariable& logits, const PackedSequence& targets,
                         const BceOptions& options, Per per) {
  expects_same_rows("targets", logits, targets);
  return elements_of(tape, logits.data, targets.data(), binary_cross_entropy(options),
                     per == Per::sequence ? logits.layout.get() : nullptr);
}

Variable ctc_loss(Tape& tape, const PackedVariable& logits, const TensorView& targets,
                  const Lengths& target_lengths, const CtcOptions& options) {
  Context& context = tape.context();
  expects(logits.defined(), "logits is not defined");
  expects_input("ctc_loss", "logits", logits.data, context);
  auto state = std::make_shared<CtcState>();
  state->layout = logits.layout;
  state->blank = options.blank;
  state->targets = indices_of(targets, context);
  expects(target_lengths.count() == logits.layout->batch(),
          "target_lengths has {} entries, expected {}, one for each sequence",
          target_lengths.count(), logits.layout->batch());
  state->begins.push_back(0);
  for (std::int64_t n = 0; n < target_lengths.count(); ++n) {
    const std::int64_t length = target_lengths.values()[at(n)];
    const std::int64_t left = targets.elements() - state->begins.back();
    expects(length <= left, "target_lengths[{}] is {}, and only {} of {} targets are left", n,
            length, left, targets.elements());
    state->begins.push_back(state->begins.back() + length);
  }
  expects(targets.shape() == Shape{state->begins.back()}, "targets has shape {}, expected {}",
          targets.shape(), Shape{state->begins.back()});
  state->reduction = per_target(options.reduction, target_lengths.values());
  state->log_sum_exp = Tensor::empty({logits.layout->total()}, Dtype::f64);
  state->losses = Tensor::empty({target_lengths.count()}, Dtype::f64);
  kernels::ctc(context, logits.data.value(), *state->layout, state->labels(), state->log_sum_exp,
               state->losses);

  Tensor shown = state->losses.clone();
  if (options.zero_infinity)
    std::ranges::replace(shown.values<double>(), std::numeric_limits<double>::infinity(), 0.0);
  Variable result = tape.result(reduce(state->reduction, shown, logits.data.dtype()),
                                logits.data.needs_gradient());
  if (result.needs_gradient())
    tape.record([state, value = logits.data.value_ptr(), into = logits.data.gradient_ptr(),
                 from = result.gradient_ptr()](Context& then) {
      const Tensor upstream = from->take(then);
      if (!upstream.defined()) return;
      const Tensor scales = scales_of(state->reduction, upstream, state->layout->batch());
      Tensor gradient = then.empty(value->shape(), value->dtype());
      kernels::ctc_backward(then, *value, *state->layout, state->labels(), state->log_sum_exp,
                            state->losses, scales, gradient);
      into->add(then, std::move(gradient));
    });
  return result;
}

Tensor argmax(Context& context, const TensorView& rows) {
  if (context.device() != Device::cpu()) throw Unsupported("argmax: not on a GPU yet");
  expects(rows.defined() && rows.shape().rank() == 2, "rows has shape {}, expected [M, C]",
          rows.shape());
  expects_on_device("rows", rows, context);
  Tensor result = Tensor::empty({rows.size(0)}, Dtype::i64);
  kernels::argmax(context, rows, result);
  return result;
}

}  // namespace packrnn

#include "packrnn/layers/losses.hpp"

#include <algorithm>
#include <iterator>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "packrnn/kernels/ctc.hpp"
#include "packrnn/kernels/elementwise.hpp"
#include "packrnn/kernels/loss.hpp"
#include "packrnn/kernels/loss_reduction.hpp"
#include "packrnn/layers/arguments.hpp"
#include "packrnn/runtime/expects.hpp"

namespace packrnn {
namespace {

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

// ---- reductions ---------------------------------------------------------------------------------

// How the losses of rows become the result, which is linear (kernels/loss_reduction.hpp).
struct Reduction {
  kernels::Collect collect = kernels::Collect::all;
  Shape shape;             // of the result
  PackedLayoutPtr layout;  // null: none is needed
  Tensor scales;           // f64 [rows]

  Tensor of(Context& context, const TensorView& losses, Dtype dtype) const {
    Tensor result = context.empty(shape, dtype);
    kernels::collect_losses(context, collect, layout.get(), losses, scales, result);
    return result;
  }
  // f64 [rows]: d total / d row's loss, given that of the result.
  Tensor backward(Context& context, const TensorView& gradient) const {
    Tensor result = context.empty(scales.shape(), Dtype::f64);
    kernels::collect_losses_backward(context, collect, layout.get(), gradient, scales, result);
    return result;
  }
};

// Of rows that weigh so much each; `unreduced` is the shape of all their losses. A packed loss has
// a layout, and averages per token or per sequence. Per token a layout is only needed where its
// host does not know how many rows there are.
Reduction reduction_of(Context& context, LossReduction how, const Shape& unreduced,
                       const TensorView& weights, PackedLayoutPtr layout, Per per) {
  const bool mean = how == LossReduction::mean;
  Reduction result;
  kernels::Average average = mean ? kernels::Average::rows : kernels::Average::none;
  if (layout != nullptr && per == Per::sequence) {
    average = mean ? kernels::Average::sequences : kernels::Average::sequence;
    if (how == LossReduction::none) {
      result.collect = kernels::Collect::sequences;
      result.shape = {layout->batch()};
    }
  } else if (how == LossReduction::none) {
    result.collect = kernels::Collect::rows;
    result.shape = unreduced;
  }
  if (layout != nullptr && (per == Per::sequence || !layout->known()))
    result.layout = std::move(layout);
  result.scales = context.empty(weights.shape(), Dtype::f64);
  kernels::loss_scales(context, average, weights, result.layout.get(), result.scales);
  return result;
}

// Losses of 16-bit inputs are f32.
Dtype result_dtype(Dtype input) { return input == Dtype::f64 ? Dtype::f64 : Dtype::f32; }

// ---- arguments ----------------------------------------------------------------------------------

void expects_input(std::string_view loss, std::string_view name, const Variable& input,
                   const Context& context) {
  expects(input.defined(), "{} is not defined", name);
  expects_on_device(name, input.value(), context);
  expects_computable(loss, input.dtype(), context);
}

void expects_same_rows(std::string_view name, const PackedVariable& input,
                       const PackedSequence& target) {
  expects(input.defined(), "the packed variable is not defined");
  expects(target.defined(), "{} is not defined", name);
  const PackedLayout &a = *input.layout, &b = target.layout();
  if (same_rows(a, b)) return;  // what the message says of a layout may be on a device only
  expects(false, "{} has lengths {} in sorted order {}, expected {} in {}", name,
          fmt::join(b.lengths(), " "), fmt::join(b.sorted_indices(), " "),
          fmt::join(a.lengths(), " "), fmt::join(a.sorted_indices(), " "));
}

// A copy of class indices as i64.
Tensor indices_of(Context& context, const TensorView& targets) {
  expects(targets.defined(), "targets is not defined");
  expects(targets.dtype() == Dtype::i32 || targets.dtype() == Dtype::i64,
          "targets has dtype {}, expected i32 or i64", targets.dtype());
  expects_on_device("targets", targets, context);
  Tensor result = context.empty(targets.shape(), Dtype::i64);
  kernels::widen_indices(context, targets, result);
  return result;
}

// A copy as f64 of weights that may be left out, of the shape of the input's last dimensions.
Tensor weights_of(Context& context, std::string_view name, const TensorView& weights,
                  const Shape& input) {
  if (!weights.defined()) return {};
  expects(is_floating(weights.dtype()), "{} has dtype {}, expected a floating dtype", name,
          weights.dtype());
  expects(weights.shape().rank() <= input.rank() &&
              weights.shape() == input.from(input.rank() - weights.shape().rank()),
          "{} has shape {}, expected that of the last dimensions of {}", name, weights.shape(),
          input);
  expects_on_device(name, weights, context);
  Tensor result = context.empty(weights.shape(), Dtype::f64);
  kernels::convert_elements(context, weights, result);
  return result;
}

// ---- cross entropy ------------------------------------------------------------------------------

struct CrossEntropyState {
  Tensor targets, class_weights, log_sum_exp;
  kernels::CrossEntropy terms;
  Reduction reduction;
};

// `layout`: of packed logits, else null.
Variable cross_entropy_of(Tape& tape, const Variable& logits, const TensorView& targets,
                          const CrossEntropyOptions& options, PackedLayoutPtr layout, Per per) {
  Context& context = tape.context();
  expects_input("cross_entropy", "logits", logits, context);
  expects(logits.shape().rank() == 2 && logits.size(1) >= 1,
          "logits has shape {}, expected [M, C] with one class or more", logits.shape());
  auto state = std::make_shared<CrossEntropyState>();
  state->targets = indices_of(context, targets);
  if (options.class_weights.defined())
    expects(options.class_weights.shape() == logits.shape().from(1),
            "class_weights has shape {}, expected {}", options.class_weights.shape(),
            logits.shape().from(1));
  state->class_weights =
      weights_of(context, "class_weights", options.class_weights, logits.shape());
  state->terms = {state->class_weights, options.ignore_index, options.label_smoothing};
  const Shape rows{logits.size(0)};
  state->log_sum_exp = context.empty(rows, Dtype::f64);
  Tensor losses = context.empty(rows, Dtype::f64), weights = context.empty(rows, Dtype::f64);
  kernels::cross_entropy(context, state->terms, logits.value(), state->targets, state->log_sum_exp,
                         losses, weights);
  state->reduction =
      reduction_of(context, options.reduction, rows, weights, std::move(layout), per);
  Variable result = tape.result(state->reduction.of(context, losses, result_dtype(logits.dtype())),
                                logits.needs_gradient());
  if (result.needs_gradient())
    tape.record([state, value = logits.value_ptr(), into = logits.gradient_ptr(),
                 from = result.gradient_ptr()](Context& then) {
      const Tensor upstream = from->take(then);
      if (!upstream.defined()) return;
      const Tensor scales = state->reduction.backward(then, upstream);
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
                     const ElementArguments& arguments, PackedLayoutPtr layout, Per per) {
  const BceOptions& options = arguments.options;
  Context& context = tape.context();
  expects_input(arguments.loss, arguments.input_name, input, context);
  expects(target.defined() && target.shape() == input.shape() && target.dtype() == input.dtype(),
          "{} has shape {} and dtype {}, expected {} and {}", arguments.target_name, target.shape(),
          target.dtype(), input.shape(), input.dtype());
  expects_on_device(arguments.target_name, target, context);
  auto state = std::make_shared<ElementState>();
  state->target = context.empty(target.shape(), target.dtype());
  context.copy(target, state->target);
  state->weight = weights_of(context, "weight", options.weight, input.shape());
  state->pos_weight = weights_of(context, "pos_weight", options.pos_weight, input.shape());
  state->terms = {arguments.kind, state->weight, state->pos_weight};
  // Single elements, or sums over a step where those are all that is asked for.
  const bool by_sequence = layout != nullptr && per == Per::sequence;
  const bool single = !by_sequence && options.reduction == LossReduction::none;
  const std::int64_t elements = input.shape().elements();
  const Shape rows{single || input.shape().rank() == 0 ? elements : input.size(0)};
  Tensor weights = context.empty(rows, Dtype::f64), losses = context.empty(rows, Dtype::f64);
  if (rows.elements() > 0)
    kernels::fill(context, static_cast<double>(elements) / static_cast<double>(rows.elements()),
                  weights);
  if (single) layout = nullptr;  // elements are no rows
  state->reduction =
      reduction_of(context, options.reduction, input.shape(), weights, std::move(layout), per);
  kernels::element_losses(context, state->terms, input.value(), state->target, losses);
  Variable result = tape.result(state->reduction.of(context, losses, result_dtype(input.dtype())),
                                input.needs_gradient());
  if (result.needs_gradient())
    tape.record([state, value = input.value_ptr(), into = input.gradient_ptr(),
                 from = result.gradient_ptr()](Context& then) {
      const Tensor upstream = from->take(then);
      if (!upstream.defined()) return;
      const Tensor scales = state->reduction.backward(then, upstream);
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

  kernels::CtcLabels labels() const { return {targets, begins, blank}; }
};

// Of losses [N] with targets of these lengths.
Reduction per_target(Context& context, LossReduction how,
                     std::span<const std::int64_t> target_lengths) {
  const Shape shape{std::ssize(target_lengths)};
  std::vector<double> scales;
  for (const std::int64_t length : target_lengths) {
    const double share = static_cast<double>(std::max<std::int64_t>(1, length)) *
                         static_cast<double>(target_lengths.size());
    scales.push_back(how == LossReduction::mean ? 1 / share : 1.0);
  }
  Reduction result;
  if (how == LossReduction::none) {
    result.collect = kernels::Collect::rows;
    result.shape = shape;
  }
  result.scales = context.to_device(TensorView(scales.data(), shape));
  return result;
}

}  // namespace

Variable cross_entropy(Tape& tape, const Variable& logits, const TensorView& targets,
                       const CrossEntropyOptions& options) {
  return cross_entropy_of(tape, logits, targets, options, nullptr, Per::token);
}

Variable cross_entropy(Tape& tape, const PackedVariable& logits, const PackedSequence& targets,
                       const CrossEntropyOptions& options, Per per) {
  expects_same_rows("targets", logits, targets);
  return cross_entropy_of(tape, logits.data, targets.data(), options, logits.layout, per);
}

Variable mse_loss(Tape& tape, const Variable& input, const TensorView& target,
                  LossReduction reduction) {
  return elements_of(tape, input, target, squared_error(reduction), nullptr, Per::token);
}

Variable mse_loss(Tape& tape, const PackedVariable& input, const PackedSequence& target,
                  LossReduction reduction, Per per) {
  expects_same_rows("target", input, target);
  return elements_of(tape, input.data, target.data(), squared_error(reduction), input.layout, per);
}

Variable bce_with_logits(Tape& tape, const Variable& logits, const TensorView& targets,
                         const BceOptions& options) {
  return elements_of(tape, logits, targets, binary_cross_entropy(options), nullptr, Per::token);
}

Variable bce_with_logits(Tape& tape, const PackedVariable& logits, const PackedSequence& targets,
                         const BceOptions& options, Per per) {
  expects_same_rows("targets", logits, targets);
  return elements_of(tape, logits.data, targets.data(), binary_cross_entropy(options),
                     logits.layout, per);
}

Variable ctc_loss(Tape& tape, const PackedVariable& logits, const TensorView& targets,
                  const Lengths& target_lengths, const CtcOptions& options) {
  Context& context = tape.context();
  expects(logits.defined(), "logits is not defined");
  expects_input("ctc_loss", "logits", logits.data, context);
  auto state = std::make_shared<CtcState>();
  state->layout = logits.layout;
  state->blank = options.blank;
  state->targets = indices_of(context, targets);
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
  state->log_sum_exp = context.empty({logits.layout->total()}, Dtype::f64);
  state->losses = context.empty({target_lengths.count()}, Dtype::f64);
  kernels::ctc(context, logits.data.value(), *state->layout, state->labels(), state->log_sum_exp,
               state->losses);

  state->reduction = per_target(context, options.reduction, target_lengths.values());
  if (options.zero_infinity)
    kernels::leave_out_infinite(context, state->losses, state->reduction.scales);
  Variable result =
      tape.result(state->reduction.of(context, state->losses, result_dtype(logits.data.dtype())),
                  logits.data.needs_gradient());
  if (result.needs_gradient())
    tape.record([state, value = logits.data.value_ptr(), into = logits.data.gradient_ptr(),
                 from = result.gradient_ptr()](Context& then) {
      const Tensor upstream = from->take(then);
      if (!upstream.defined()) return;
      const Tensor scales = state->reduction.backward(then, upstream);
      Tensor gradient = then.empty(value->shape(), value->dtype());
      kernels::ctc_backward(then, *value, *state->layout, state->labels(), state->log_sum_exp,
                            state->losses, scales, gradient);
      into->add(then, std::move(gradient));
    });
  return result;
}

Tensor argmax(Context& context, const TensorView& rows) {
  expects(rows.defined() && rows.shape().rank() == 2, "rows has shape {}, expected [M, C]",
          rows.shape());
  expects_on_device("rows", rows, context);
  Tensor result = context.empty({rows.size(0)}, Dtype::i64);
  kernels::argmax(context, rows, result);
  return result;
}

}  // namespace packrnn

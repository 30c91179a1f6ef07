#include "packrnn/kernels/loss.hpp"

#include <cmath>
#include <type_traits>

#include "packrnn/kernels/check.hpp"
#include "packrnn/kernels/cpu/loss.hpp"
#include "packrnn/kernels/cpu/with_real.hpp"
#include "packrnn/kernels/cuda/loss.hpp"

namespace packrnn::kernels {
namespace {

bool on_gpu(const Context& context) { return context.device().type == DeviceType::cuda; }

const double* doubles(const TensorView& tensor) { return static_cast<const double*>(tensor.raw()); }
double* doubles(const TensorSpan& tensor) { return static_cast<double*>(tensor.raw()); }

void check_rows(const Context& context, std::string_view operation, std::string_view name,
                const TensorView& rows) {
  expects(rows.defined() && rows.shape().rank() == 2 && rows.size(1) >= 1,
          "{} has shape {}, expected [M, C] with one class or more", name, rows.shape());
  check_computable(operation, rows.dtype(), context.device());
  check_place(name, rows, context.device());
}

// What only the host's memory lets us see; kernels see the rest.
void check_class_numbers(const CrossEntropy& terms, std::int64_t classes,
                         const TensorView& targets) {
  std::int64_t m = 0;
  for (const std::int64_t y : targets.values<std::int64_t>()) {
    expects((y >= 0 && y < classes) || y == terms.ignore_index,
            "targets[{}] is {}, expected 0 to {}, or {} to be left out", m, y, classes - 1,
            terms.ignore_index);
    ++m;
  }
  if (!terms.class_weights.defined()) return;
  std::int64_t c = 0;
  for (const double weight : terms.class_weights.values<double>()) {
    expects(weight >= 0 && std::isfinite(weight),
            "class_weights[{}] is {}, expected 0 or more, and finite", c, weight);
    ++c;
  }
}

void check_cross_entropy(const Context& context, const CrossEntropy& terms,
                         const TensorView& logits, const TensorView& targets) {
  check_rows(context, "cross_entropy", "logits", logits);
  const std::int64_t classes = logits.size(1);
  check("targets", targets, {logits.size(0)}, Dtype::i64, context.device());
  check_optional("class_weights", terms.class_weights, {classes}, Dtype::f64, context.device());
  expects(terms.label_smoothing >= 0 && terms.label_smoothing <= 1,
          "label_smoothing is {}, expected 0 to 1", terms.label_smoothing);
  if (!on_gpu(context)) check_class_numbers(terms, classes, targets);
}

cuda::CrossEntropyRows cross_entropy_rows(const Context& context, const CrossEntropy& terms,
                                          const TensorView& logits, const TensorView& targets) {
  return {.dtype = logits.dtype(),
          .logits = logits.raw(),
          .targets = static_cast<const std::int64_t*>(targets.raw()),
          .class_weights = doubles(terms.class_weights),
          .rows = logits.size(0),
          .classes = logits.size(1),
          .ignore_index = terms.ignore_index,
          .target_part = 1 - terms.label_smoothing,
          .other_part = terms.label_smoothing / static_cast<double>(logits.size(1)),
          .fault = context.fault()};
}

void check_elements(const Context& context, const ElementTerms& terms, const TensorView& input,
                    const TensorView& target, const TensorView& rows, std::string_view rows_name) {
  const Device device = context.device();
  expects(input.defined(), "input is not defined");
  check_computable("element_losses", input.dtype(), device);
  check("input", input, input.shape(), input.dtype(), device);
  check("target", target, input.shape(), input.dtype(), device);
  expects(rows.defined() && rows.shape().rank() == 1, "{} has shape {}, expected [M]", rows_name,
          rows.shape());
  check(rows_name, rows, rows.shape(), Dtype::f64, device);
  expects(rows.elements() == 0 ? input.elements() == 0 : input.elements() % rows.elements() == 0,
          "{} has {} elements, into which {} do not divide", rows_name, rows.elements(),
          input.elements());
  for (const TensorView& weight : {terms.weight, terms.pos_weight})
    check_optional("a weight", weight, weight.shape(), Dtype::f64, device);
}

void check_probabilities(const TensorView& targets) {
  cpu::with_real(targets.dtype(), [&]<class T>(std::type_identity<T>) {
    std::int64_t i = 0;
    for (const T y : targets.values<T>()) {
      expects(y >= 0 && y <= 1, "targets[{}] is {}, counted over all elements; expected 0 to 1", i,
              y);
      ++i;
    }
  });
}

cuda::ElementRows element_rows(const Context& context, const ElementTerms& terms,
                               const TensorView& input, const TensorView& target,
                               std::int64_t rows) {
  return {.loss = terms.loss,
          .dtype = input.dtype(),
          .input = input.raw(),
          .target = target.raw(),
          .weight = {doubles(terms.weight), terms.weight.elements()},
          .pos_weight = {doubles(terms.pos_weight), terms.pos_weight.elements()},
          .rows = rows,
          .part = rows == 0 ? 0 : input.elements() / rows,
          .fault = context.fault()};
}

}  // namespace

void cross_entropy(Context& context, const CrossEntropy& terms, const TensorView& logits,
                   const TensorView& targets, const TensorSpan& log_sum_exp,
                   const TensorSpan& losses, const TensorSpan& weights) {
  check_cross_entropy(context, terms, logits, targets);
  check("log_sum_exp", log_sum_exp, targets.shape(), Dtype::f64, context.device());
  check("losses", losses, targets.shape(), Dtype::f64, context.device());
  check_optional("weights", weights, targets.shape(), Dtype::f64, context.device());
  if (on_gpu(context))
    return cuda::cross_entropy(context.stream(),
                               cross_entropy_rows(context, terms, logits, targets),
                               doubles(log_sum_exp), doubles(losses), doubles(weights));
  cpu::with_real(logits.dtype(), [&]<class T>(std::type_identity<T>) {
    cpu::cross_entropy(context.pool(), terms, logits.values<T>(), targets.values<std::int64_t>(),
                       log_sum_exp.values<double>(), losses.values<double>(),
                       weights.defined() ? weights.values<double>() : std::span<double>());
  });
}

void cross_entropy_backward(Context& context, const CrossEntropy& terms, const TensorView& logits,
                            const TensorView& targets, const TensorView& log_sum_exp,
                            const TensorView& scales, const TensorSpan& gradient) {
  check_cross_entropy(context, terms, logits, targets);
  check("log_sum_exp", log_sum_exp, targets.shape(), Dtype::f64, context.device());
  check("scales", scales, targets.shape(), Dtype::f64, context.device());
  check("gradient", gradient, logits.shape(), logits.dtype(), context.device());
  if (on_gpu(context))
    return cuda::cross_entropy_backward(context.stream(),
                                        cross_entropy_rows(context, terms, logits, targets),
                                        doubles(log_sum_exp), doubles(scales), gradient.raw());
  cpu::with_real(logits.dtype(), [&]<class T>(std::type_identity<T>) {
    cpu::cross_entropy_backward(context.pool(), terms, logits.values<T>(),
                                targets.values<std::int64_t>(), log_sum_exp.values<double>(),
                                scales.values<double>(), gradient.values<T>());
  });
}

void element_losses(Context& context, const ElementTerms& terms, const TensorView& input,
                    const TensorView& target, const TensorSpan& losses) {
  check_elements(context, terms, input, target, losses, "losses");
  if (on_gpu(context))
    return cuda::element_losses(context.stream(),
                                element_rows(context, terms, input, target, losses.elements()),
                                doubles(losses));
  if (terms.loss == ElementLoss::binary_cross_entropy) check_probabilities(target);
  cpu::with_real(input.dtype(), [&]<class T>(std::type_identity<T>) {
    cpu::element_losses(context.pool(), terms, input.values<T>(), target.values<T>(),
                        losses.values<double>());
  });
}

void element_losses_backward(Context& context, const ElementTerms& terms, const TensorView& input,
                             const TensorView& target, const TensorView& scales,
                             const TensorSpan& gradient) {
  check_elements(context, terms, input, target, scales, "scales");
  check("gradient", gradient, input.shape(), input.dtype(), context.device());
  if (on_gpu(context))
    return cuda::element_losses_backward(
        context.stream(), element_rows(context, terms, input, target, scales.elements()),
        doubles(scales), gradient.raw());
  cpu::with_real(input.dtype(), [&]<class T>(std::type_identity<T>) {
    cpu::element_losses_backward(context.pool(), terms, input.values<T>(), target.values<T>(),
                                 scales.values<double>(), gradient.values<T>());
  });
}

void argmax(Context& context, const TensorView& rows, const TensorSpan& result) {
  check_rows(context, "argmax", "rows", rows);
  check("result", result, {rows.size(0)}, Dtype::i64, context.device());
  if (on_gpu(context))
    return cuda::argmax(context.stream(), rows.dtype(), rows.raw(), rows.size(0), rows.size(1),
                        static_cast<std::int64_t*>(result.raw()));
  cpu::with_real(rows.dtype(), [&]<class T>(std::type_identity<T>) {
    cpu::argmax(context.pool(), rows.values<T>(), result.values<std::int64_t>());
  });
}

void widen_indices(Context& context, const TensorView& indices, const TensorSpan& result) {
  expects(indices.defined() && (indices.dtype() == Dtype::i32 || indices.dtype() == Dtype::i64),
          "indices are {}, expected i32 or i64", indices.dtype());
  check_place("indices", indices, context.device());
  check("result", result, indices.shape(), Dtype::i64, context.device());
  if (indices.dtype() == Dtype::i64) return context.copy(indices, result);
  if (!on_gpu(context)) return convert_into(indices, result);
  cuda::widen_indices(context.stream(), static_cast<const std::int32_t*>(indices.raw()),
                      indices.elements(), static_cast<std::int64_t*>(result.raw()));
}

}  // namespace packrnn::kernels

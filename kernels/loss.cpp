#include "packrnn/kernels/loss.hpp"

#include <type_traits>

#include "packrnn/kernels/check.hpp"
#include "packrnn/kernels/cpu/loss.hpp"
#include "packrnn/kernels/cpu/with_real.hpp"

namespace packrnn::kernels {
namespace {

void check_rows(std::string_view operation, std::string_view name, const TensorView& rows) {
  expects(rows.defined() && rows.shape().rank() == 2 && rows.size(1) >= 1,
          "{} has shape {}, expected [M, C] with one class or more", name, rows.shape());
  check_computable(operation, rows.dtype());
  check_place(name, rows, Device::cpu());
}

void check_cross_entropy(const CrossEntropy& terms, const TensorView& logits,
                         const TensorView& targets) {
  check_rows("cross_entropy", "logits", logits);
  const std::int64_t classes = logits.size(1);
  check("targets", targets, {logits.size(0)}, Dtype::i64);
  check_optional("class_weights", terms.class_weights, {classes}, Dtype::f64);
  expects(terms.label_smoothing >= 0 && terms.label_smoothing <= 1,
          "label_smoothing is {}, expected 0 to 1", terms.label_smoothing);
  std::int64_t m = 0;
  for (const std::int64_t y : targets.values<std::int64_t>()) {
    expects((y >= 0 && y < classes) || y == terms.ignore_index,
            "targets[{}] is {}, expected 0 to {}, or {} to be left out", m, y, classes - 1,
            terms.ignore_index);
    ++m;
  }
}

void check_elements(const ElementTerms& terms, const TensorView& input, const TensorView& target,
                    const TensorView& rows, std::string_view rows_name) {
  expects(input.defined(), "input is not defined");
  check_computable("element_losses", input.dtype());
  check("input", input, input.shape(), input.dtype());
  check("target", target, input.shape(), input.dtype());
  expects(rows.defined() && rows.shape().rank() == 1, "{} has shape {}, expected [M]", rows_name,
          rows.shape());
  check(rows_name, rows, rows.shape(), Dtype::f64);
  expects(rows.elements() == 0 ? input.elements() == 0 : input.elements() % rows.elements() == 0,
          "{} has {} elements, into which {} do not divide", rows_name, rows.elements(),
          input.elements());
  for (const TensorView& weight : {terms.weight, terms.pos_weight})
    check_optional("a weight", weight, weight.shape(), Dtype::f64);
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

}  // namespace

void cross_entropy(Context& context, const CrossEntropy& terms, const TensorView& logits,
                   const TensorView& targets, const TensorSpan& log_sum_exp,
                   const TensorSpan& losses) {
  check_cross_entropy(terms, logits, targets);
  check("log_sum_exp", log_sum_exp, targets.shape(), Dtype::f64);
  check("losses", losses, targets.shape(), Dtype::f64);
  cpu::with_real(logits.dtype(), [&]<class T>(std::type_identity<T>) {
    cpu::cross_entropy(context.pool(), terms, logits.values<T>(), targets.values<std::int64_t>(),
                       log_sum_exp.values<double>(), losses.values<double>());
  });
}

void cross_entropy_backward(Context& context, const CrossEntropy& terms, const TensorView& logits,
                            const TensorView& targets, const TensorView& log_sum_exp,
                            const TensorView& scales, const TensorSpan& gradient) {
  check_cross_entropy(terms, logits, targets);
  check("log_sum_exp", log_sum_exp, targets.shape(), Dtype::f64);
  check("scales", scales, targets.shape(), Dtype::f64);
  check("gradient", gradient, logits.shape(), logits.dtype());
  cpu::with_real(logits.dtype(), [&]<class T>(std::type_identity<T>) {
    cpu::cross_entropy_backward(context.pool(), terms, logits.values<T>(),
                                targets.values<std::int64_t>(), log_sum_exp.values<double>(),
                                scales.values<double>(), gradient.values<T>());
  });
}

void element_losses(Context& context, const ElementTerms& terms, const TensorView& input,
                    const TensorView& target, const TensorSpan& losses) {
  check_elements(terms, input, target, losses, "losses");
  if (terms.loss == ElementLoss::binary_cross_entropy) check_probabilities(target);
  cpu::with_real(input.dtype(), [&]<class T>(std::type_identity<T>) {
    cpu::element_losses(context.pool(), terms, input.values<T>(), target.values<T>(),
                        losses.values<double>());
  });
}

void element_losses_backward(Context& context, const ElementTerms& terms, const TensorView& input,
                             const TensorView& target, const TensorView& scales,
                             const TensorSpan& gradient) {
  check_elements(terms, input, target, scales, "scales");
  check("gradient", gradient, input.shape(), input.dtype());
  cpu::with_real(input.dtype(), [&]<class T>(std::type_identity<T>) {
    cpu::element_losses_backward(context.pool(), terms, input.values<T>(), target.values<T>(),
                                 scales.values<double>(), gradient.values<T>());
  });
}

void argmax(Context& context, const TensorView& rows, const TensorSpan& result) {
  check_rows("argmax", "rows", rows);
  check("result", result, {rows.size(0)}, Dtype::i64);
  cpu::with_real(rows.dtype(), [&]<class T>(std::type_identity<T>) {
    cpu::argmax(context.pool(), rows.values<T>(), result.values<std::int64_t>());
  });
}

}  // namespace packrnn::kernels

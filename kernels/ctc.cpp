#include "packrnn/kernels/ctc.hpp"

#include <type_traits>

#include "packrnn/kernels/check.hpp"
#include "packrnn/kernels/cpu/ctc.hpp"
#include "packrnn/kernels/cpu/with_real.hpp"

namespace packrnn::kernels {
namespace {

void check_ctc(const TensorView& logits, const PackedLayout& layout, const CtcLabels& labels,
               const TensorView& log_sum_exp, const TensorView& losses) {
  expects(logits.defined() && logits.shape().rank() == 2 && logits.size(1) >= 1,
          "logits has shape {}, expected [total, C] with one class or more", logits.shape());
  const std::int64_t classes = logits.size(1), batch = layout.batch();
  check_computable("ctc", logits.dtype());
  check("logits", logits, {layout.total(), classes}, logits.dtype());
  check("log_sum_exp", log_sum_exp, {layout.total()}, Dtype::f64);
  check("losses", losses, {batch}, Dtype::f64);
  expects(labels.blank >= 0 && labels.blank < classes, "blank is {}, expected 0 to {}",
          labels.blank, classes - 1);
  expects(static_cast<std::int64_t>(labels.begins.size()) == batch + 1,
          "begins has {} entries, expected {}", labels.begins.size(), batch + 1);
  std::int64_t last = 0;
  for (const std::int64_t begin : labels.begins) {
    expects(begin >= last, "begins has {} after {}, and it may not fall", begin, last);
    last = begin;
  }
  expects(last <= static_cast<std::int64_t>(labels.labels.size()),
          "begins ends at {}, and there are {} labels", last, labels.labels.size());
  for (std::size_t i = 0; i < labels.labels.size(); ++i)
    expects(labels.labels[i] >= 0 && labels.labels[i] < classes && labels.labels[i] != labels.blank,
            "targets[{}] is {}, expected 0 to {} and not the blank, {}", i, labels.labels[i],
            classes - 1, labels.blank);
}

}  // namespace

void ctc(Context& context, const TensorView& logits, const PackedLayout& layout,
         const CtcLabels& labels, const TensorSpan& log_sum_exp, const TensorSpan& losses) {
  check_ctc(logits, layout, labels, log_sum_exp, losses);
  cpu::with_real(logits.dtype(), [&]<class T>(std::type_identity<T>) {
    cpu::ctc(context, logits.values<T>(), layout, labels, log_sum_exp.values<double>(),
             losses.values<double>());
  });
}

void ctc_backward(Context& context, const TensorView& logits, const PackedLayout& layout,
                  const CtcLabels& labels, const TensorView& log_sum_exp, const TensorView& losses,
                  const TensorView& scales, const TensorSpan& gradient) {
  check_ctc(logits, layout, labels, log_sum_exp, losses);
  check("scales", scales, losses.shape(), Dtype::f64);
  check("gradient", gradient, logits.shape(), logits.dtype());
  cpu::with_real(logits.dtype(), [&]<class T>(std::type_identity<T>) {
    cpu::ctc_backward(context, logits.values<T>(), layout, labels, log_sum_exp.values<double>(),
                      losses.values<double>(), scales.values<double>(), gradient.values<T>());
  });
}

}  // namespace packrnn::kernels

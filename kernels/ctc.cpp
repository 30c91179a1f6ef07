#include "packrnn/kernels/ctc.hpp"

#include <algorithm>
#include <iterator>
#include <type_traits>

#include "packrnn/kernels/check.hpp"
#include "packrnn/kernels/cpu/ctc.hpp"
#include "packrnn/kernels/cpu/with_real.hpp"
#include "packrnn/kernels/cuda/ctc.hpp"

namespace packrnn::kernels {
namespace {

bool on_gpu(const Context& context) { return context.device().type == DeviceType::cuda; }

void check_ctc(const Context& context, const TensorView& logits, const PackedLayout& layout,
               const CtcLabels& labels, const TensorView& log_sum_exp, const TensorView& losses) {
  expects(logits.defined() && logits.shape().rank() == 2 && logits.size(1) >= 1,
          "logits has shape {}, expected [total, C] with one class or more", logits.shape());
  const Device device = context.device();
  const std::int64_t classes = logits.size(1), batch = layout.batch();
  check_computable("ctc", logits.dtype(), device);
  check("logits", logits, {layout.total(), classes}, logits.dtype(), device);
  check("log_sum_exp", log_sum_exp, {layout.total()}, Dtype::f64, device);
  check("losses", losses, {batch}, Dtype::f64, device);
  expects(labels.blank >= 0 && labels.blank < classes, "blank is {}, expected 0 to {}",
          labels.blank, classes - 1);
  expects(std::ssize(labels.begins) == batch + 1, "begins has {} entries, expected {}",
          labels.begins.size(), batch + 1);
  expects(labels.labels.defined() && labels.labels.shape().rank() == 1,
          "targets has shape {}, expected one dimension", labels.labels.shape());
  check("targets", labels.labels, labels.labels.shape(), Dtype::i64, device);
  std::int64_t last = 0;
  for (const std::int64_t begin : labels.begins) {
    expects(begin >= last, "begins has {} after {}, and it may not fall", begin, last);
    last = begin;
  }
  expects(last <= labels.labels.elements(), "begins ends at {}, and there are {} labels", last,
          labels.labels.elements());
  if (on_gpu(context)) return;  // the labels themselves are the kernels' to see
  std::int64_t i = 0;
  for (const std::int64_t label : labels.labels.values<std::int64_t>()) {
    expects(label >= 0 && label < classes && label != labels.blank,
            "targets[{}] is {}, expected 0 to {} and not the blank, {}", i, label, classes - 1,
            labels.blank);
    ++i;
  }
}

// Calls body(batch), for which `begins` go to the GPU.
template <class Body>
void on_device(Context& context, const TensorView& logits, const PackedLayout& layout,
               const CtcLabels& labels, const Body& body) {
  const auto count = std::ssize(labels.begins);
  Workspace::Scope scope(context.workspace());
  auto* const begins = scope.take<std::int64_t>(count).data();
  context.copy(TensorView(labels.begins.data(), {count}),
               TensorSpan(begins, {count}, Dtype::i64, context.device()));
  std::int64_t most = 0;
  for (std::size_t n = 0; n + 1 < labels.begins.size(); ++n)
    most = std::max(most, labels.begins[n + 1] - labels.begins[n]);
  body(cuda::CtcBatch{.layout = layout.on(context),
                      .dtype = logits.dtype(),
                      .logits = logits.raw(),
                      .labels = static_cast<const std::int64_t*>(labels.labels.raw()),
                      .begins = begins,
                      .classes = logits.size(1),
                      .blank = labels.blank,
                      .states = 2 * most + 1,
                      .fault = context.fault()});
}

const double* doubles(const TensorView& tensor) { return static_cast<const double*>(tensor.raw()); }
double* doubles(const TensorSpan& tensor) { return static_cast<double*>(tensor.raw()); }

}  // namespace

void ctc(Context& context, const TensorView& logits, const PackedLayout& layout,
         const CtcLabels& labels, const TensorSpan& log_sum_exp, const TensorSpan& losses) {
  check_ctc(context, logits, layout, labels, log_sum_exp, losses);
  if (on_gpu(context))
    return on_device(context, logits, layout, labels, [&](const cuda::CtcBatch& batch) {
      cuda::ctc(context, batch, doubles(log_sum_exp), doubles(losses));
    });
  cpu::with_real(logits.dtype(), [&]<class T>(std::type_identity<T>) {
    cpu::ctc(context, logits.values<T>(), layout, labels, log_sum_exp.values<double>(),
             losses.values<double>());
  });
}

void ctc_backward(Context& context, const TensorView& logits, const PackedLayout& layout,
                  const CtcLabels& labels, const TensorView& log_sum_exp, const TensorView& losses,
                  const TensorView& scales, const TensorSpan& gradient) {
  check_ctc(context, logits, layout, labels, log_sum_exp, losses);
  check("scales", scales, losses.shape(), Dtype::f64, context.device());
  check("gradient", gradient, logits.shape(), logits.dtype(), context.device());
  if (on_gpu(context))
    return on_device(context, logits, layout, labels, [&](const cuda::CtcBatch& batch) {
      cuda::ctc_backward(context, batch, doubles(log_sum_exp), doubles(losses), doubles(scales),
                         gradient.raw());
    });
  cpu::with_real(logits.dtype(), [&]<class T>(std::type_identity<T>) {
    cpu::ctc_backward(context, logits.values<T>(), layout, labels, log_sum_exp.values<double>(),
                      losses.values<double>(), scales.values<double>(), gradient.values<T>());
  });
}

}  // namespace packrnn::kernels

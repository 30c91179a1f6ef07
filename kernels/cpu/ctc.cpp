// The paths of a sequence run through the states blank, label, blank, ..., label, blank: from one
// step to the next a path stays, moves on by one, or by two over a blank between labels that
// differ. alpha[s] sums the paths up to a step that are in state s then, beta[s] the rest of them.
#include "packrnn/kernels/cpu/ctc.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "packrnn/kernels/cpu/log_sum_exp.hpp"
#include "packrnn/kernels/cpu/parallel_for.hpp"

namespace packrnn::kernels::cpu {
namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

// log(exp(a) + exp(b)); a NaN stays one.
double log_add(double a, double b) {
  if (a == kNever) return b;
  if (b == kNever) return a;
  const double high = a > b ? a : b, low = a > b ? b : a;
  return high + std::log1p(std::exp(low - high));
}

template <class T>
class Alignment {
 public:
  Alignment(std::span<const T> logits, std::span<const double> log_sum_exp,
            const PackedLayout& layout, const CtcLabels& labels, std::int64_t sequence)
      : logits_(logits.data()),
        log_sum_exp_(log_sum_exp),
        layout_(layout),
        sequence_(sequence),
        classes_(layout.total() == 0 ? 0
                                     : static_cast<std::int64_t>(logits.size()) / layout.total()),
        blank_(labels.blank),
        steps_(layout.lengths()[at(sequence)]),
        labels_(labels.labels.values<std::int64_t>().subspan(
            at(labels.begins[at(sequence)]),
            at(labels.begins[at(sequence + 1)] - labels.begins[at(sequence)]))) {}

  std::int64_t steps() const { return steps_; }
  std::int64_t classes() const { return classes_; }
  std::int64_t states() const { return 2 * static_cast<std::int64_t>(labels_.size()) + 1; }
  std::int64_t row(std::int64_t step) const { return layout_.row(sequence_, step); }
  std::int64_t label(std::int64_t state) const {
    return state % 2 == 0 ? blank_ : labels_[at(state / 2)];
  }

  // alpha [states] of step 0, and from that of the step before, in place.
  void begin(double* alpha) const {
    std::fill(alpha, alpha + states(), kNever);
    for (std::int64_t s = 0; s < std::min<std::int64_t>(2, states()); ++s)
      alpha[s] = log_probability(0, s);
  }
  void advance(std::int64_t step, double* alpha) const {
    for (std::int64_t s = states() - 1; s >= 0; --s) {
      double sum = alpha[s];
      if (s >= 1) sum = log_add(sum, alpha[s - 1]);
      if (may_skip_to(s)) sum = log_add(sum, alpha[s - 2]);
      alpha[s] = sum + log_probability(step, s);
    }
  }

  // beta [states] of the last step, and of `step` from that of the step behind it, in place.
  void end(double* beta) const {
    std::fill(beta, beta + states(), kNever);
    for (std::int64_t s = std::max<std::int64_t>(0, states() - 2); s < states(); ++s) beta[s] = 0;
  }
  void retreat(std::int64_t step, double* beta) const {
    for (std::int64_t s = 0; s < states(); ++s) beta[s] += log_probability(step + 1, s);
    for (std::int64_t s = 0; s < states(); ++s) {
      if (s + 1 < states()) beta[s] = log_add(beta[s], beta[s + 1]);
      if (s + 2 < states() && may_skip_to(s + 2)) beta[s] = log_add(beta[s], beta[s + 2]);
    }
  }

  // The log of the sum of all paths, from the last step's alpha.
  double total(const double* alpha) const {
    const std::int64_t last = states() - 1;
    return last == 0 ? alpha[0] : log_add(alpha[last], alpha[last - 1]);
  }

 private:
  bool may_skip_to(std::int64_t state) const {
    return state >= 3 && state % 2 == 1 && labels_[at(state / 2)] != labels_[at(state / 2 - 1)];
  }
  double log_probability(std::int64_t step, std::int64_t state) const {
    const std::int64_t r = row(step);
    return static_cast<double>(logits_[r * classes_ + label(state)]) - log_sum_exp_[at(r)];
  }

  const T* logits_;
  std::span<const double> log_sum_exp_;
  const PackedLayout& layout_;
  std::int64_t sequence_, classes_, blank_, steps_;
  std::span<const std::int64_t> labels_;
};

template <class T>
double loss_of(const Alignment<T>& alignment, double* alpha) {
  if (alignment.steps() == 0) return alignment.states() == 1 ? 0 : -kNever;
  alignment.begin(alpha);
  for (std::int64_t t = 1; t < alignment.steps(); ++t) alignment.advance(t, alpha);
  return -alignment.total(alpha);
}

// `alphas` has room for a row of each step, `beta` for one, `share` for the classes.
template <class T>
void gradient_of(const Alignment<T>& alignment, std::span<const T> logits,
                 std::span<const double> log_sum_exp, double loss, double scale, double* alphas,
                 double* beta, double* share, std::span<T> gradient) {
  const std::int64_t states = alignment.states(), classes = alignment.classes();
  alignment.begin(alphas);
  for (std::int64_t t = 1; t < alignment.steps(); ++t) {
    double* const alpha = alphas + t * states;
    std::copy(alpha - states, alpha, alpha);
    alignment.advance(t, alpha);
  }
  alignment.end(beta);
  for (std::int64_t t = alignment.steps() - 1; t >= 0; --t) {
    const double* const alpha = alphas + t * states;
    std::fill(share, share + classes, 0.0);  // of all paths, those that name the class now
    for (std::int64_t s = 0; s < states; ++s)
      share[alignment.label(s)] += std::exp(alpha[s] + beta[s] + loss);
    const std::int64_t row = alignment.row(t);
    for (std::int64_t c = 0; c < classes; ++c) {
      const std::int64_t i = row * classes + c;
      const double p = std::exp(static_cast<double>(logits[at(i)]) - log_sum_exp[at(row)]);
      gradient[at(i)] = static_cast<T>(scale * (p - share[c]));
    }
    if (t > 0) alignment.retreat(t - 1, beta);
  }
}

// Calls body(sequence, scratch) for all sequences with `scratch` doubles of its thread's own. The
// long ones come first, so they are dealt out in turn.
template <class Body>
void for_sequences(Context& context, const PackedLayout& layout, std::int64_t scratch,
                   std::int64_t bytes, const Body& body) {
  const bool together = layout.batch() > 1 && bytes > kParallelBytes;
  const std::int64_t team = together ? context.pool().size() : 1;
  Workspace::Scope scope(context.workspace());
  const std::span<double> memory = scope.take<double>(team * scratch);
  const auto work = [&](std::int64_t worker) {
    for (std::int64_t k = worker; k < layout.batch(); k += team)
      body(layout.sorted_indices()[at(k)], memory.data() + worker * scratch);
  };
  if (team == 1) return work(0);
  context.pool().run([&](int worker) { work(worker); });
}

// The most of what a function says of a sequence's steps and states.
template <class Function>
std::int64_t most(const PackedLayout& layout, const CtcLabels& labels, const Function& function) {
  std::int64_t result = 0;
  for (std::int64_t n = 0; n < layout.batch(); ++n)
    result = std::max(result, function(layout.lengths()[at(n)],
                                       2 * (labels.begins[at(n + 1)] - labels.begins[at(n)]) + 1));
  return result;
}

}  // namespace

template <class T>
void ctc(Context& context, std::span<const T> logits, const PackedLayout& layout,
         const CtcLabels& labels, std::span<double> log_sum_exp, std::span<double> losses) {
  const std::int64_t total = layout.total();
  const std::int64_t classes = total == 0 ? 0 : static_cast<std::int64_t>(logits.size()) / total;
  parallel_for(context.pool(), total, classes * kExpBytes,
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t row = begin; row < end; ++row)
                   log_sum_exp[at(row)] = cpu::log_sum_exp(logits.data() + row * classes, classes);
               });
  const std::int64_t states =
      most(layout, labels, [](std::int64_t, std::int64_t count) { return count; });
  for_sequences(
      context, layout, states, total * states * kExpBytes, [&](std::int64_t n, double* scratch) {
        losses[at(n)] = loss_of(Alignment<T>(logits, log_sum_exp, layout, labels, n), scratch);
      });
}

template <class T>
void ctc_backward(Context& context, std::span<const T> logits, const PackedLayout& layout,
                  const CtcLabels& labels, std::span<const double> log_sum_exp,
                  std::span<const double> losses, std::span<const double> scales,
                  std::span<T> gradient) {
  const std::int64_t total = layout.total();
  if (total == 0) return;
  const std::int64_t classes = static_cast<std::int64_t>(logits.size()) / total;
  const std::int64_t table =
      most(layout, labels, [](std::int64_t steps, std::int64_t count) { return steps * count; });
  const std::int64_t states =
      most(layout, labels, [](std::int64_t, std::int64_t count) { return count; });
  for_sequences(context, layout, table + states + classes, total * (states + classes) * kExpBytes,
                [&](std::int64_t n, double* scratch) {
                  const Alignment<T> alignment(logits, log_sum_exp, layout, labels, n);
                  const double loss = losses[at(n)], scale = scales[at(n)];
                  if (scale == 0 || loss == -kNever) {
                    for (std::int64_t t = 0; t < alignment.steps(); ++t) {
                      T* const to = gradient.data() + alignment.row(t) * classes;
                      std::fill(to, to + classes, T{0});
                    }
                  } else if (alignment.steps() > 0) {
                    gradient_of(alignment, logits, log_sum_exp, loss, scale, scratch,
                                scratch + table, scratch + table + states, gradient);
                  }
                });
}

#define PACKRNN_CTC(T)                                                                            \
  template void ctc(Context&, std::span<const T>, const PackedLayout&, const CtcLabels&,          \
                    std::span<double>, std::span<double>);                                        \
  template void ctc_backward(Context&, std::span<const T>, const PackedLayout&, const CtcLabels&, \
                             std::span<const double>, std::span<const double>,                    \
                             std::span<const double>, std::span<T>);
PACKRNN_CTC(float)
PACKRNN_CTC(double)
#undef PACKRNN_CTC

}  // namespace packrnn::kernels::cpu

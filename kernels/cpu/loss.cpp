#include "packrnn/kernels/cpu/loss.hpp"

#include <algorithm>
#include <cmath>

#include "packrnn/kernels/cpu/log_sum_exp.hpp"
#include "packrnn/kernels/cpu/parallel_for.hpp"

namespace packrnn::kernels::cpu {
namespace {

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

// Elements of each of `rows` equal parts; 1 where there are none, which no loop will see.
std::int64_t part_of(std::size_t elements, std::size_t rows) {
  return rows == 0 ? 1 : static_cast<std::int64_t>(elements / rows);
}

// Calls body(row) for all rows, spread over the threads.
template <class Body>
void for_rows(ThreadPool& pool, std::size_t rows, std::int64_t row_bytes, const Body& body) {
  parallel_for(pool, static_cast<std::int64_t>(rows), row_bytes,
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t row = begin; row < end; ++row) body(row);
               });
}

// Weights that are repeated; ones where not defined.
class Weights {
 public:
  explicit Weights(const TensorView& weights) {
    if (weights.defined()) values_ = weights.values<double>();
  }
  double operator[](std::int64_t i) const {
    return values_.empty() ? 1.0 : values_[at(i) % values_.size()];
  }

 private:
  std::span<const double> values_;
};

double weighted(double weight, double value) { return weight == 0 ? 0 : weight * value; }

// The weights of a row's terms: of its target's, and of each class's besides.
struct Smoothing {
  double target, others;
};
Smoothing smoothing_of(const CrossEntropy& terms, std::int64_t classes) {
  return {1 - terms.label_smoothing, terms.label_smoothing / static_cast<double>(classes)};
}

// log(1 + exp(x)) and its derivative, without an exponential that overflows.
double softplus(double x) { return std::log1p(std::exp(-std::abs(x))) + std::max(x, 0.0); }
double logistic(double x) {
  const double small = std::exp(-std::abs(x));
  return (x < 0 ? small : 1) / (1 + small);
}

// One element's loss and its derivative.
struct SquaredError {
  double loss(std::int64_t, double x, double y) const { return (x - y) * (x - y); }
  double derivative(std::int64_t, double x, double y) const { return 2 * (x - y); }
};

struct BinaryCrossEntropy {
  Weights pos_weight;

  // Both terms are positive: nothing cancels.
  double loss(std::int64_t i, double x, double y) const {
    return weighted(1 - y, softplus(x)) + weighted(pos_weight[i] * y, softplus(-x));
  }
  double derivative(std::int64_t i, double x, double y) const {
    return (1 - y) * logistic(x) - pos_weight[i] * y * logistic(-x);
  }
};

template <class Body>
void with_element(const ElementTerms& terms, const Body& body) {
  if (terms.loss == ElementLoss::squared_error)
    body(SquaredError{});
  else
    body(BinaryCrossEntropy{Weights(terms.pos_weight)});
}

}  // namespace

template <class T>
void cross_entropy(ThreadPool& pool, const CrossEntropy& terms, std::span<const T> logits,
                   std::span<const std::int64_t> targets, std::span<double> log_sum_exp,
                   std::span<double> losses, std::span<double> weights) {
  const std::int64_t classes = part_of(logits.size(), targets.size());
  const Weights of_class(terms.class_weights);
  const Smoothing smoothing = smoothing_of(terms, classes);
  for_rows(pool, targets.size(), classes * kExpBytes, [&](std::int64_t m) {
    const T* const row = logits.data() + m * classes;
    const std::int64_t y = targets[at(m)];
    const double whole = cpu::log_sum_exp(row, classes);
    double loss = 0, weight = 0;
    if (y != terms.ignore_index) {
      weight = of_class[y];
      loss = weighted(smoothing.target * weight, whole - static_cast<double>(row[y]));
      for (std::int64_t c = 0; smoothing.others > 0 && c < classes; ++c)
        loss += weighted(smoothing.others * of_class[c], whole - static_cast<double>(row[c]));
    }
    log_sum_exp[at(m)] = whole;
    losses[at(m)] = loss;
    if (!weights.empty()) weights[at(m)] = weight;
  });
}

template <class T>
void cross_entropy_backward(ThreadPool& pool, const CrossEntropy& terms, std::span<const T> logits,
                            std::span<const std::int64_t> targets,
                            std::span<const double> log_sum_exp, std::span<const double> scales,
                            std::span<T> gradient) {
  const std::int64_t classes = part_of(logits.size(), targets.size());
  const Weights weights(terms.class_weights);
  const Smoothing smoothing = smoothing_of(terms, classes);
  double all = 0;
  for (std::int64_t c = 0; c < classes; ++c) all += smoothing.others * weights[c];
  for_rows(pool, targets.size(), classes * kExpBytes, [&](std::int64_t m) {
    const T* const row = logits.data() + m * classes;
    T* const to = gradient.data() + m * classes;
    const std::int64_t y = targets[at(m)];
    const double scale = scales[at(m)];
    const double own = y == terms.ignore_index ? 0 : smoothing.target * weights[y];
    const double terms_weight = y == terms.ignore_index ? 0 : own + all;
    if (scale == 0 || terms_weight == 0) {
      std::fill(to, to + classes, T{0});
      return;
    }
    for (std::int64_t c = 0; c < classes; ++c) {
      const double p = std::exp(static_cast<double>(row[c]) - log_sum_exp[at(m)]);
      const double wanted = smoothing.others * weights[c] + (c == y ? own : 0);
      to[c] = static_cast<T>(scale * (p * terms_weight - wanted));
    }
  });
}

template <class T>
void element_losses(ThreadPool& pool, const ElementTerms& terms, std::span<const T> input,
                    std::span<const T> target, std::span<double> losses) {
  const std::int64_t part = part_of(input.size(), losses.size());
  const Weights weights(terms.weight);
  with_element(terms, [&](const auto& element) {
    for_rows(pool, losses.size(), part * kExpBytes, [&](std::int64_t m) {
      double sum = 0;
      for (std::int64_t i = m * part; i < (m + 1) * part; ++i)
        sum += weighted(weights[i], element.loss(i, static_cast<double>(input[at(i)]),
                                                 static_cast<double>(target[at(i)])));
      losses[at(m)] = sum;
    });
  });
}

template <class T>
void element_losses_backward(ThreadPool& pool, const ElementTerms& terms, std::span<const T> input,
                             std::span<const T> target, std::span<const double> scales,
                             std::span<T> gradient) {
  const std::int64_t part = part_of(input.size(), scales.size());
  const Weights weights(terms.weight);
  with_element(terms, [&](const auto& element) {
    for_rows(pool, scales.size(), part * kExpBytes, [&](std::int64_t m) {
      for (std::int64_t i = m * part; i < (m + 1) * part; ++i)
        gradient[at(i)] = static_cast<T>(weighted(
            scales[at(m)] * weights[i], element.derivative(i, static_cast<double>(input[at(i)]),
                                                           static_cast<double>(target[at(i)]))));
    });
  });
}

template <class T>
void argmax(ThreadPool& pool, std::span<const T> rows, std::span<std::int64_t> result) {
  const std::int64_t classes = part_of(rows.size(), result.size());
  for_rows(pool, result.size(), classes * std::int64_t{sizeof(T)}, [&](std::int64_t m) {
    const T* const row = rows.data() + m * classes;
    std::int64_t best = 0;
    for (std::int64_t c = 1; c < classes && !std::isnan(row[best]); ++c)
      if (row[c] > row[best] || std::isnan(row[c])) best = c;
    result[at(m)] = best;
  });
}

#define PACKRNN_LOSSES(T)                                                                          \
  template void cross_entropy(ThreadPool&, const CrossEntropy&, std::span<const T>,                \
                              std::span<const std::int64_t>, std::span<double>, std::span<double>, \
                              std::span<double>);                                                  \
  template void cross_entropy_backward(ThreadPool&, const CrossEntropy&, std::span<const T>,       \
                                       std::span<const std::int64_t>, std::span<const double>,     \
                                       std::span<const double>, std::span<T>);                     \
  template void element_losses(ThreadPool&, const ElementTerms&, std::span<const T>,               \
                               std::span<const T>, std::span<double>);                             \
  template void element_losses_backward(ThreadPool&, const ElementTerms&, std::span<const T>,      \
                                        std::span<const T>, std::span<const double>,               \
                                        std::span<T>);                                             \
  template void argmax(ThreadPool&, std::span<const T>, std::span<std::int64_t>);
PACKRNN_LOSSES(float)
PACKRNN_LOSSES(double)
#undef PACKRNN_LOSSES

}  // namespace packrnn::kernels::cpu

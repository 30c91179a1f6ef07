#include "bench/device/roofline.hpp"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "bench/measure.hpp"

namespace packrnn::bench {
namespace {

struct Errors {
  double median = 0.0, max = 0.0;
};

Errors errors_of(std::span<const ModelPoint> points, double per_call, double per_step) {
  std::vector<double> errors;
  for (const ModelPoint& point : points)
    errors.push_back(
        std::abs((point.predicted_s + per_call + per_step * point.steps) / point.measured_s - 1.0));
  const double most = *std::max_element(errors.begin(), errors.end());
  return {median(std::move(errors)), most};
}

}  // namespace

Work work_of(std::int64_t gates, std::int64_t input, std::int64_t hidden,
             std::span<const std::int64_t> lengths, std::size_t element) {
  const auto g = static_cast<double>(gates), i = static_cast<double>(input),
             h = static_cast<double>(hidden), size = static_cast<double>(element);
  Work work;
  for (const std::int64_t length : lengths) {
    work.steps = std::max(work.steps, static_cast<double>(length));
    work.tokens += static_cast<double>(length);
  }
  work.input_flops = 2.0 * work.tokens * g * h * i;
  work.recurrent_flops = 2.0 * work.tokens * g * h * h;
  work.bytes = (work.tokens * (i + h) + g * h * (i + h)) * size;
  work.exchanged = work.tokens * h * size;
  return work;
}

Bound bound_of(const Work& work, const Ceilings& ceilings) {
  const auto time = [](double amount, double rate) { return rate > 0.0 ? amount / rate : 0.0; };
  const double traffic = time(work.bytes, ceilings.copy_bytes_per_s);
  const double arithmetic = time(work.input_flops, ceilings.flops_per_s);
  const double latency = work.steps * ceilings.mailbox_s;
  const double products = time(work.recurrent_flops, ceilings.flops_per_s);
  Bound bound{std::max(traffic, arithmetic), std::max(latency, products), "latency"};
  if (bound.input_s > bound.recurrent_s)
    bound.limited_by = traffic > arithmetic ? "traffic" : "arithmetic";
  else if (products > latency)
    bound.limited_by = "arithmetic";
  return bound;
}

ModelFit refit_model(std::span<const ModelPoint> all) {
  std::vector<ModelPoint> points;
  for (const ModelPoint& point : all)
    if (point.measured_s > 0.0) points.push_back(point);
  ModelFit fit;
  fit.points = static_cast<int>(points.size());
  if (points.empty()) return fit;

  // Normal equations of a + b steps = measured - predicted, each divided by its time.
  double aa = 0.0, ab = 0.0, bb = 0.0, ar = 0.0, br = 0.0;
  for (const ModelPoint& point : points) {
    const double a = 1.0 / point.measured_s, b = point.steps / point.measured_s;
    const double rest = 1.0 - point.predicted_s / point.measured_s;
    aa += a * a;
    ab += a * b;
    bb += b * b;
    ar += a * rest;
    br += b * rest;
  }
  constexpr double kSingular = 1e-9;
  const double determinant = aa * bb - ab * ab;
  if (determinant > kSingular * aa * bb) {
    fit.per_call_s = (ar * bb - br * ab) / determinant;
    fit.per_step_s = (aa * br - ab * ar) / determinant;
  } else if (bb > 0.0) {
    fit.per_step_s = br / bb;
  }
  const Errors before = errors_of(points, 0.0, 0.0);
  const Errors after = errors_of(points, fit.per_call_s, fit.per_step_s);
  fit.median_before = before.median;
  fit.max_before = before.max;
  fit.median_after = after.median;
  fit.max_after = after.max;
  return fit;
}

}  // namespace packrnn::bench

#include "packrnn/layers/schedules.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string_view>
#include <utility>

#include "packrnn/runtime/expects.hpp"

namespace packrnn {
namespace {

void expects_amount(std::string_view name, double value) {
  expects(std::isfinite(value) && value >= 0.0, "{} is {}, expected a finite number of 0 or more",
          name, value);
}

void expects_count(std::string_view name, std::int64_t value) {
  expects(value >= 1, "{} is {}, expected 1 or more", name, value);
}

void expects_step(std::int64_t step) { expects(step >= 0, "step is {}, expected 0 or more", step); }

}  // namespace

Schedule constant_schedule(double rate) {
  expects_amount("rate", rate);
  return [rate](std::int64_t step) {
    expects_step(step);
    return rate;
  };
}

Schedule step_schedule(double rate, std::int64_t every, double factor) {
  expects_amount("rate", rate);
  expects_amount("factor", factor);
  expects_count("every", every);
  return [=](std::int64_t step) {
    expects_step(step);
    const std::int64_t times = step / every;
    return rate * std::pow(factor, static_cast<double>(times));
  };
}

Schedule exponential_schedule(double rate, double factor) { return step_schedule(rate, 1, factor); }

Schedule cosine_schedule(double rate, std::int64_t steps, double lowest) {
  expects_amount("rate", rate);
  expects_amount("lowest", lowest);
  expects_count("steps", steps);
  return [=](std::int64_t step) {
    expects_step(step);
    if (step >= steps) return lowest;
    const double part = static_cast<double>(step) / static_cast<double>(steps);
    return lowest + (rate - lowest) * 0.5 * (1.0 + std::cos(std::numbers::pi * part));
  };
}

Schedule warm_up(std::int64_t steps, Schedule then) {
  expects_count("steps", steps);
  expects(then != nullptr, "the schedule after the warm-up is empty");
  return [steps, then = std::move(then)](std::int64_t step) {
    expects_step(step);
    if (step >= steps) return then(step - steps);
    return then(0) * static_cast<double>(step + 1) / static_cast<double>(steps);
  };
}

ReduceOnPlateau::ReduceOnPlateau(const PlateauOptions& options) : options_(options) {
  expects(options.factor >= 0.0 && options.factor < 1.0,
          "factor is {}, expected 0 or more and less than 1", options.factor);
  expects(options.patience >= 0, "patience is {}, expected 0 or more", options.patience);
  expects(options.threshold >= 0.0 && options.threshold < 1.0,
          "threshold is {}, expected 0 or more and less than 1", options.threshold);
  expects_amount("lowest", options.lowest);
}

double ReduceOnPlateau::next(double rate, double loss) {
  if (loss < best_ * (1.0 - options_.threshold)) {
    best_ = loss;
    bad_epochs_ = 0;
  } else if (++bad_epochs_ > options_.patience) {
    bad_epochs_ = 0;
    return std::min(rate, std::max(options_.lowest, rate * options_.factor));
  }
  return rate;
}

}  // namespace packrnn

#include "packrnn/layers/optimizers.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "packrnn/kernels/optimizer.hpp"
#include "packrnn/runtime/expects.hpp"

namespace packrnn {
namespace {

void expects_not_negative(std::string_view name, double value) {
  expects(std::isfinite(value) && value >= 0.0, "{} is {}, expected a finite number of 0 or more",
          name, value);
}

void expects_fraction(std::string_view name, double value) {
  expects(value >= 0.0 && value < 1.0, "{} is {}, expected 0 or more and less than 1", name, value);
}

Tensor scalar(double value) { return Tensor::from({value}, Shape{}); }
Tensor scalar(std::int64_t value) { return Tensor::from({value}, Shape{}); }

void expects_at(const Parameters& parameters, const Context& context) {
  expects(parameters.device() == context.device(),
          "the parameters are on {}, the context on {}; move them by parameters().to(context)",
          parameters.device(), context.device());
}

/// The one number under a name.
template <class T>
T number(const StateDict& source, std::string_view name) {
  const auto found = std::ranges::find(source, name, &NamedTensor::name);
  expects(found != source.end(), "the optimizer's state has no {}", name);
  const Tensor& tensor = found->tensor;
  expects(tensor.dtype() == kDtypeOf<T> && tensor.elements() == 1, "{} is {} {}, expected one {}",
          name, tensor.dtype(), tensor.shape(), kDtypeOf<T>);
  return tensor.values<T>()[0];
}

}  // namespace

Optimizer::Optimizer(const std::vector<Parameters*>& parameters, std::vector<std::string> moments,
                     double learning_rate, double weight_decay, const Decays& decays)
    : moments_(std::move(moments)) {
  set_learning_rate(learning_rate);
  expects_not_negative("weight_decay", weight_decay);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    expects(parameters[i] != nullptr, "parameters[{}] is null", i);
    const Parameters& set = *parameters[i];
    for (std::size_t before = 0; before < i; ++before)
      expects(set.count() == 0 || !overlap(set.values(), parameters[before]->values()),
              "parameters[{}] and parameters[{}] are the same", before, i);
    std::vector<double> each;
    for (std::int64_t k = 0; k < set.count(); ++k)
      each.push_back(!decays || decays(set.name(k)) ? weight_decay : 0.0);
    sets_.push_back({set.shared(), make_moments(set), std::move(each)});
  }
}

std::vector<Parameters> Optimizer::make_moments(const Parameters& parameters) const {
  std::vector<Parameters> result;
  const auto add = [&] {
    std::vector<Parameters::Declaration> list;
    for (std::int64_t i = 0; i < parameters.count(); ++i)
      list.push_back({parameters.name(i), parameters.value(i).shape()});
    result.emplace_back(std::move(list), parameters.gradient_dtype());
  };
  for (std::size_t moment = 0; moment < moments_.size(); ++moment) add();
  if (parameters.dtype() != parameters.gradient_dtype()) {
    add();
    result.back().load(parameters.state_dict());
  }
  return result;
}

std::string_view Optimizer::moment_name(std::size_t moment) const noexcept {
  return moment < moments_.size() ? std::string_view(moments_[moment]) : "master";
}

void Optimizer::zero_gradients() {
  for (Set& set : sets_) set.parameters.zero_gradients();
}

void Optimizer::set_learning_rate(double rate) {
  expects_not_negative("learning_rate", rate);
  learning_rate_ = rate;
}

StepReport Optimizer::step(Context& context, const StepOptions& options) {
  expects(std::isfinite(options.loss_scale) && options.loss_scale > 0.0,
          "loss_scale is {}, expected a positive number", options.loss_scale);
  expects(options.max_norm > 0.0, "max_norm is {}, expected a positive number", options.max_norm);
  expects(options.max_value > 0.0, "max_value is {}, expected a positive number",
          options.max_value);
  for (const Set& set : sets_)
    if (set.takes_part()) expects_at(set.parameters, context);
  for (const Set& set : sets_)
    if (set.takes_part()) set.parameters.hold_up(context);
  StepReport report{.gradient_norm = gradient_norm(context) / options.loss_scale};
  report.skipped = !std::isfinite(report.gradient_norm);
  if (report.skipped) return report;

  // The small number is PyTorch's, against division by zero.
  const double shorter = std::min(1.0, options.max_norm / (report.gradient_norm + 1e-6));
  const double factor = shorter / options.loss_scale;
  for (Set& set : sets_) {
    if (!set.takes_part()) continue;
    const TensorSpan gradients = set.parameters.gradients();
    if (factor != 1.0) kernels::scale(context, factor, gradients);
    if (std::isfinite(options.max_value)) kernels::clamp(context, options.max_value, gradients);
    update_set(context, set);
  }
  return report;
}

double Optimizer::gradient_norm(Context& context) {
  // One number for each set, so that the host waits for all of them at once.
  Tensor squares = context.zeros({std::ssize(sets_)}, Dtype::f64);
  for (std::int64_t k = 0; k < std::ssize(sets_); ++k)
    if (Set& set = sets_[static_cast<std::size_t>(k)]; set.takes_part())
      kernels::squared_norm(context, set.parameters.gradients(), squares.span().rows(k, k + 1));
  const Tensor on_host = context.to_host(squares);
  double sum = 0.0;
  for (const double square : on_host.values<double>()) sum += square;
  return std::sqrt(sum);
}

void Optimizer::update_set(Context& context, Set& set) {
  Parameters& parameters = set.parameters;
  for (Parameters& moment : set.moments) {
    moment.to(context);
    moment.hold_up(context);
  }
  ++set.steps;
  for (std::int64_t i = 0; i < parameters.count(); ++i) {
    Update one{.step = set.steps,
               .weight_decay = set.decays[static_cast<std::size_t>(i)],
               .value = parameters.change_value(i),
               .gradient = parameters.gradient(i),
               .moments = {},
               .rounded = {}};
    for (Parameters& moment : set.moments) one.moments.push_back(moment.change_value(i));
    if (set.has_master()) {
      one.rounded = one.value;
      one.value = one.moments.back();
      one.moments.pop_back();
    }
    update(context, one);
  }
}

StateDict Optimizer::state_dict() const {
  StateDict state;
  state.push_back({"learning_rate", scalar(learning_rate_)});
  for (std::size_t k = 0; k < sets_.size(); ++k) {
    state.push_back({fmt::format("{}.steps", k), scalar(sets_[k].steps)});
    for (std::size_t moment = 0; moment < sets_[k].moments.size(); ++moment)
      for (NamedTensor& item :
           sets_[k].moments[moment].state_dict(fmt::format("{}.{}.", k, moment_name(moment))))
        state.push_back(std::move(item));
  }
  return state;
}

void Optimizer::load(const StateDict& source) {
  const auto rate = number<double>(source, "learning_rate");
  expects_not_negative("learning_rate", rate);
  std::size_t names = 1;
  std::vector<Set> loaded;  // beside the old, which stays if anything does not fit
  for (std::size_t k = 0; k < sets_.size(); ++k) {
    const Parameters& parameters = sets_[k].parameters;
    Set set{parameters.shared(), make_moments(parameters), sets_[k].decays,
            number<std::int64_t>(source, fmt::format("{}.steps", k))};
    expects(set.steps >= 0, "{}.steps is {}, expected 0 or more", k, set.steps);
    for (std::size_t moment = 0; moment < set.moments.size(); ++moment)
      set.moments[moment].load(source, {.prefix = fmt::format("{}.{}.", k, moment_name(moment))});
    names += 1 + set.moments.size() * static_cast<std::size_t>(parameters.count());
    loaded.push_back(std::move(set));
  }
  // Each of our names is there once, so any more are somebody else's.
  expects(
      source.size() == names,
      "the state has {} tensors, the optimizer {}: it is of another kind or of other parameters",
      source.size(), names);
  sets_ = std::move(loaded);
  learning_rate_ = rate;
}

Sgd::Sgd(const std::vector<Parameters*>& parameters, const SgdOptions& options)
    : Optimizer(parameters,
                options.momentum != 0.0 ? std::vector<std::string>{"velocity"}
                                        : std::vector<std::string>{},
                options.learning_rate, options.weight_decay, options.decays),
      options_(options) {
  expects_fraction("momentum", options.momentum);
  expects(!options.nesterov || options.momentum > 0.0, "nesterov needs momentum, which is 0");
}

void Sgd::update(Context& context, const Update& update) const {
  kernels::sgd(context,
               {.learning_rate = learning_rate(),
                .momentum = options_.momentum,
                .nesterov = options_.nesterov,
                .decay = {update.weight_decay, options_.decoupled_decay}},
               update.value, update.gradient,
               update.moments.empty() ? TensorSpan{} : update.moments[0], update.rounded);
}

Adam::Adam(const std::vector<Parameters*>& parameters, const AdamOptions& options)
    : Optimizer(parameters, {"first", "second"}, options.learning_rate, options.weight_decay,
                options.decays),
      options_(options) {
  expects_fraction("beta1", options.beta1);
  expects_fraction("beta2", options.beta2);
  expects_not_negative("eps", options.eps);
}

void Adam::update(Context& context, const Update& update) const {
  kernels::adam(context,
                {.learning_rate = learning_rate(),
                 .beta1 = options_.beta1,
                 .beta2 = options_.beta2,
                 .eps = options_.eps,
                 .decay = {update.weight_decay, options_.decoupled_decay},
                 .number = update.step},
                update.value, update.gradient, update.moments[0], update.moments[1],
                update.rounded);
}

LossScaler::LossScaler(const LossScalerOptions& options)
    : options_(options), scale_(options.initial) {
  expects(std::isfinite(options.growth) && options.growth >= 1.0,
          "growth is {}, expected 1 or more", options.growth);
  expects(options.backoff > 0.0 && options.backoff <= 1.0,
          "backoff is {}, expected more than 0 and at most 1", options.backoff);
  expects(options.interval >= 1, "interval is {}, expected 1 or more", options.interval);
  restore(options.initial, 0);
}

void LossScaler::restore(double scale, std::int64_t good_steps) {
  expects(std::isfinite(scale) && scale > 0.0, "scale is {}, expected a positive number", scale);
  expects(good_steps >= 0, "good_steps is {}, expected 0 or more", good_steps);
  scale_ = scale;
  good_steps_ = good_steps;
}

void LossScaler::update(const StepReport& report) noexcept {
  if (report.skipped) {
    scale_ *= options_.backoff;
    good_steps_ = 0;
  } else if (++good_steps_ >= options_.interval) {
    scale_ *= options_.growth;
    good_steps_ = 0;
  }
}

}  // namespace packrnn

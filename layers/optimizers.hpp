// Stochastic gradient descent, Adam and AdamW, with clipping, mixed-precision loss scaling and
// exact resumption. The steps are PyTorch's, to the rounding of their last bits, and the same bits
// on the CPU and on a GPU if the gradients and their norm are.
//
//   Adam optimizer({&lstm.parameters(), &head.parameters()}, {.learning_rate = 1e-3});
//   for (...) {
//     optimizer.zero_gradients();
//     ... tape.backward(loss);
//     optimizer.step(context, {.max_norm = 1.0});
//   }
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "packrnn/layers/parameters.hpp"
#include "packrnn/runtime/context.hpp"

namespace packrnn {

struct StepOptions {
  /// What the loss was multiplied by; the gradients are divided by it first.
  double loss_scale = 1.0;
  /// Largest Euclidean norm of all gradients together; longer ones are shortened to it, as
  /// torch.nn.utils.clip_grad_norm_ does.
  double max_norm = std::numeric_limits<double>::infinity();
  /// Then each element is limited to [-max_value, max_value].
  double max_value = std::numeric_limits<double>::infinity();
};

struct StepReport {
  /// The gradients had an Inf or NaN: not a bit of anything was changed.
  bool skipped = false;
  /// Of all gradients together, divided by the loss scale, before clipping.
  double gradient_norm = 0.0;
};

/// What all optimizers have in common. Parameters belong to it by shared handles, so layers may be
/// moved. A set that is not trainable, or of which no backward asked for gradients, is passed over
/// with its decay, moments and count of steps. Used by one thread at a time; a step may not run
/// beside a forward of the same layers.
///
/// Parameters of 16 bits are trained with a copy in f32, the master: steps are taken there, and
/// each is rounded into the parameters once. A parameter that is assigned by somebody else, by
/// load() of its layer for one, takes its master with it at the next step.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// Of all sets, trainable or not.
  void zero_gradients();
  /// Changes the parameters by their gradients, which are left as the step used them: divided by
  /// the loss scale and clipped. The context is on the device that the parameters are on; moments
  /// and masters follow them there. On a GPU the host waits once, for the norm; a context of
  /// another stream than theirs waits for that, and what they are used for next the caller orders.
  /// Throws InvalidArgument for options that are not positive, for parameters elsewhere, and for
  /// what kernels found wrong before (Context::synchronize); then nothing has changed.
  StepReport step(Context& context, const StepOptions& options = {});

  double learning_rate() const noexcept { return learning_rate_; }
  /// Throws InvalidArgument unless finite and not negative.
  void set_learning_rate(double rate);

  /// Everything that a step reads besides parameters and gradients, for the same bits after a
  /// load(): `learning_rate`, and for set k of the constructor's list `k.steps` and
  /// `k.<moment>.<parameter>`, a master being a moment. In the host's memory.
  StateDict state_dict() const;
  /// Takes all of that or, throwing InvalidArgument with the differences, nothing.
  void load(const StateDict& source);

 protected:
  /// A null decay predicate means all parameters.
  using Decays = std::function<bool(std::string_view name)>;

  Optimizer(const std::vector<Parameters*>& parameters, std::vector<std::string> moments,
            double learning_rate, double weight_decay, const Decays& decays);

  /// One parameter with what belongs to it.
  struct Update {
    std::int64_t step;  // of its set, from 1
    double weight_decay;
    TensorSpan value;  // f32 or f64: of 16-bit parameters the master's
    TensorView gradient;
    std::vector<TensorSpan> moments;
    TensorSpan rounded;  // the 16-bit parameter; else not defined
  };
  virtual void update(Context& context, const Update& update) const = 0;

 private:
  /// The moments are of the gradients' dtype, each a set of its own under the same names; the last
  /// of 16-bit parameters is the master.
  struct Set {
    Parameters parameters;
    std::vector<Parameters> moments;
    std::vector<double> decays;  // of each parameter
    std::int64_t steps = 0;

    bool has_master() const noexcept { return parameters.dtype() != parameters.gradient_dtype(); }
    bool takes_part() const noexcept {
      return parameters.trainable() && parameters.has_gradients();
    }
  };

  std::vector<Parameters> make_moments(const Parameters& parameters) const;
  /// Name of a set's moment.
  std::string_view moment_name(std::size_t moment) const noexcept;
  /// Of all sets that take part. Waits for a GPU.
  double gradient_norm(Context& context);
  void update_set(Context& context, Set& set);

  std::vector<Set> sets_;
  std::vector<std::string> moments_;  // names, masters left out
  double learning_rate_ = 0.0;
};

struct SgdOptions {
  double learning_rate = 1e-3;
  /// 0 (none) to 1, 1 excluded. The velocity is not dampened.
  double momentum = 0.0;
  /// Needs momentum.
  bool nesterov = false;
  double weight_decay = 0.0;
  /// Decay shrinks the weights themselves instead of being added to the gradients.
  bool decoupled_decay = false;
  /// Which parameters decay, by their names; all when not set. Biases left out:
  /// [](std::string_view name) { return !name.starts_with("bias"); }
  std::function<bool(std::string_view name)> decays = {};
};

/// kernels/optimizer.hpp has the equations.
class Sgd : public Optimizer {
 public:
  /// Throws InvalidArgument for an option out of its range, a null or a set given twice.
  explicit Sgd(const std::vector<Parameters*>& parameters, const SgdOptions& options = {});

 private:
  void update(Context& context, const Update& update) const override;

  SgdOptions options_;
};

/// AdamW is {.weight_decay = 0.01, .decoupled_decay = true}.
struct AdamOptions {
  double learning_rate = 1e-3;
  /// 0 to 1, 1 excluded.
  double beta1 = 0.9, beta2 = 0.999;
  double eps = 1e-8;
  /// As for Sgd.
  double weight_decay = 0.0;
  bool decoupled_decay = false;
  std::function<bool(std::string_view name)> decays = {};
};

/// kernels/optimizer.hpp has the equations.
class Adam : public Optimizer {
 public:
  /// As Sgd.
  explicit Adam(const std::vector<Parameters*>& parameters, const AdamOptions& options = {});

 private:
  void update(Context& context, const Update& update) const override;

  AdamOptions options_;
};

struct LossScalerOptions {
  double initial = 65536.0;
  double growth = 2.0;   // at least 1
  double backoff = 0.5;  // above 0, at most 1
  /// Steps in a row without an Inf or NaN after which the scale grows.
  std::int64_t interval = 2000;
};

/// Finds the largest loss scale whose gradients stay finite, for training in 16 bits:
///   tape.backward(loss, scaler.scale());
///   scaler.update(optimizer.step(context, {.loss_scale = scaler.scale()}));
class LossScaler {
 public:
  /// Throws InvalidArgument for an option out of its range.
  explicit LossScaler(const LossScalerOptions& options = {});

  double scale() const noexcept { return scale_; }
  /// Steps since the scale last changed.
  std::int64_t good_steps() const noexcept { return good_steps_; }
  /// Takes up where another one was. Throws InvalidArgument unless scale > 0 and good_steps >= 0.
  void restore(double scale, std::int64_t good_steps);
  void update(const StepReport& report) noexcept;

 private:
  LossScalerOptions options_;
  double scale_;
  std::int64_t good_steps_ = 0;
};

}  // namespace packrnn

// Learning rates as functions of the step, counted from 0; they have no state, so a resumed run
// needs only its step.
//
//   const Schedule schedule = warm_up(100, cosine_schedule(1e-3, 10'000));
//   optimizer.set_learning_rate(schedule(step));
//
// All makers throw InvalidArgument for rates and factors that are negative or not finite and for
// counts below 1; the schedules throw it for a negative step.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>

namespace packrnn {

using Schedule = std::function<double(std::int64_t step)>;

Schedule constant_schedule(double rate);
/// rate * factor^floor(step / every).
Schedule step_schedule(double rate, std::int64_t every, double factor = 0.1);
/// rate * factor^step.
Schedule exponential_schedule(double rate, double factor);
/// Half a wave of the cosine from rate at step 0 to lowest at `steps`, and lowest from then on
/// (Loshchilov, Hutter: "SGDR: stochastic gradient descent with warm restarts", ICLR 2017, without
/// restarts).
Schedule cosine_schedule(double rate, std::int64_t steps, double lowest = 0.0);
/// Rises linearly during the first `steps` steps, of which step k has (k + 1) / steps of the rate
/// that `then` begins with; then follows `then`, whose own steps begin there.
Schedule warm_up(std::int64_t steps, Schedule then);

struct PlateauOptions {
  double factor = 0.1;         // 0 to 1
  std::int64_t patience = 10;  // epochs without improvement that are let pass
  double threshold = 1e-4;     // an improvement is a loss below (1 - threshold) of the best
  double lowest = 0.0;         // rate below which it does not go
};

/// Lowers the rate when a loss stops falling, as PyTorch's ReduceLROnPlateau does by default:
///   optimizer.set_learning_rate(plateau.next(optimizer.learning_rate(), validation_loss));
class ReduceOnPlateau {
 public:
  /// Throws InvalidArgument for an option out of its range.
  explicit ReduceOnPlateau(const PlateauOptions& options = {});

  /// The rate after an epoch with this loss; a NaN is no improvement.
  double next(double rate, double loss);

  /// What a later run goes on with.
  double best() const noexcept { return best_; }
  std::int64_t bad_epochs() const noexcept { return bad_epochs_; }
  void restore(double best, std::int64_t bad_epochs) noexcept {
    best_ = best;
    bad_epochs_ = bad_epochs;
  }

 private:
  PlateauOptions options_;
  double best_ = std::numeric_limits<double>::infinity();
  std::int64_t bad_epochs_ = 0;  // in a row
};

}  // namespace packrnn

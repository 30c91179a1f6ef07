// What a forward pass has to do at least, what a device could do it in, and how far the
// latency model is from what was measured. Arithmetic only: nothing here runs anything.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace packrnn::bench {

/// The work of one layer in one direction on one batch.
struct Work {
  double steps = 0.0;            // the longest sequence: so many steps follow one another
  double tokens = 0.0;           // rows of all steps
  double input_flops = 0.0;      // x W_ih^T, all steps at once
  double recurrent_flops = 0.0;  // h W_hh^T, step after step
  double bytes = 0.0;            // x, y and the weights, each once
  double exchanged = 0.0;        // bytes of h that go from step to step
};

/// `element` is the size of a value in bytes.
Work work_of(std::int64_t gates, std::int64_t input, std::int64_t hidden,
             std::span<const std::int64_t> lengths, std::size_t element);

/// What the device was measured to do at best.
struct Ceilings {
  double copy_bytes_per_s = 0.0;  // read and written together
  double flops_per_s = 0.0;       // matrix products in the dtype and math that is used
  double mailbox_s = 0.0;         // a value from one block to another, through memory
  double barrier_s = 0.0;         // all blocks wait for each other
};

/// The roofline: no forward pass is faster than this.
struct Bound {
  double input_s = 0.0;           // the input product, by arithmetic or by traffic
  double recurrent_s = 0.0;       // the recurrence, by latency or by arithmetic
  std::string_view limited_by{};  // of the longer part: "latency", "arithmetic" or "traffic"

  double seconds() const { return input_s + recurrent_s; }
};

/// A ceiling that is 0 (not measured) bounds nothing.
Bound bound_of(const Work& work, const Ceilings& ceilings);

/// A measured run beside what the model of kernels/cuda/cost_model.hpp says.
struct ModelPoint {
  double predicted_s = 0.0, measured_s = 0.0;
  double steps = 0.0;
};

/// measured = predicted + per_call_s + per_step_s * steps: what to add to the model's constants
/// `startup` and `pointwise`, and |model / measured - 1| before and after.
struct ModelFit {
  int points = 0;
  double per_call_s = 0.0, per_step_s = 0.0;
  double median_before = 0.0, max_before = 0.0, median_after = 0.0, max_after = 0.0;
};

/// Least squares of the relative errors. Points without a positive time do not count; where all
/// have as many steps, the whole correction is per step.
ModelFit refit_model(std::span<const ModelPoint> points);

}  // namespace packrnn::bench

// How far a right engine may be from the double-precision reference. Nothing here is chosen by
// looking at an engine's errors: the bound follows from the precision, the number of accumulated
// terms, the steps, the layers, and the size of the numbers that occur.
//
// The model, with u the unit roundoff (half the spacing of numbers around 1):
//
// - A dot product of K terms is one chain of K fused multiply-adds. Each rounds its partial sum s,
//   an error of at most u |s|. In the worst case these add up to K u S, S the largest partial sum.
//   But they are independent and their signs are random, so the total is a random walk: standard
//   deviation at most sqrt(K) u S / sqrt(3), 1/sqrt(3) being the deviation of a uniform error in
//   [-1, 1]. Engines that split the chain, add in blocks, or round less are below that.
// - We allow kDeviations = 4 of them. A normal variable is beyond that once in 16000, and S is the
//   largest partial sum of the whole run while most are far below it.
// - A state kept in a narrower type rounds once more per step, at most u_storage S, through the
//   same sums.
// - Each step adds its error to the state, and each layer adds its own to what comes from below.
//   Errors that are neither damped nor amplified walk too: sqrt(T L). Gates damp, so long
//   sequences stay well below. A network that amplifies (weights far beyond 1 / sqrt(H)) is
//   chaotic, and no engine can be held to it: do not test with one.
// - Exponential and tanh are allowed 6 units in the last place each, that is 12 u of a value that
//   is at most 1, and four such values meet in one output (i g, f, o, tanh c): 48 u. Linear,
//   because the error of an approximation is not random: it repeats for equal arguments.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "tests/reference/rnn.hpp"

namespace packrnn::reference {

// Unit roundoffs of the sums and of what is kept between steps.
struct Precision {
  double arithmetic;
  double storage;
};
inline constexpr Precision kF64{0x1p-53, 0x1p-53};
inline constexpr Precision kF32{0x1p-24, 0x1p-24};
inline constexpr Precision kF16{0x1p-24, 0x1p-11};  // states and data in f16, sums in f32
inline constexpr Precision kBf16{0x1p-24, 0x1p-8};  // states and data in bf16, sums in f32
// Data in f32. Both factors of a product are rounded to 11 bits by tf32; tf32x3 leaves out the
// product of the last parts, 2^-22 of the whole, and cuts those parts. Tensor cores cut sums.
inline constexpr Precision kTf32{0x1p-23, 0x1p-10};
inline constexpr Precision kTf32x3{0x1p-22, 0x1p-21};

// For an engine whose weights and inputs were rounded too, to what it keeps states in: a factor of
// each product besides the state, and the input, may be off by as much as a state.
[[nodiscard]] inline Precision with_rounded_weights(const Precision& precision) {
  return {precision.arithmetic, 3 * precision.storage};
}

struct Work {
  std::int64_t terms = 1;   // K: the most terms in any one sum
  std::int64_t steps = 1;   // T: of the longest sequence compared
  std::int64_t layers = 1;  // L
  double magnitude = 1.0;   // S: Result::magnitude, the largest over the sequences compared
};

// What a layer stack does. K is input width plus state width of the widest layer: two biases, the
// input terms and the recurrent terms end in one sum.
[[nodiscard]] inline Work work(const Config& config, std::int64_t steps, double magnitude) {
  const std::int64_t P = config.state_size();
  const std::int64_t above = config.num_layers > 1 ? config.directions() * P : 0;
  const std::int64_t widest = std::max(config.input_size, above) + P + 2;
  return {std::max(widest, config.proj_size > 0 ? config.hidden_size : 0),
          std::max<std::int64_t>(steps, 1), config.num_layers, magnitude};
}

inline constexpr double kDeviations = 4.0;
inline constexpr double kActivationUlps = 6.0;
inline constexpr double kActivationsPerOutput = 4.0;

// The largest allowed |computed - reference| of any element of the outputs, states or cell states.
// Absolute: S already carries the scale of values that can exceed 1 (c, projected h, relu).
[[nodiscard]] inline double tolerance(const Precision& precision, const Work& work) {
  const double u = precision.arithmetic;
  const double K = static_cast<double>(work.terms);
  const double walk = std::sqrt(static_cast<double>(work.steps * work.layers));
  const double per_step =
      work.magnitude * std::sqrt(K * u * u + precision.storage * precision.storage);
  return kDeviations / std::sqrt(3.0) * per_step * walk +
         2.0 * kActivationUlps * kActivationsPerOutput * u;
}

}  // namespace packrnn::reference

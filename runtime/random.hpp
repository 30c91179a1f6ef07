// Random numbers for layers: a seed and streams drawn from it, over the generator of philox.hpp.
#pragma once

#include <cstdint>

#include "packrnn/runtime/philox.hpp"
#include "packrnn/runtime/tensor.hpp"

namespace packrnn {

/// A seed and the number of draws taken from it. Each draw() names an independent stream.
class Generator {
 public:
  explicit Generator(std::uint64_t seed = 0) noexcept : seed_(seed) {}

  std::uint64_t seed() const noexcept { return seed_; }
  /// The number that the next draw() will return.
  std::uint64_t position() const noexcept { return position_; }
  /// Reserves the next stream and returns its number.
  std::uint64_t draw() noexcept { return position_++; }
  /// Starts again: the draws after reseed(s) repeat those after any other reseed(s).
  void reseed(std::uint64_t seed, std::uint64_t position = 0) noexcept {
    seed_ = seed;
    position_ = position;
  }

 private:
  std::uint64_t seed_;
  std::uint64_t position_ = 0;
};

/// Assigns independent numbers of [low, high) to a floating tensor (one draw of the generator);
/// element j depends only on (seed, draw, j) and the dtype. 53 random bits in f64, else 24;
/// rounding to the dtype may give `high` itself.
void fill_uniform(Generator& generator, const TensorSpan& target, double low, double high);

/// Assigns independent numbers of N(mean, deviation^2) to a floating tensor (one draw of the
/// generator), by the transform of Box and Muller in double; elements 2 j and 2 j + 1 depend only
/// on (seed, draw, j) and the dtype.
void fill_normal(Generator& generator, const TensorSpan& target, double mean = 0.0,
                 double deviation = 1.0);

}  // namespace packrnn

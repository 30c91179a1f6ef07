#include "packrnn/runtime/random.hpp"

#include <cmath>
#include <numbers>
#include <type_traits>

#include "packrnn/runtime/element.hpp"
#include "packrnn/runtime/expects.hpp"

namespace packrnn {
namespace {

std::uint32_t low_word(std::uint64_t value) noexcept { return static_cast<std::uint32_t>(value); }
std::uint32_t high_word(std::uint64_t value) noexcept {
  return static_cast<std::uint32_t>(value >> 32);
}

/// A number of [0, 1) from 53 of 64 random bits.
double uniform53(std::uint32_t high, std::uint32_t low) noexcept {
  const std::uint64_t bits = static_cast<std::uint64_t>(high) << 32 | low;
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

/// A number of (0, 1], of which there is a logarithm.
double positive_uniform53(std::uint32_t high, std::uint32_t low) noexcept {
  return uniform53(high, low) + 0x1p-53;
}

void expects_floating(const TensorSpan& target) {
  expects(target.defined() && is_floating(target.dtype()), "target is {}, but must be floating",
          target.defined() ? name_of(target.dtype()) : "not defined");
}

}  // namespace

void fill_uniform(Generator& generator, const TensorSpan& target, double low, double high) {
  expects_floating(target);
  expects(std::isfinite(low) && std::isfinite(high) && low <= high && std::isfinite(high - low),
          "numbers of [{}, {}) were asked for; the bounds must be finite and in order", low, high);
  with_dtype(target.dtype(), [&]<class T>(std::type_identity<T>) {
    const std::span<T> values = target.values<T>();  // checks the device: before the draw
    const std::uint64_t stream = generator.draw();
    const PhiloxKey key{low_word(generator.seed()), high_word(generator.seed())};
    constexpr std::size_t kWords = std::is_same_v<T, double> ? 2 : 1;
    constexpr std::size_t kPerBlock = 4 / kWords;
    for (std::size_t begin = 0; begin < values.size(); begin += kPerBlock) {
      const std::uint64_t block = begin / kPerBlock;
      const PhiloxCounter random = philox4x32_10(
          {low_word(block), high_word(block), low_word(stream), high_word(stream)}, key);
      for (std::size_t i = 0; i < kPerBlock && begin + i < values.size(); ++i) {
        const double unit = kWords == 2 ? uniform53(random[2 * i % 4], random[(2 * i + 1) % 4])
                                        : uniform01(random[i]);
        values[begin + i] = convert_element<T>(low + (high - low) * unit);
      }
    }
  });
}

void fill_normal(Generator& generator, const TensorSpan& target, double mean, double deviation) {
  expects_floating(target);
  expects(std::isfinite(mean) && std::isfinite(deviation) && deviation >= 0.0,
          "numbers of N({}, {}^2) were asked for; both must be finite, the second not negative",
          mean, deviation);
  with_dtype(target.dtype(), [&]<class T>(std::type_identity<T>) {
    const std::span<T> values = target.values<T>();  // checks the device: before the draw
    const std::uint64_t stream = generator.draw();
    const PhiloxKey key{low_word(generator.seed()), high_word(generator.seed())};
    for (std::size_t i = 0; i < values.size(); i += 2) {
      const std::uint64_t pair = i / 2;
      const PhiloxCounter bits = philox4x32_10(
          {low_word(pair), high_word(pair), low_word(stream), high_word(stream)}, key);
      // In double whatever T is: float uniforms would end the tails at 5.8.
      const double radius = std::sqrt(-2.0 * std::log(positive_uniform53(bits[0], bits[1])));
      const double angle = 2.0 * std::numbers::pi * positive_uniform53(bits[2], bits[3]);
      values[i] = convert_element<T>(mean + deviation * (radius * std::cos(angle)));
      if (i + 1 < values.size())
        values[i + 1] = convert_element<T>(mean + deviation * (radius * std::sin(angle)));
    }
  });
}

}  // namespace packrnn

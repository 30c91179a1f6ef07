// Random choices for data made by rule: the same on every platform, as those of the standard
// library's distributions are not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <utility>

namespace packrnn::rrn {

class Draws {
 public:
  /// A stream for each purpose: other draws for one do not change those for another.
  explicit Draws(std::uint64_t seed, std::uint64_t stream = 0)
      : engine_(seed * 0x9E3779B97F4A7C15U + stream) {}

  /// One of 0 .. count - 1, all as likely but for one part in 2^64 / count.
  std::size_t below(std::size_t count) { return static_cast<std::size_t>(engine_() % count); }
  /// One of low .. high.
  std::size_t between(std::size_t low, std::size_t high) { return low + below(high - low + 1); }
  template <class T>
  const T& of(std::span<const T> choices) {
    return choices[below(choices.size())];
  }
  template <class T>
  void shuffle(std::span<T> items) {
    for (std::size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[below(i)]);
  }

 private:
  std::mt19937_64 engine_;
};

}  // namespace packrnn::rrn

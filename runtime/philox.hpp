// Counter-based random numbers: Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random
// numbers: as easy as 1, 2, 3", SC 2011). A number is a pure function of key and counter, so order
// of computation, threads and sharding cannot change it. Constexpr, so that kernels can call it.
#pragma once

#include <array>
#include <cstdint>

namespace packrnn {

using PhiloxCounter = std::array<std::uint32_t, 4>;
using PhiloxKey = std::array<std::uint32_t, 2>;

/// The ten-round Philox4x32 bijection.
constexpr PhiloxCounter philox4x32_10(PhiloxCounter counter, PhiloxKey key) noexcept {
  constexpr int kRounds = 10;
  constexpr std::uint32_t kMultiply0 = 0xD2511F53U, kMultiply1 = 0xCD9E8D57U;
  constexpr std::uint32_t kWeyl0 = 0x9E3779B9U, kWeyl1 = 0xBB67AE85U;
  for (int round = 0; round < kRounds; ++round) {
    const std::uint64_t p0 = static_cast<std::uint64_t>(kMultiply0) * counter[0];
    const std::uint64_t p1 = static_cast<std::uint64_t>(kMultiply1) * counter[2];
    counter = {
        static_cast<std::uint32_t>(p1 >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(p1),
        static_cast<std::uint32_t>(p0 >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(p0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

/// A number of [0, 1) from 32 random bits, exact in float (24 bits used).
constexpr float uniform01(std::uint32_t bits) noexcept {
  return static_cast<float>(bits >> 8) * 0x1p-24F;
}

}  // namespace packrnn

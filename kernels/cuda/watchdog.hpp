// How long a persistent kernel waits for a neighbour. Private, plain host code.
#pragma once

#include <cstdint>
#include <cstdlib>

namespace packrnn::kernels::cuda {

/// How long one wait may last before the kernel gives up and reports a fault: PACKRNN_WATCHDOG_MS
/// in the environment (0: for ever), else 5 seconds, which no step takes.
inline std::uint64_t watchdog_ns() {
  const char* const text = std::getenv("PACKRNN_WATCHDOG_MS");
  char* end = nullptr;
  const unsigned long long ms = text ? std::strtoull(text, &end, 10) : 5000;
  return (text && (end == text || *end != '\0') ? 5000 : ms) * 1'000'000;
}

}  // namespace packrnn::kernels::cuda

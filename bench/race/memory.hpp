// How much memory something takes at its peak.
#pragma once

#include <cstdint>
#include <functional>

namespace packrnn::bench {

/// Bytes that `run` adds to the resident memory of this process at its peak, by Linux's high-water
/// mark; memory that was freed earlier is given back first. 0 where the system does not say.
std::int64_t peak_of(const std::function<void()>& run);

}  // namespace packrnn::bench

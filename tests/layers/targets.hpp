// The instruction sets that this CPU has, one at a time: a user's CPU may be another.
#pragma once

#include <hwy/targets.h>

#include <cstdint>
#include <set>
#include <string>

#include "packrnn/kernels/cpu_target.hpp"
#include "tests/catch.hpp"

namespace packrnn::tests {

/// Restricts dispatch to one target while it lives. Packed weights are of one target: no layer may
/// be used across this.
class OnlyTarget {
 public:
  explicit OnlyTarget(std::int64_t target) { set(target); }
  ~OnlyTarget() { set(0); }
  OnlyTarget(const OnlyTarget&) = delete;
  OnlyTarget& operator=(const OnlyTarget&) = delete;

 private:
  static void set(std::int64_t target) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().DeInit();
  }
};

/// Calls body() with each target that the kernels are compiled for; returns how many there are.
template <class Body>
std::size_t for_every_target(Body&& body) {
  std::set<std::string> seen;
  for (std::int64_t left = hwy::SupportedTargets(); left != 0; left &= left - 1) {
    const OnlyTarget only(left & -left);
    // Another target falls back to one that was seen or will be.
    if (!seen.insert(kernels::cpu_target()).second) continue;
    CAPTURE(kernels::cpu_target());
    body();
  }
  return seen.size();
}

}  // namespace packrnn::tests

// Runs a test body once for every instruction set that the kernels are compiled for and this CPU
// has. Weights packed for one must not be used with another, so bodies make their own.
#pragma once

// In this order: Highway's header must know which targets there are.
// clang-format off
#include "packrnn/kernels/cpu/targets.hpp"
#include <hwy/targets.h>
// clang-format on

#include "packrnn/runtime/device.hpp"
#include "tests/catch.hpp"
#include "tests/shapes.hpp"

/// For cases that ask for the CPU whatever the device under test: once is enough.
#define NEEDS_THE_CPU                                        \
  if (::packrnn::Device::best() != ::packrnn::Device::cpu()) \
  PACKRNN_SKIP("the device under test is a GPU")

namespace packrnn {

template <class Body>
void for_each_cpu_target(Body&& body) {
  struct Restore {
    ~Restore() { hwy::SetSupportedTargetsForTest(0); }
  } restore;
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    body(hwy::TargetName(target));
  }
}

}  // namespace packrnn

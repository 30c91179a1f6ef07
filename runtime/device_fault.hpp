// What kernels report to the host without making it wait; private. The first fault of a kernel is
// kept: it writes the code by compare-and-swap from none, and whoever wins writes the values. The
// host reads it after the next wait, throws its message and clears it.
#pragma once

#include <cstdint>

namespace packrnn {

enum class FaultCode : std::uint32_t {
  none,
  watchdog,         // step, row, block, unit or part of it: a persistent kernel gave up waiting
  length_negative,  // position, value
  length_fraction,  // position: a floating length is no whole number
  length_capacity,  // position, value, capacity in steps
  rows_capacity,    // sum of the lengths, capacity in rows
  length_order,     // position, value, value before it: not decreasing, but must be
  index_range,      // position, value, first legal value, end of the legal ones
  cluster,          // rank, size: a cluster was launched in another size
  target_class,     // position, value, last class, value that is left out
  target_label,     // position, value, last class, the blank
  target_chance,    // position, value as a real: a target of binary cross entropy
  class_weight,     // class, value as a real
  count,            // of codes, not one of them
};

/// In device memory; 40 bytes that the host reads as they are.
struct DeviceFault {
  std::uint32_t code;  // FaultCode
  std::uint32_t reserved;
  std::int64_t values[4];
};

/// Throws InvalidArgument if the fault is the caller's mistake, else DeviceError; returns if it is
/// none.
void throw_fault(const DeviceFault& fault);

}  // namespace packrnn

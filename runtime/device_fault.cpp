#include "packrnn/runtime/device_fault.hpp"

#include <array>
#include <bit>

#include "packrnn/runtime/expects.hpp"

namespace packrnn {
namespace {

struct Meaning {
  bool callers = false;  // mistake, not the device's
  const char* message = nullptr;
  bool real = false;  // values[1] are the bits of a double
};

// In the order of FaultCode; {} are the values, of which a message may use the first few.
constexpr std::array<Meaning, static_cast<std::size_t>(FaultCode::count)> kMeanings{{
    {false, "a kernel reported a fault without a code"},
    {false,
     "a persistent kernel gave up at step {} waiting for row {} (block {}, part {}): part of it "
     "was not running, because other work holds the device, or waited for data that never came. "
     "What the call was to write is incomplete. Set PACKRNN_ALGORITHM=step to do without such "
     "kernels"},
    {true, "lengths[{}] is {}, but must not be negative"},
    {true, "lengths[{}] is not a whole number up to 2^53, but must be"},
    {true, "lengths[{}] is {}, but the layout was made for at most {} steps"},
    {true, "the lengths sum to {}, but the layout was made for at most {} rows"},
    {true, "lengths[{}] is {} after {}, but must be in decreasing order (enforce_sorted)"},
    {true, "index {} is {}, but must be at least {} and less than {}"},
    {false, "a block of cluster rank {} was launched in a cluster of {} blocks: the wrong size"},
    {true, "targets[{}] is {}, expected 0 to {}, or {} to be left out"},
    {true, "targets[{}] is {}, expected 0 to {} and not the blank, {}"},
    {true, "targets[{}] is {}, counted over all elements; expected 0 to 1", true},
    {true, "class_weights[{}] is {}, expected 0 or more, and finite", true},
}};

}  // namespace

void throw_fault(const DeviceFault& fault) {
  if (fault.code == static_cast<std::uint32_t>(FaultCode::none)) return;
  if (fault.code >= kMeanings.size())
    throw DeviceError(fmt::format("a kernel reported fault {}, which is not known", fault.code));
  const Meaning& meaning = kMeanings[fault.code];
  const auto& v = fault.values;
  const auto text = fmt::runtime(meaning.message);
  const std::string message = meaning.real ? fmt::format(text, v[0], std::bit_cast<double>(v[1]))
                                           : fmt::format(text, v[0], v[1], v[2], v[3]);
  if (meaning.callers) throw InvalidArgument(message);
  throw DeviceError(message);
}

}  // namespace packrnn

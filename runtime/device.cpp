#include "packrnn/runtime/device.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <exception>
#include <string_view>

#include "packrnn/runtime/gpu.hpp"

namespace packrnn {
namespace {

/// Index -1 where it names no device: a Context says so, and best() must not throw.
Device named(std::string_view name) noexcept {
  if (name == "cpu") return Device::cpu();
  if (name == "cuda") return Device::cuda(0);
  constexpr std::string_view kPrefix = "cuda:";
  int index = -1;
  if (name.starts_with(kPrefix)) {
    name.remove_prefix(kPrefix.size());
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), index);
    if (error != std::errc() || end != name.data() + name.size() || index < 0) index = -1;
  }
  return Device::cuda(index);
}

/// Of PACKRNN_DEVICE; empty where it says nothing.
std::string_view asked() noexcept {
  const char* name = std::getenv("PACKRNN_DEVICE");
  return name == nullptr ? "" : name;
}

/// Why layers cannot run on the first GPU, which is there; empty if they can.
std::string fault_of_first() {
  try {
    gpu::properties(0);
    return "";
  } catch (const std::exception& e) {
    return e.what();
  }
}

}  // namespace

Device Device::best() noexcept {
  if (!asked().empty()) return named(asked());
  try {
    return cuda_count() > 0 && fault_of_first().empty() ? cuda(0) : cpu();
  } catch (...) {  // no memory for a message
    return cpu();
  }
}

int Device::cuda_count() noexcept { return gpu::device_count(); }

std::string Device::cuda_status() {
  if (!asked().empty())
    return fmt::format("{}; using {}, as PACKRNN_DEVICE says", gpu::finding(), asked());
  if (cuda_count() == 0) return gpu::finding() + "; using the CPU";
  const std::string fault = fault_of_first();
  if (!fault.empty()) return fmt::format("{}; {}; using the CPU", gpu::finding(), fault);
  return fmt::format("{}; using {} ({})", gpu::finding(), cuda(0).name(), gpu::properties(0).name);
}

std::string Device::name() const {
  return type == DeviceType::cpu ? "cpu" : fmt::format("cuda:{}", index);
}

}  // namespace packrnn

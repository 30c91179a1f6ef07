// Where memory lies and work runs. A plain value: naming a device neither opens nor checks it.
#pragma once

#include <cstdint>
#include <string>

namespace packrnn {

enum class DeviceType : std::uint8_t { cpu, cuda };

struct Device {
  DeviceType type = DeviceType::cpu;
  int index = 0;

  static constexpr Device cpu() noexcept { return {DeviceType::cpu, 0}; }
  static constexpr Device cuda(int index = 0) noexcept { return {DeviceType::cuda, index}; }

  /// The fastest device that this build can run layers on; never throws. Today that is the CPU:
  /// see cuda_status() for why a GPU is not taken.
  static Device best() noexcept;

  /// Number of usable CUDA devices: 0 in a build without CUDA, without a driver, or without a GPU.
  /// Never throws.
  static int cuda_count() noexcept;

  /// One line that says what cuda_count() found and, when it is 0 or unused, why.
  static std::string cuda_status();

  /// "cpu" or "cuda:1".
  std::string name() const;

  friend bool operator==(const Device&, const Device&) = default;
};

}  // namespace packrnn

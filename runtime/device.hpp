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

  /// What PACKRNN_DEVICE in the environment names (cpu, cuda, cuda:<index>), even if it cannot be
  /// used: a Context says why. Without it cuda:0 if there is one, else the CPU; cuda_status() says
  /// why. Never throws.
  static Device best() noexcept;

  /// Number of usable CUDA devices: 0 in a build without CUDA, without a driver, or without a GPU.
  /// Never throws.
  static int cuda_count() noexcept;

  /// One line that says what cuda_count() found, why if it is 0, and what best() is.
  static std::string cuda_status();

  /// "cpu" or "cuda:1".
  std::string name() const;

  friend bool operator==(const Device&, const Device&) = default;
};

}  // namespace packrnn

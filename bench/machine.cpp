#include "bench/machine.hpp"

#include <fmt/chrono.h>
#include <sys/utsname.h>

#include <ctime>
#include <fstream>
#include <packrnn/kernels/cpu_target.hpp>
#include <thread>

#include "bench/commit.hpp"

namespace packrnn::bench {
namespace {

std::string cpu_model() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  // Arm's kernel names no model.
  utsname name{};
  return uname(&name) == 0 ? fmt::format("unnamed {} processor", name.machine) : "unknown";
}

}  // namespace

Machine describe_machine(const Context& context, bool pinned) {
  return {.cpu = cpu_model(),
          .cpus = static_cast<int>(std::thread::hardware_concurrency()),
          .device = context.device().name(),
          .cuda = Device::cuda_status(),
          .target = std::string(kernels::cpu_target()),
          .threads = context.threads(),
          .pinned = pinned,
          .commit = std::string(kCommit),
          .date = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)))};
}

}  // namespace packrnn::bench

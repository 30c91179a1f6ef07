#include "tests/simt/engine_fixture.hpp"

#include <unistd.h>

#include <array>
#include <cstdio>
#include <stdexcept>

namespace packrnn::tests {

void run(const gpu::LaunchShape& shape, const Body& body, const char* name) {
  simt::run(name, shape, large_device(), body);
}

std::string report_of(const gpu::LaunchShape& shape, const Body& body, const char* name) {
  try {
    run(shape, body, name);
  } catch (const simt::Error& error) {
    return error.what();
  }
  return {};
}

std::string output_of_case(const std::string& tag, const std::string& environment) {
  std::array<char, 4096> path{};
  if (readlink("/proc/self/exe", path.data(), path.size() - 1) < 0)
    throw std::runtime_error("no /proc/self/exe");
  const std::string command = environment + " '" + path.data() + "' '" + tag + "' 2>&1";
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) throw std::runtime_error("cannot run " + command);
  std::string output;
  std::array<char, 4096> part{};
  for (std::size_t n = 0; (n = fread(part.data(), 1, part.size(), pipe)) > 0;)
    output.append(part.data(), n);
  return output + "\nexit " + std::to_string(pclose(pipe));
}

}  // namespace packrnn::tests

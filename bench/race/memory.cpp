#include "bench/race/memory.hpp"

#include <malloc.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <string_view>

#include "bench/text.hpp"

namespace packrnn::bench {
namespace {

/// An entry of /proc/self/status in kB, in bytes.
std::int64_t status(std::string_view name) {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);) {
    std::string_view rest = line;
    if (take_until(rest, ':') != name) continue;
    rest.remove_prefix(std::min(rest.find_first_of("0123456789"), rest.size()));
    return 1024 * number<std::int64_t>(take_until(rest, ' ')).value_or(0);
  }
  return 0;
}

}  // namespace

std::int64_t peak_of(const std::function<void()>& run) {
  malloc_trim(0);
  // 5: the high-water mark falls to what is resident now.
  const bool reset = static_cast<bool>(std::ofstream("/proc/self/clear_refs") << '5' << std::flush);
  const std::int64_t before = status("VmRSS");
  run();
  return reset ? std::max<std::int64_t>(0, status("VmHWM") - before) : 0;
}

}  // namespace packrnn::bench

// What the numbers were measured on and with.
#pragma once

#include <packrnn/runtime/context.hpp>
#include <string>

namespace packrnn::bench {

struct Machine {
  std::string cpu;     // model name
  int cpus = 0;        // of the machine
  std::string device;  // where the layers ran
  std::string cuda;    // what was found, and why it is not used
  std::string target;  // instruction set of the kernels
  int threads = 0;
  bool pinned = false;
  std::string commit;
  std::string date;  // UTC, ISO 8601
};

Machine describe_machine(const Context& context, bool pinned);

}  // namespace packrnn::bench

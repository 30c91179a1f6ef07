#include "bench/interrupt.hpp"

#include <csignal>

namespace packrnn::bench {
namespace {

volatile std::sig_atomic_t caught = 0;

extern "C" void packrnn_bench_on_interrupt(int) { caught = 1; }

}  // namespace

void catch_interrupt() {
  struct sigaction action {};
  action.sa_handler = packrnn_bench_on_interrupt;
  action.sa_flags = SA_RESETHAND | SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
}

bool interrupted() noexcept { return caught != 0; }

}  // namespace packrnn::bench

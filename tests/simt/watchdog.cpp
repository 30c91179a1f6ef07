// Ends the process when a CUDA thread loops for ever without ever giving way: nothing else can stop
// it, and a test that hangs tells less than one that says which kernel it was.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "tests/simt/machine.hpp"

namespace packrnn::simt {
namespace {

struct Watchdog {
  std::mutex mutex;
  std::vector<Machine*> machines;
  pid_t process = 0;  // of the thread; a forked child has none
};

Watchdog& watchdog() {
  static auto* w = new Watchdog;  // outlives whatever ends when the process does
  return *w;
}

std::int64_t now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             Machine::Clock::now().time_since_epoch())
      .count();
}

void look_after_all() {
  constexpr std::int64_t kGraceMs = 2000;  // the scheduler's own check comes first
  struct Seen {
    const Machine* machine;
    std::uint64_t switches;
  };
  std::vector<Seen> seen;
  for (;;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    Watchdog& w = watchdog();
    const std::lock_guard lock(w.mutex);
    std::vector<Seen> now;
    for (const Machine* m : w.machines) {
      const char* name = m->running;
      const std::uint64_t switches = m->switches;
      now.push_back({m, switches});
      const std::int64_t limit = m->deadline_ms;
      if (name == nullptr || limit < 0 || now_ms() - m->started_ms < limit + kGraceMs) continue;
      const bool stuck = std::any_of(seen.begin(), seen.end(), [&](const Seen& s) {
        return s.machine == m && s.switches == switches;
      });
      const Fiber* fiber = m->current;
      if (!stuck || fiber == nullptr) continue;
      std::fprintf(
          stderr,
          "simt: block (%u,%u,%u) thread (%u,%u,%u) loops for ever in kernel '%s'; it last "
          "waited at %s:%d\n",
          fiber->block.x, fiber->block.y, fiber->block.z, fiber->thread.x, fiber->thread.y,
          fiber->thread.z, name, fiber->site.file, fiber->site.line);
      std::abort();
    }
    seen = now;
  }
}

}  // namespace

void watch(Machine& machine) {
  Watchdog& w = watchdog();
  const std::lock_guard lock(w.mutex);
  w.machines.push_back(&machine);
  if (w.process == getpid()) return;
  w.process = getpid();
  std::thread(look_after_all).detach();
}

void unwatch(Machine& machine) {
  Watchdog& w = watchdog();
  const std::lock_guard lock(w.mutex);
  w.machines.erase(std::find(w.machines.begin(), w.machines.end(), &machine));
}

}  // namespace packrnn::simt

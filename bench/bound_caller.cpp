#include "bench/bound_caller.hpp"

namespace packrnn::bench {

#ifdef __linux__
BoundCaller::BoundCaller() : known_(sched_getaffinity(0, sizeof before_, &before_) == 0) {
  for (int cpu = 0; known_ && cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &before_)) continue;
    cpu_set_t first;
    CPU_ZERO(&first);
    CPU_SET(cpu, &first);
    sched_setaffinity(0, sizeof first, &first);  // a wish: failure costs speed only
    return;
  }
}

BoundCaller::~BoundCaller() {
  if (known_) sched_setaffinity(0, sizeof before_, &before_);
}
#else
BoundCaller::BoundCaller() = default;
BoundCaller::~BoundCaller() = default;
#endif

}  // namespace packrnn::bench

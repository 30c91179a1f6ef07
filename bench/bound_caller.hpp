// The calling thread on a CPU of its own, as Context has the others with pin_threads.
#pragma once

#include <sched.h>

namespace packrnn::bench {

/// Binds the calling thread to the first CPU it may run on, until it is destroyed. To be made after
/// the Context, whose threads would inherit the binding.
class BoundCaller {
 public:
  BoundCaller();
  ~BoundCaller();
  BoundCaller(const BoundCaller&) = delete;
  BoundCaller& operator=(const BoundCaller&) = delete;

 private:
#ifdef __linux__
  cpu_set_t before_;
  bool known_;  // false with more than CPU_SETSIZE CPUs: then nothing is bound
#endif
};

}  // namespace packrnn::bench

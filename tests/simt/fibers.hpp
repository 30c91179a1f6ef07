// Fibers: stacks of their own and switches between them, with what the sanitizers want to know.
#pragma once

#include <cstddef>
#include <vector>

#include "tests/simt/sanitizers.hpp"

#if !defined(__x86_64__) || defined(PACKRNN_SIMT_UCONTEXT)
#define PACKRNN_SIMT_USES_UCONTEXT 1
#include <ucontext.h>
#endif

namespace packrnn::simt {

/// A stack and where its execution stands; also that of a host thread.
struct Context {
  char* low = nullptr;
  std::size_t bytes = 0;
  void* sp = nullptr;
  void* fake_stack = nullptr;  // AddressSanitizer's
  void* tsan = nullptr;        // ThreadSanitizer's fiber
  bool started = false;        // in its entry function, to be gone on with
  bool quit = false;           // to be left for ever when it is gone on with
#if defined(PACKRNN_SIMT_USES_UCONTEXT)
  ucontext_t ucontext;
#endif
};

/// Goes on in `to`; returns when somebody switches back. `last`: nobody ever will.
void switch_context(Context& from, Context& to, bool last = false);
/// The first thing that an entry function calls.
void entered(Context& context);
/// Makes `context` stand for the running host thread.
void adopt_thread(Context& context);

/// Fibers of a host thread, kept for the next launch: the first use of a stack costs far more than
/// a CUDA thread. Each is in a loop of entry(), which runs a CUDA thread in every round and then
/// calls next_round().
class FiberPool {
 public:
  explicit FiberPool(void (*entry)()) : entry_(entry) {}
  ~FiberPool();
  FiberPool(const FiberPool&) = delete;
  FiberPool& operator=(const FiberPool&) = delete;

  Context* take(std::size_t bytes);
  /// `abandoned`: it does not stand at next_round() and never will, so it starts anew.
  void give_back(Context* context, bool abandoned);

 private:
  void drop(Context* context);
  void (*entry_)();
  std::vector<Context*> free_;
};

/// Gives way to `to` at the end of a round; returns when the next one begins.
void next_round(Context& context, Context& to);

}  // namespace packrnn::simt

#include "tests/simt/fibers.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <new>

#if !defined(PACKRNN_SIMT_USES_UCONTEXT)
// Saves what a call must preserve, changes the stack, and goes on where that one was saved.
// ucontext would make two system calls each time.
extern "C" void packrnn_simt_switch(void** save_sp, void* load_sp);
asm(R"(
.text
.type packrnn_simt_switch,@function
packrnn_simt_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp,(%rdi)
  movq %rsi,%rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  popq %rcx
  jmp *%rcx
.size packrnn_simt_switch,.-packrnn_simt_switch
)");
#endif

namespace packrnn::simt {
namespace {

/// Who switched last, for the one that goes on.
[[maybe_unused]] constinit thread_local Context* previous = nullptr;

std::size_t page_bytes() {
  static const auto bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

void finish_switch([[maybe_unused]] Context& context) {
#if defined(PACKRNN_ASAN)
  const void* low = nullptr;
  std::size_t bytes = 0;
  __sanitizer_finish_switch_fiber(context.fake_stack, &low, &bytes);
  // This is how the bounds of a host thread's stack become known.
  previous->low = static_cast<char*>(const_cast<void*>(low));
  previous->bytes = bytes;
#endif
}

void prepare(Context& context, void (*entry)()) {
#if defined(PACKRNN_SIMT_USES_UCONTEXT)
  getcontext(&context.ucontext);
  context.ucontext.uc_stack.ss_sp = context.low;
  context.ucontext.uc_stack.ss_size = context.bytes;
  context.ucontext.uc_link = nullptr;
  makecontext(&context.ucontext, entry, 0);
#else
  auto** sp = reinterpret_cast<void**>(context.low + context.bytes);
  *--sp = nullptr;  // entry's return address, and with it the alignment of a called function
  *--sp = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; ++i) *--sp = nullptr;
  context.sp = sp;
#endif
}

}  // namespace

void switch_context(Context& from, Context& to, [[maybe_unused]] bool last) {
  previous = &from;
#if defined(PACKRNN_ASAN)
  __sanitizer_start_switch_fiber(last ? nullptr : &from.fake_stack, to.low, to.bytes);
#endif
#if defined(PACKRNN_SIMT_TSAN)
  __tsan_switch_to_fiber(to.tsan, 1);  // 1: the switch orders nothing
#endif
#if defined(PACKRNN_SIMT_USES_UCONTEXT)
  swapcontext(&from.ucontext, &to.ucontext);
#else
  packrnn_simt_switch(&from.sp, to.sp);
#endif
  finish_switch(from);
}

void entered(Context& context) {
  finish_switch(context);
  context.started = true;
}

void adopt_thread([[maybe_unused]] Context& context) {
#if defined(PACKRNN_SIMT_TSAN)
  context.tsan = __tsan_get_current_fiber();
#endif
}

void next_round(Context& context, Context& to) {
  switch_context(context, to);
  if (context.quit) {
    switch_context(context, *previous, true);
    std::abort();
  }
}

FiberPool::~FiberPool() {
  for (Context* context : free_) drop(context);
}

Context* FiberPool::take(std::size_t bytes) {
  const std::size_t page = page_bytes();
  bytes = (bytes + page - 1) / page * page;
  while (!free_.empty()) {
    Context* context = free_.back();
    free_.pop_back();
    if (context->bytes == bytes) {
      if (!context->started) prepare(*context, entry_);
      return context;
    }
    drop(context);
  }
  // With a page below that faults, so that an overflow is no silent corruption.
  void* memory = mmap(nullptr, bytes + page, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  mprotect(memory, page, PROT_NONE);
  auto* context = new Context;
  context->low = static_cast<char*>(memory) + page;
  context->bytes = bytes;
#if defined(PACKRNN_SIMT_TSAN)
  context->tsan = __tsan_create_fiber(0);
#endif
  prepare(*context, entry_);
  return context;
}

void FiberPool::give_back(Context* context, bool abandoned) {
  if (abandoned) {
    context->started = false;
#if defined(PACKRNN_ASAN)
    __asan_unpoison_memory_region(context->low, context->bytes);
#endif
#if defined(PACKRNN_SIMT_TSAN)
    // Whoever waits does so within one Quiet; and the calls it never returned from are forgotten.
    void* const here = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(context->tsan, 1);
    __tsan_ignore_thread_end();
    __tsan_release(context);  // what it did is over
    __tsan_switch_to_fiber(here, 1);
    __tsan_acquire(context);
    __tsan_destroy_fiber(context->tsan);
    context->tsan = __tsan_create_fiber(0);
#endif
  }
  free_.push_back(context);
}

void FiberPool::drop(Context* context) {
#if defined(PACKRNN_ASAN)
  // It takes a last switch to free the fake stack.
  if (context->started) {
    Context here;
    context->quit = true;
    switch_context(here, *context);
  }
#endif
#if defined(PACKRNN_SIMT_TSAN)
  __tsan_destroy_fiber(context->tsan);
#endif
  munmap(context->low - page_bytes(), context->bytes + page_bytes());
  delete context;
}

}  // namespace packrnn::simt

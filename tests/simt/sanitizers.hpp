// What the engine tells AddressSanitizer and ThreadSanitizer about its fibers. Nothing without
// them.
//
// The engine's own files are compiled without -fsanitize=thread, with PACKRNN_SIMT_TSAN instead:
// its state is shared by all fibers on purpose. What orders the CUDA threads is said here by name.
#pragma once

#include <cstddef>

#include "tests/sanitized.hpp"

#if defined(PACKRNN_ASAN)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(PACKRNN_SIMT_TSAN)
extern "C" {
void* __tsan_get_current_fiber();
void* __tsan_create_fiber(unsigned flags);
void __tsan_destroy_fiber(void* fiber);
void __tsan_switch_to_fiber(void* fiber, unsigned flags);
void __tsan_set_fiber_name(void* fiber, const char* name);
void __tsan_ignore_thread_begin();
void __tsan_ignore_thread_end();
void __tsan_read_range(void* address, unsigned long bytes);
void __tsan_write_range(void* address, unsigned long bytes);
void __tsan_acquire(void* token);
void __tsan_release(void* token);
}
#endif

namespace packrnn::simt {

using tests::kSanitized;

#if defined(PACKRNN_SIMT_TSAN)
inline void tsan_acquire(void* token) { __tsan_acquire(token); }
inline void tsan_release(void* token) { __tsan_release(token); }
inline void tsan_read(const void* data, std::size_t n) {
  __tsan_read_range(const_cast<void*>(data), n);
}
inline void tsan_write(void* data, std::size_t n) { __tsan_write_range(data, n); }
/// While it lives, mallocs and copies of the engine are not taken for the kernel's accesses.
class Quiet {
 public:
  Quiet() { __tsan_ignore_thread_begin(); }
  ~Quiet() { __tsan_ignore_thread_end(); }
  Quiet(const Quiet&) = delete;
  Quiet& operator=(const Quiet&) = delete;
};
#else
inline void tsan_acquire(void*) {}
inline void tsan_release(void*) {}
inline void tsan_read(const void*, std::size_t) {}
inline void tsan_write(void*, std::size_t) {}
class Quiet {
 public:
  Quiet() {}
  ~Quiet() {}
  Quiet(const Quiet&) = delete;
  Quiet& operator=(const Quiet&) = delete;
};
#endif

/// Tokens of two phases in turn: one alone would order a phase behind the arrivals at the next one
/// and so hide races.
struct Tokens {
  char token[2] = {};
  void release(unsigned phase) { tsan_release(&token[phase & 1]); }
  void acquire(unsigned phase) { tsan_acquire(&token[phase & 1]); }
};

}  // namespace packrnn::simt

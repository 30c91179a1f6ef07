// Host memory that the tensors of one context use in turns; private to the library. Large blocks
// come from the system as pages of zeros, and to make those takes longer than what many operations
// do with them: a step of training finds the blocks of the step before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "packrnn/runtime/buffer.hpp"

namespace packrnn {

/// What is in use and what is kept for later are together never more than what was in use at one
/// time. Buffers may die on any thread, and after this object: close() has to come before its last
/// owner lets go.
class HostMemory : public std::enable_shared_from_this<HostMemory> {
 public:
  /// As Buffer::allocate() on the CPU; before that fails, what is kept is given back.
  Buffer allocate(std::size_t bytes);
  /// Gives back what nobody uses, and from here on whatever is no longer used.
  void close() noexcept;
  /// Bytes that are kept and not in use.
  std::size_t kept() const;

 private:
  /// The end of a buffer.
  struct Keep {
    std::shared_ptr<HostMemory> owner;
    Buffer block;

    void operator()(void*) noexcept { owner->put(std::move(block)); }
  };

  /// A free block for so many bytes that wastes at most as many; an empty one if there is none.
  Buffer take(std::size_t bytes);
  Buffer fresh(std::size_t bytes);
  void give_back() noexcept;
  void put(Buffer block) noexcept;

  mutable std::mutex mutex_;
  std::vector<Buffer> free_;  // the longest unused first
  std::size_t kept_ = 0, used_ = 0, most_ = 0;
  bool closed_ = false;
};

}  // namespace packrnn

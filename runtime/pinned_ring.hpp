// A little pinned memory through which host data goes to a device, so that the caller's memory is
// free at once and the host does not wait; private. Chunks are used in turn, and one is used again
// when the copies out of it are done: only if that is not yet so does the host wait.
#pragma once

#include <array>
#include <cstddef>

#include "packrnn/runtime/gpu.hpp"

namespace packrnn {

class PinnedRing {
 public:
  /// What can be under way without a wait.
  static constexpr std::size_t kChunk = std::size_t{1} << 20, kChunks = 4;

  explicit PinnedRing(gpu::Stream stream) noexcept : stream_(stream) {}
  PinnedRing(const PinnedRing&) = delete;
  PinnedRing& operator=(const PinnedRing&) = delete;
  /// Waits for copies that are under way.
  ~PinnedRing();

  /// Copies in stream order; `source` may change when the call returns.
  void upload(void* target, const void* source, std::size_t bytes);
  /// Says that the stream has done all that it was given.
  void all_done() noexcept;

 private:
  struct Chunk {
    void* data = nullptr;
    gpu::Event event = nullptr;  // recorded after the chunk's last copy, when it is full
    std::size_t used = 0;
    bool full = false;
  };

  void make(Chunk& chunk);
  void retire(Chunk& chunk);
  void wait_for(Chunk& chunk);

  gpu::Stream stream_;
  std::array<Chunk, kChunks> chunks_;
  std::size_t current_ = 0;
};

}  // namespace packrnn

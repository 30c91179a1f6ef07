#include "packrnn/runtime/pinned_ring.hpp"

#include <algorithm>
#include <cstring>

namespace packrnn {

PinnedRing::~PinnedRing() {
  for (Chunk& chunk : chunks_) {
    if (chunk.data == nullptr) continue;
    try {
      if (chunk.used > 0) {
        if (!chunk.full) retire(chunk);
        wait_for(chunk);
      }
    } catch (...) {
      // The device failed, so it reads nothing any more; whoever waits next hears of it.
    }
    gpu::release_pinned(chunk.data);
    gpu::destroy(chunk.event);
  }
}

void PinnedRing::upload(void* target, const void* source, std::size_t bytes) {
  auto* to = static_cast<std::byte*>(target);
  const auto* from = static_cast<const std::byte*>(source);
  while (bytes > 0) {
    Chunk& chunk = chunks_[current_];
    if (chunk.full) wait_for(chunk);
    if (chunk.data == nullptr) make(chunk);
    const std::size_t piece = std::min(bytes, kChunk - chunk.used);
    std::byte* const staged = static_cast<std::byte*>(chunk.data) + chunk.used;
    std::memcpy(staged, from, piece);
    gpu::copy(to, staged, piece, gpu::Copy::to_device, stream_);
    // Whole cache lines: small tables are common, and misaligned copies slow.
    chunk.used = std::min(kChunk, (chunk.used + piece + 63) / 64 * 64);
    if (chunk.used == kChunk) {
      retire(chunk);
      current_ = (current_ + 1) % kChunks;
    }
    to += piece;
    from += piece;
    bytes -= piece;
  }
}

void PinnedRing::all_done() noexcept {
  for (Chunk& chunk : chunks_) {
    chunk.used = 0;
    chunk.full = false;
  }
}

void PinnedRing::make(Chunk& chunk) {
  gpu::Event event = gpu::create_event(gpu::device_of(stream_));
  try {
    chunk.data = gpu::allocate_pinned(kChunk);
  } catch (...) {
    gpu::destroy(event);
    throw;
  }
  chunk.event = event;
}

void PinnedRing::retire(Chunk& chunk) {
  gpu::record(chunk.event, stream_);
  chunk.full = true;
}

void PinnedRing::wait_for(Chunk& chunk) {
  if (!gpu::done(chunk.event)) gpu::wait(chunk.event);
  chunk.used = 0;
  chunk.full = false;
}

}  // namespace packrnn

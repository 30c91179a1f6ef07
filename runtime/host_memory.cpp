#include "packrnn/runtime/host_memory.hpp"

#include <algorithm>
#include <utility>

#include "packrnn/runtime/error.hpp"

namespace packrnn {
namespace {

/// What is smaller, malloc keeps itself.
constexpr std::size_t kLeast = std::size_t{64} << 10;

// An address sanitizer sees what is used after its end only if that is really freed.
#ifdef __has_feature
constexpr bool kChecked = __has_feature(address_sanitizer) || __has_feature(memory_sanitizer);
#elif defined(__SANITIZE_ADDRESS__)
constexpr bool kChecked = true;
#else
constexpr bool kChecked = false;
#endif

}  // namespace

Buffer HostMemory::allocate(std::size_t bytes) {
  if (kChecked || bytes < kLeast) return Buffer::allocate(Device::cpu(), bytes);
  Buffer found = take(bytes);
  if (found.data() == nullptr) {
    found = fresh(bytes);
    const std::scoped_lock lock(mutex_);
    used_ += bytes;
    most_ = std::max(most_, used_);
  }
  void* const data = found.data();
  Buffer buffer;
  buffer.data_ = std::shared_ptr<void>(data, Keep{shared_from_this(), std::move(found)});
  buffer.size_ = bytes;
  return buffer;
}

Buffer HostMemory::fresh(std::size_t bytes) {
  try {
    return Buffer::allocate(Device::cpu(), bytes);
  } catch (const OutOfMemory&) {
    give_back();
    return Buffer::allocate(Device::cpu(), bytes);
  }
}

Buffer HostMemory::take(std::size_t bytes) {
  std::vector<Buffer> gone;  // freed after the lock
  const std::scoped_lock lock(mutex_);
  auto best = free_.end();
  for (auto it = free_.begin(); it != free_.end(); ++it)
    if (it->size() >= bytes && it->size() / 2 <= bytes &&
        (best == free_.end() || it->size() < best->size()))
      best = it;
  if (best != free_.end()) {
    Buffer block = std::move(*best);
    free_.erase(best);
    kept_ -= block.size();
    used_ += block.size();
    most_ = std::max(most_, used_);
    return block;
  }
  // Room for a new one.
  std::size_t count = 0;
  while (count < free_.size() && kept_ + used_ + bytes > most_) kept_ -= free_[count++].size();
  const auto end = free_.begin() + static_cast<std::ptrdiff_t>(count);
  gone.assign(std::move_iterator(free_.begin()), std::move_iterator(end));
  free_.erase(free_.begin(), end);
  return {};
}

void HostMemory::put(Buffer block) noexcept {
  const std::scoped_lock lock(mutex_);
  used_ -= block.size();
  if (closed_) return;
  try {
    const std::size_t size = block.size();
    free_.push_back(std::move(block));
    kept_ += size;
  } catch (const std::bad_alloc&) {  // then it is freed
  }
}

void HostMemory::give_back() noexcept {
  std::vector<Buffer> gone;  // freed after the lock
  const std::scoped_lock lock(mutex_);
  kept_ = 0;
  gone.swap(free_);
}

void HostMemory::close() noexcept {
  {
    const std::scoped_lock lock(mutex_);
    closed_ = true;
  }
  give_back();
}

std::size_t HostMemory::kept() const {
  const std::scoped_lock lock(mutex_);
  return kept_;
}

}  // namespace packrnn

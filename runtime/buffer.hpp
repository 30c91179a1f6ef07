// A block of bytes on one device: the only owner of memory in the library.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "packrnn/runtime/device.hpp"

namespace packrnn {

/// Every allocation starts on this boundary, so that a vector load never splits a cache line.
inline constexpr std::size_t kAlignment = 64;

class Buffer {
 public:
  /// No memory; data() is nullptr. A moved-from buffer is like this.
  Buffer() = default;
  Buffer(Buffer&&) noexcept = default;
  Buffer& operator=(Buffer&&) noexcept = default;

  /// Uninitialised memory, aligned to kAlignment (2 MiB, advised to be huge pages, from 2 MiB up).
  /// data() is not null, not even for 0 bytes. On a GPU (256 bytes) usable at once by any stream,
  /// returned when the device is done with what it was given. Throws OutOfMemory naming the size,
  /// Unsupported for a device this build cannot allocate on.
  static Buffer allocate(Device device, std::size_t bytes);

  /// Takes memory that somebody else made; `release` runs once, when the buffer dies, or at once if
  /// adopt itself throws. `data` may be null when `bytes` is 0; `release` runs all the same.
  static Buffer adopt(Device device, void* data, std::size_t bytes, std::function<void()> release);

  void* data() const noexcept { return data_.get(); }
  std::size_t size() const noexcept { return data_ ? size_ : 0; }
  Device device() const noexcept { return device_; }

 private:
  friend class HostMemory;

  // Never shared: a unique_ptr would not run its deleter for adopted null data.
  std::shared_ptr<void> data_;
  std::size_t size_ = 0;
  Device device_;
};

}  // namespace packrnn

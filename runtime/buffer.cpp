#include "packrnn/runtime/buffer.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "packrnn/runtime/expects.hpp"
#include "packrnn/runtime/gpu.hpp"

namespace packrnn {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
// A user process addresses 47 bits unless it asks for more; larger sizes are mistakes, and some
// allocators (the sanitizers') end the process over them.
constexpr std::size_t kMaxBytes = std::size_t{1} << 47;

[[noreturn]] void out_of_memory(Device device, std::size_t bytes) {
  throw OutOfMemory(fmt::format("out of memory: cannot allocate {} bytes ({:.1f} MiB) on {}", bytes,
                                static_cast<double>(bytes) / 0x1p20, device));
}

}  // namespace

Buffer Buffer::allocate(Device device, std::size_t bytes) {
  if (bytes > kMaxBytes) out_of_memory(device, bytes);
  if (device.type == DeviceType::cuda) {
    if (device.index < 0 || device.index >= gpu::device_count())
      throw Unsupported(fmt::format("cannot allocate on {}: {}", device, Device::cuda_status()));
    void* const data = gpu::allocate(device.index, std::max<std::size_t>(bytes, 1));
    return adopt(device, data, bytes, [device, data] { gpu::release(device.index, data); });
  }
  // Whole cache lines, so that a vector load of the last elements stays inside.
  const std::size_t lines = std::max(bytes + kAlignment - 1, kAlignment) / kAlignment;
  const std::size_t room = lines * kAlignment;
  const bool huge = room >= kHugePage;
  void* data = nullptr;
  if (posix_memalign(&data, huge ? kHugePage : kAlignment, room) != 0) out_of_memory(device, bytes);
#ifdef MADV_HUGEPAGE
  if (huge)
    madvise(data, room / kHugePage * kHugePage, MADV_HUGEPAGE);  // a wish: failure costs speed only
#endif
  Buffer buffer;
  buffer.data_ = std::shared_ptr<void>(data, std::free);
  buffer.size_ = bytes;
  buffer.device_ = device;
  return buffer;
}

Buffer Buffer::adopt(Device device, void* data, std::size_t bytes, std::function<void()> release) {
  // From here on the release is certain, whatever throws.
  std::shared_ptr<void> owner(data, [release = std::move(release)](void*) {
    if (release) release();
  });
  expects(data != nullptr || bytes == 0, "data is null, but bytes is {}", bytes);
  Buffer buffer;
  buffer.data_ = std::move(owner);
  buffer.size_ = bytes;
  buffer.device_ = device;
  return buffer;
}

}  // namespace packrnn

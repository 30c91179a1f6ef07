#include "packrnn/runtime/device_queue.hpp"

#include <algorithm>
#include <cstring>

#include "packrnn/runtime/expects.hpp"

namespace packrnn {
namespace {

std::shared_ptr<gpu::StreamHandle> make_stream(int device, void* adopted) {
  gpu::properties(device);  // says why, if it cannot be used
  gpu::Stream stream = adopted ? gpu::adopt_stream(device, adopted) : gpu::create_stream(device);
  return {stream, [](gpu::Stream s) { gpu::destroy(s); }};
}

std::shared_ptr<void> pinned(std::size_t bytes) {
  return {gpu::allocate_pinned(bytes), [](void* data) { gpu::release_pinned(data); }};
}

/// The release runs in stream order, by whichever thread drops the last owner.
Buffer allocate_on(const std::shared_ptr<gpu::StreamHandle>& stream, std::size_t bytes) {
  const int device = gpu::device_of(stream.get());
  void* const data = gpu::allocate(device, std::max<std::size_t>(bytes, 1), stream.get());
  return Buffer::adopt(Device::cuda(device), data, bytes,
                       [device, data, stream] { gpu::release(device, data, stream.get()); });
}

}  // namespace

DeviceQueue::DeviceQueue(int device, void* adopted)
    : DeviceQueue(device, make_stream(device, adopted), nullptr) {}

DeviceQueue::DeviceQueue(const DeviceQueue* reporter)
    : DeviceQueue(reporter->device_, make_stream(reporter->device_, nullptr), reporter->fault_) {}

DeviceQueue::DeviceQueue(int device, std::shared_ptr<gpu::StreamHandle> stream, DeviceFault* fault)
    : device_(device),
      stream_(std::move(stream)),
      fault_(fault),
      seen_(std::static_pointer_cast<DeviceFault>(pinned(sizeof(DeviceFault)))),
      ring_(stream_.get()),
      workspace_(
          Device::cuda(device),
          [stream = stream_](std::size_t bytes) { return allocate_on(stream, bytes); },
          stream_.get()) {
  if (fault_ != nullptr) return;
  own_fault_ = allocate_on(stream_, sizeof(DeviceFault));
  fault_ = static_cast<DeviceFault*>(own_fault_.data());
  gpu::fill(fault_, 0, sizeof(DeviceFault), this->stream());
}

void DeviceQueue::expects_no_capture(const char* what) const {
  expects(recording_ == nullptr, "{} while a graph is being captured: that is for afterwards",
          what);
}

gpu::Products DeviceQueue::products() {
  if (!products_)
    products_ = {gpu::create_products(stream()),
                 [stream = stream_](gpu::Products p) { gpu::destroy(p); }};
  return products_.get();
}

Buffer DeviceQueue::allocate(std::size_t bytes) {
  if (recording_ == nullptr) return allocate_on(stream_, bytes);
  const auto memory = std::make_shared<Buffer>(Buffer::allocate(Device::cuda(device_), bytes));
  recording_->kept.push_back(memory);
  return Buffer::adopt(memory->device(), memory->data(), bytes, [memory] {});
}

void DeviceQueue::upload(void* target, const void* source, std::size_t bytes) {
  if (bytes == 0) return;
  if (recording_ == nullptr) return ring_.upload(target, source, bytes);
  // A replay copies what the host memory holds now, whatever becomes of it.
  recording_->kept.push_back(pinned(bytes));
  void* const staged = recording_->kept.back().get();
  std::memcpy(staged, source, bytes);
  gpu::copy(target, staged, bytes, gpu::Copy::to_device, stream());
}

void DeviceQueue::download(void* target, const void* source, std::size_t bytes) {
  expects_no_capture("to_host() was called");
  if (bytes > 0) gpu::copy(target, source, bytes, gpu::Copy::to_host, stream());
  synchronize();
}

void DeviceQueue::synchronize() {
  expects_no_capture("synchronize() was called");
  gpu::copy(seen_.get(), fault_, sizeof(DeviceFault), gpu::Copy::to_host, stream());
  gpu::wait(stream());
  ring_.all_done();
  if (seen_->code == 0) return;
  gpu::fill(fault_, 0, sizeof(DeviceFault), stream());
  throw_fault(*seen_);
}

void DeviceQueue::wait_for(const DeviceQueue& other) {
  if (stream() == other.stream()) return;
  expects_no_capture("wait_for() was called");
  other.expects_no_capture("wait_for() was called");
  const std::unique_ptr<gpu::EventHandle, void (*)(gpu::Event)> event(
      gpu::create_event(other.device()), [](gpu::Event e) { gpu::destroy(e); });
  gpu::record(event.get(), other.stream());
  gpu::wait(stream(), event.get());
}

void DeviceQueue::begin_capture(Recording& recording) {
  expects_no_capture("capture() was called");
  recording.workspace = std::make_unique<Workspace>(
      Device::cuda(device_), [this](std::size_t bytes) { return allocate(bytes); }, stream());
  recording_ = &recording;
  try {
    // As much at once as the same work took before: memory that turns out too small stays, because
    // what was recorded uses it.
    if (workspace_.capacity() > 0)
      Workspace::Scope(*recording.workspace)
          .take<std::byte>(static_cast<std::int64_t>(workspace_.capacity()));
    gpu::begin_capture(stream());
  } catch (...) {
    recording_ = nullptr;
    throw;
  }
}

gpu::Graph DeviceQueue::end_capture() {
  recording_ = nullptr;
  return gpu::end_capture(stream());
}

}  // namespace packrnn

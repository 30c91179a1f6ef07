// What a context owns on a GPU: a stream and all that hangs on its order; private. Tensors share
// the stream alone, graphs the whole queue, so both may outlive the context.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "packrnn/runtime/buffer.hpp"
#include "packrnn/runtime/context.hpp"
#include "packrnn/runtime/device_fault.hpp"
#include "packrnn/runtime/gpu.hpp"
#include "packrnn/runtime/pinned_ring.hpp"

namespace packrnn {

/// What a captured graph uses beyond what its caller made before: it lives as long as the graph.
struct Recording {
  std::unique_ptr<Workspace> workspace;
  std::vector<std::shared_ptr<void>> kept;
};

class DeviceQueue {
 public:
  /// `adopted` is a native stream of the caller's, or null. Throws as gpu::properties().
  DeviceQueue(int device, void* adopted);
  /// Beside another queue, which outlives it and whose synchronize() reports the faults of both.
  explicit DeviceQueue(const DeviceQueue* reporter);
  DeviceQueue(const DeviceQueue&) = delete;
  DeviceQueue& operator=(const DeviceQueue&) = delete;

  int device() const noexcept { return device_; }
  gpu::Stream stream() const noexcept { return stream_.get(); }
  DeviceFault* fault() const noexcept { return fault_; }
  Workspace& workspace() noexcept { return recording_ ? *recording_->workspace : workspace_; }
  gpu::Products products();

  /// In stream order; during a capture, memory that the recording keeps as well.
  Buffer allocate(std::size_t bytes);
  void upload(void* target, const void* source, std::size_t bytes);
  /// Waits, as synchronize().
  void download(void* target, const void* source, std::size_t bytes);
  void synchronize();
  void wait_for(const DeviceQueue& other);

  /// Between these work is recorded instead of done. `recording` must stay until end_capture().
  void begin_capture(Recording& recording);
  gpu::Graph end_capture();

 private:
  DeviceQueue(int device, std::shared_ptr<gpu::StreamHandle> stream, DeviceFault* fault);
  void expects_no_capture(const char* what) const;

  int device_;
  std::shared_ptr<gpu::StreamHandle> stream_;
  Buffer own_fault_;
  DeviceFault* fault_;
  std::shared_ptr<DeviceFault> seen_;  // pinned: where synchronize() reads the fault
  PinnedRing ring_;
  Workspace workspace_;
  std::shared_ptr<gpu::ProductsHandle> products_;
  Recording* recording_ = nullptr;
};

}  // namespace packrnn

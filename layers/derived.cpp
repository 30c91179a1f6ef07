#include "packrnn/layers/derived.hpp"

#include "packrnn/runtime/expects.hpp"
#include "packrnn/runtime/gpu.hpp"

namespace packrnn {

StreamMark::StreamMark(Context& context) : stream_(context.stream()) {
  if (stream_ == nullptr) return;
  const gpu::Event event = gpu::create_event(context.device().index);
  event_ = std::shared_ptr<void>(event, [](void* e) { gpu::destroy(static_cast<gpu::Event>(e)); });
  gpu::record(event, stream_);
}

void StreamMark::hold_up(Context& context) {
  // A stream is in order with itself. Should it be gone and another one have got its handle, the
  // mark was reached: a context waits for its uploads before its stream goes.
  if (event_ == nullptr || context.stream() == stream_) return;
  const auto event = static_cast<gpu::Event>(event_.get());
  if (gpu::done(event)) {
    event_.reset();
    return;
  }
  expects(!gpu::capturing(context.stream()),
          "a layer's weights are still being copied to {} by another context; synchronize() that "
          "one before a capture",
          context.device());
  gpu::wait(context.stream(), event);
}

void refuse_capture(const Context& context) {
  expects(context.stream() == nullptr || !gpu::capturing(context.stream()),
          "a layer's weights are not on {} yet; call forward once before a capture",
          context.device());
}

}  // namespace packrnn

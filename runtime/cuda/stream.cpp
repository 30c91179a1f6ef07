// Streams and events.
#include <atomic>
#include <memory>

#include "packrnn/runtime/cuda/check.hpp"
#include "packrnn/runtime/cuda/handles.hpp"
#include "packrnn/runtime/error.hpp"

namespace packrnn::gpu {
namespace {

std::atomic<std::int64_t> waits_counted{0};

}  // namespace

std::int64_t waits() noexcept { return waits_counted; }
void count_wait() noexcept { ++waits_counted; }

Stream create_stream(int device) {
  const Current current(device);
  auto handle = std::make_unique<StreamHandle>();
  handle->device = device;
  handle->owned = true;
  check(cudaStreamCreateWithFlags(&handle->stream, cudaStreamNonBlocking),
        "cudaStreamCreateWithFlags");
  return handle.release();
}

Stream adopt_stream(int device, void* native) {
  const Current current(device);
  auto handle = std::make_unique<StreamHandle>();
  handle->device = device;
  handle->owned = false;
  handle->stream = static_cast<cudaStream_t>(native);
  int of = -1;
  check(cudaStreamGetDevice(handle->stream, &of), "the given stream");
  if (of != device)
    throw DeviceError("the given stream is of cuda:" + std::to_string(of) +
                      ", not of cuda:" + std::to_string(device));
  return handle.release();
}

void destroy(Stream stream) noexcept {
  if (stream == nullptr) return;
  if (stream->owned) quietly(stream->device, [&] { return cudaStreamDestroy(stream->stream); });
  delete stream;
}

int device_of(Stream stream) noexcept { return stream->device; }
void* native(Stream stream) noexcept { return stream->stream; }

void wait(Stream stream) {
  const Current current(stream->device);
  count_wait();
  check(cudaStreamSynchronize(stream->stream), "waiting for the device");
}

Event create_event(int device, bool timed) {
  const Current current(device);
  auto handle = std::make_unique<EventHandle>();
  handle->device = device;
  check(cudaEventCreateWithFlags(&handle->event, timed ? cudaEventDefault : cudaEventDisableTiming),
        "cudaEventCreateWithFlags");
  return handle.release();
}

void destroy(Event event) noexcept {
  if (event == nullptr) return;
  quietly(event->device, [&] { return cudaEventDestroy(event->event); });
  delete event;
}

void record(Event event, Stream stream) {
  const Current current(stream->device);
  check(cudaEventRecord(event->event, stream->stream), "cudaEventRecord");
}

void wait(Stream stream, Event event) {
  const Current current(stream->device);
  check(cudaStreamWaitEvent(stream->stream, event->event, 0), "cudaStreamWaitEvent");
}

bool done(Event event) {
  const Current current(event->device);
  const cudaError_t error = cudaEventQuery(event->event);
  if (error == cudaErrorNotReady) {
    forget(error);
    return false;
  }
  check(error, "work on the device");
  return true;
}

void wait(Event event) {
  const Current current(event->device);
  count_wait();
  check(cudaEventSynchronize(event->event), "waiting for the device");
}

float elapsed_ms(Event from, Event to) {
  const Current current(from->device);
  float result = 0;
  check(cudaEventElapsedTime(&result, from->event, to->event), "cudaEventElapsedTime");
  return result;
}

}  // namespace packrnn::gpu

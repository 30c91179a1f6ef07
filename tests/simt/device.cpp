// The body of runtime/gpu.hpp for simulated devices.
#include "tests/simt/device.hpp"

#include <fmt/format.h>

#include <cstring>
#include <stdexcept>
#include <utility>

#include "packrnn/runtime/device.hpp"
#include "packrnn/runtime/error.hpp"
#include "tests/sanitized.hpp"
#include "tests/simt/world.hpp"

#if defined(PACKRNN_ASAN)
#include <sanitizer/asan_interface.h>
#endif

namespace packrnn::gpu {

struct StreamHandle {
  std::shared_ptr<simt::Queue> queue;
};
struct EventHandle {
  std::shared_ptr<simt::EventState> state;
};
struct GraphHandle {
  std::vector<simt::Operation> operations;
};

namespace {

simt::World& world() { return simt::World::get(); }

simt::Operation operation(std::function<void()> run, double cost_us = 1) {
  simt::Operation result;
  result.run = std::move(run);
  result.cost_us = cost_us;
  result.options = simt::options();
  return result;
}

void check_device(int device) {
  if (device < 0 || device >= device_count())
    throw Unsupported(fmt::format("there is no cuda:{}: {}", device, Device::cuda_status()));
}

double copy_us(std::size_t bytes) { return 2 + static_cast<double>(bytes) * 1e-5; }

}  // namespace

int device_count() noexcept { return static_cast<int>(world().devices().size()); }

std::string finding() { return fmt::format("CUDA: {} simulated devices", device_count()); }

const Properties& properties(int device) {
  check_device(device);
  return world().devices()[static_cast<std::size_t>(device)];
}

Stream create_stream(int device) {
  check_device(device);
  return new StreamHandle{world().add(device)};
}

Stream adopt_stream(int device, void* native) {
  check_device(device);
  const std::shared_ptr<simt::Queue> queue = world().find(native);
  if (!queue || queue->device != device)
    throw DeviceError(fmt::format("the given stream is not one of cuda:{}", device));
  return new StreamHandle{queue};
}

void destroy(Stream stream) noexcept { delete stream; }
int device_of(Stream stream) noexcept { return stream->queue->device; }
void* native(Stream stream) noexcept { return stream->queue.get(); }
void wait(Stream stream) { world().drain(stream->queue); }

Event create_event(int device, bool timed) {
  check_device(device);
  auto state = std::make_shared<simt::EventState>();
  state->device = device;
  state->timed = timed;
  return new EventHandle{std::move(state)};
}

void destroy(Event event) noexcept { delete event; }

void record(Event event, Stream stream) {
  if (event->state->device != stream->queue->device)
    throw DeviceError("simt: an event was recorded on another device's stream");
  world().record(stream->queue, event->state);
}

void wait(Stream stream, Event event) { world().wait(stream->queue, event->state); }

bool done(Event event) {
  const auto is_done = [&] {
    const std::lock_guard lock(world().mutex);
    return event->state->done >= event->state->recorded;
  };
  if (is_done()) return true;
  world().progress();  // or nobody who asks again and again would ever see it done
  return is_done();
}

void wait(Event event) { world().drain(event->state); }

float elapsed_ms(Event from, Event to) {
  const std::lock_guard lock(world().mutex);
  for (Event event : {from, to})
    if (!event->state->timed || event->state->recorded == 0 ||
        event->state->done < event->state->recorded)
      throw DeviceError("simt: the time of an event that is not timed, recorded and done");
  return static_cast<float>((to->state->at_us - from->state->at_us) * 1e-3);
}

void* allocate(int device, std::size_t bytes, Stream stream) {
  check_device(device);
  if (stream != nullptr && stream->queue->device != device)
    throw DeviceError("simt: memory of one device was allocated on a stream of another");
  if (stream != nullptr && capturing(stream))
    throw DeviceError("simt: memory was allocated on a stream that is being captured");
  return world().allocate(device, bytes, 256);
}

void release(int device, void* data, Stream stream) noexcept {
  if (data == nullptr) return;
  if (stream == nullptr) {  // as cudaFree: what is on the device's streams may still use it
    ++world().waits;
    world().drain_device(device);
    return world().release(device, data);
  }
  simt::Operation release = operation([device, data] { world().release(device, data); }, 0);
  release.always = true;
  world().put_past_capture(stream->queue, std::move(release));
}

void* allocate_pinned(std::size_t bytes) { return world().allocate(-1, bytes, 4096); }

void release_pinned(void* data) noexcept {
  if (data != nullptr) world().release(-1, data);
}

void copy(void* target, const void* source, std::size_t bytes, Copy kind, Stream stream) {
  const int device = stream->queue->device;
  const auto check = [=] {
    bool direct = true;
    if (kind == Copy::to_host)
      direct = world().check_host_memory(target, bytes, "target of a copy");
    else
      world().check_device_memory(device, target, bytes, "target of a copy");
    if (kind == Copy::to_device)
      direct = world().check_host_memory(source, bytes, "source of a copy");
    else
      world().check_device_memory(device, source, bytes, "source of a copy");
    return direct;
  };
  if (!check()) ++world().waits;  // CUDA may wait for pageable memory
  world().put(stream->queue, operation(
                                 [=] {
                                   check();  // it may have been released since
                                   std::memcpy(target, source, bytes);
                                 },
                                 copy_us(bytes)));
}

void copy_peer(void* target, int target_device, const void* source, int source_device,
               std::size_t bytes, Stream stream) {
  const auto check = [=] {
    world().check_device_memory(target_device, target, bytes, "target of a copy");
    world().check_device_memory(source_device, source, bytes, "source of a copy");
  };
  check();
  world().put(stream->queue, operation(
                                 [=] {
                                   check();
                                   std::memcpy(target, source, bytes);
                                 },
                                 copy_us(bytes)));
}

void fill(void* target, int byte, std::size_t bytes, Stream stream) {
  const int device = stream->queue->device;
  world().check_device_memory(device, target, bytes, "target of a fill");
  world().put(stream->queue, operation(
                                 [=] {
                                   world().check_device_memory(device, target, bytes,
                                                               "target of a fill");
                                   std::memset(target, byte, bytes);
                                 },
                                 copy_us(bytes)));
}

void begin_capture(Stream stream) {
  const std::lock_guard lock(world().mutex);
  if (stream->queue->capturing) throw DeviceError("simt: the stream is being captured already");
  stream->queue->capturing = true;
}

Graph end_capture(Stream stream) {
  auto graph = std::make_unique<GraphHandle>();
  std::vector<simt::Operation> after;
  {
    const std::lock_guard lock(world().mutex);
    if (!stream->queue->capturing) throw DeviceError("simt: the stream is not being captured");
    stream->queue->capturing = false;
    graph->operations = std::exchange(stream->queue->recording, {});
    after = std::exchange(stream->queue->after_capture, {});
  }
  world().put_all(stream->queue, after);
  return graph.release();
}

bool capturing(Stream stream) noexcept {
  const std::lock_guard lock(world().mutex);
  return stream->queue->capturing;
}

void launch(Graph graph, Stream stream) { world().put_all(stream->queue, graph->operations); }
void destroy(Graph graph) noexcept { delete graph; }

void launch(Stream /*stream*/, const char* name, const void* /*kernel*/,
            const LaunchShape& /*shape*/, void** /*arguments*/) {
  throw DeviceError(fmt::format("simt: {} was launched as if it were compiled for a GPU", name));
}

int resident_blocks(int device, const void* /*kernel*/, int block, std::size_t shared) {
  return simt::resident_blocks(properties(device), block, shared);
}

int resident_clusters(int device, const void* /*kernel*/, int block, std::size_t shared,
                      int cluster) {
  return simt::resident_clusters(properties(device), block, shared, cluster);
}

void mark(void* data, std::size_t bytes, bool usable, Stream stream) noexcept {
  simt::Operation marking = operation(
      [=] {
#if defined(PACKRNN_ASAN)
        __asan_unpoison_memory_region(data, bytes);
#endif
        if (!usable) simt::poison(data, bytes);
#if defined(PACKRNN_ASAN)
        if (!usable) __asan_poison_memory_region(data, bytes);
#endif
      },
      0);
  marking.always = true;
  world().put(stream->queue, std::move(marking));
}

std::int64_t waits() noexcept { return world().waits; }

}  // namespace packrnn::gpu

namespace packrnn::simt {

void enqueue(gpu::Stream stream, const char* name, const gpu::LaunchShape& shape,
             std::function<void()> body) {
  const gpu::Properties& properties = gpu::properties(gpu::device_of(stream));
  try {
    check(name, shape, properties);
  } catch (const Error& error) {
    throw DeviceError(error.what());
  }
  const double blocks = static_cast<double>(shape.grid[0]) * shape.grid[1] * shape.grid[2];
  World::get().put(stream->queue,
                   gpu::operation([name, shape, &properties,
                                   body = std::move(body)] { run(name, shape, properties, body); },
                                  2 + blocks));
}

}  // namespace packrnn::simt

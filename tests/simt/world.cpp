#include "tests/simt/world.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

#include "packrnn/runtime/error.hpp"
#include "tests/sanitized.hpp"
#include "tests/simt/device.hpp"

#if defined(PACKRNN_ASAN)
#include <sanitizer/asan_interface.h>
#define PACKRNN_SIMT_ALLOW(data, bytes) __asan_unpoison_memory_region(data, bytes)
#else
#define PACKRNN_SIMT_ALLOW(data, bytes) static_cast<void>(0)
#endif

namespace packrnn::simt {
namespace {

/// More than this waiting to be done, and a device would have done some of it.
constexpr std::size_t kMostWaiting = 4096;

std::uint64_t mix(std::uint64_t x) noexcept {  // splitmix64
  x += 0x9E3779B97F4A7C15U;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9U;
  x = (x ^ x >> 27) * 0x94D049BB133111EBU;
  return x ^ x >> 31;
}

bool eager() { return options().order == Order::by_seed && options().seed % 4 == 0; }

bool ready(const Queue& queue) {
  if (queue.busy || queue.operations.empty()) return false;
  const Operation& first = queue.operations.front();
  return !first.wait || first.wait->done >= first.count;
}

bool empty(const Queue& queue) { return queue.operations.empty() && !queue.busy; }

gpu::Properties first_model() {
  const char* name = std::getenv("PACKRNN_SIMT_MODEL");
  const std::string_view model = name == nullptr ? "" : name;
  return model == "a100"   ? small_a100()
         : model == "h200" ? small_h200(132)
         : tests::kTsan    ? small_h200(4)
                           : small_h200();
}

int devices_asked() {
  const char* count = std::getenv("PACKRNN_SIMT_DEVICES");
  return count == nullptr ? 2 : std::clamp(std::atoi(count), 0, 16);
}

}  // namespace

gpu::Properties small_h200(int multiprocessors) {
  gpu::Properties p;
  p.name = "simulated H200";
  p.major = 9;
  p.multiprocessors = multiprocessors;
  p.driver = 13000;
  p.memory = std::size_t{4} << 30;
  p.shared_per_block = std::size_t{227} << 10;
  p.l2 = std::size_t{4} << 20;
  p.threads_per_multiprocessor = 2048;
  p.clock_khz = 1'980'000;
  p.cooperative = true;
  p.clusters = true;
  return p;
}

gpu::Properties small_a100(int multiprocessors) {
  gpu::Properties p = small_h200();
  p.name = "simulated A100";
  p.major = 8;
  p.multiprocessors = multiprocessors;
  p.shared_per_block = std::size_t{163} << 10;
  p.clusters = false;
  return p;
}

void set_model(const gpu::Properties& model) { World::get().set_model(model); }
std::size_t allocated(int device) { return World::get().allocated(device); }
void catch_up() { World::get().drain_all(); }

World& World::get() {
  static World* const world = new World;  // never destroyed: static objects may own memory in it
  return *world;
}

World::World() : devices_(static_cast<std::size_t>(devices_asked())) { set_model(first_model()); }

void World::set_model(const gpu::Properties& model) {
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    devices_[i] = model;
    devices_[i].uuid = fmt::format("GPU-simt-{}", i);
  }
}

std::shared_ptr<Queue> World::add(int device) {
  const Lock lock(mutex);
  // Those that nobody can put anything on any more, and that have nothing left to do.
  std::erase_if(queues_, [](const auto& q) { return q.use_count() == 1 && empty(*q); });
  queues_.push_back(std::make_shared<Queue>());
  queues_.back()->device = device;
  return queues_.back();
}

std::shared_ptr<Queue> World::find(const void* queue) {
  const Lock lock(mutex);
  for (const auto& q : queues_)
    if (q.get() == queue) return q;
  return nullptr;
}

void World::put(const std::shared_ptr<Queue>& queue, Operation operation) {
  Lock lock(mutex);
  put(queue, std::move(operation), lock);
}

void World::put_all(const std::shared_ptr<Queue>& queue, const std::vector<Operation>& operations) {
  Lock lock(mutex);
  for (const Operation& operation : operations) put(queue, operation, lock);
}

void World::put(const std::shared_ptr<Queue>& queue, Operation operation, Lock& lock) {
  if (queue->capturing) {
    queue->recording.push_back(std::move(operation));
    return;
  }
  operation.issue = issued_++;
  queue->operations.push_back(std::move(operation));
  while (eager() && ready(*queue)) run_first(queue, lock);
  while (queue->operations.size() > kMostWaiting) {
    const std::shared_ptr<Queue> next = pick();
    if (!next) break;
    run_first(next, lock);
  }
}

void World::put_past_capture(const std::shared_ptr<Queue>& queue, Operation operation) {
  Lock lock(mutex);
  if (queue->capturing)
    queue->after_capture.push_back(std::move(operation));
  else
    put(queue, std::move(operation), lock);
}

void World::record(const std::shared_ptr<Queue>& queue, const std::shared_ptr<EventState>& event) {
  Lock lock(mutex);
  if (queue->capturing)
    throw DeviceError("simt: an event was recorded on a stream that is being captured");
  Operation operation;
  operation.record = event;
  operation.count = ++event->recorded;
  event->last = queue;
  put(queue, std::move(operation), lock);
}

void World::wait(const std::shared_ptr<Queue>& queue, const std::shared_ptr<EventState>& event) {
  Lock lock(mutex);
  if (queue->capturing)
    throw DeviceError("simt: a stream that is being captured was to wait for an event");
  Operation operation;
  operation.wait = event;
  operation.count = event->recorded;
  put(queue, std::move(operation), lock);
}

std::shared_ptr<Queue> World::pick() {
  std::vector<const std::shared_ptr<Queue>*> candidates;
  for (const auto& queue : queues_)
    if (ready(*queue)) candidates.push_back(&queue);
  if (candidates.empty()) {
    picks_ = 0;  // the next time is like the first, so a seed means the same in every test
    return nullptr;
  }
  const auto first_issued = [](const auto* a, const auto* b) {
    return (*a)->operations.front().issue < (*b)->operations.front().issue;
  };
  const Options& now = options();
  if (now.order == Order::forward)
    return **std::min_element(candidates.begin(), candidates.end(), first_issued);
  if (now.order == Order::reverse)
    return **std::max_element(candidates.begin(), candidates.end(), first_issued);
  return *candidates[mix(now.seed * 0x10001 + picks_++) % candidates.size()];
}

void World::run_first(const std::shared_ptr<Queue>& queue, Lock& lock) {
  Operation operation = std::move(queue->operations.front());
  queue->operations.pop_front();
  queue->busy = true;
  std::string error;
  if (operation.run && (queue->error.empty() || operation.always)) {
    lock.unlock();
    const Options own = std::exchange(options(), operation.options);
    try {
      operation.run();
    } catch (const std::exception& e) {
      error = e.what();
    }
    options() = own;
    operation.run = nullptr;  // what it holds dies here, not under the lock
    lock.lock();
  }
  queue->busy = false;
  queue->now_us += operation.cost_us;
  if (queue->error.empty()) queue->error = error;
  if (operation.wait) queue->now_us = std::max(queue->now_us, operation.wait->at_us);
  if (operation.record && operation.record->done < operation.count) {
    operation.record->done = operation.count;
    operation.record->at_us = queue->now_us;
  }
  changed_.notify_all();
}

void World::run_until(const std::function<bool()>& reached, Lock& lock) {
  while (!reached()) {
    if (const std::shared_ptr<Queue> next = pick()) {
      run_first(next, lock);
      continue;
    }
    // Other threads are running what this one needs, or about to record it.
    constexpr auto kPatience = std::chrono::seconds(600);
    if (changed_.wait_for(lock, kPatience) == std::cv_status::timeout)
      throw DeviceError("simt: nothing that the host waits for can ever be done");
  }
}

void World::drain(const std::shared_ptr<Queue>& queue) {
  ++waits;
  Lock lock(mutex);
  if (queue->capturing) throw DeviceError("simt: a wait for a stream that is being captured");
  run_until([&] { return empty(*queue); }, lock);
  if (!queue->error.empty()) throw DeviceError(std::exchange(queue->error, {}));
}

void World::drain(const std::shared_ptr<EventState>& event) {
  ++waits;
  Lock lock(mutex);
  const std::uint64_t count = event->recorded;
  run_until([&] { return event->done >= count; }, lock);
  const std::shared_ptr<Queue> queue = event->last.lock();
  if (queue && !queue->error.empty()) throw DeviceError(queue->error);
}

void World::drain_device(int device) {
  Lock lock(mutex);
  run_until(
      [&] {
        return std::all_of(queues_.begin(), queues_.end(),
                           [&](const auto& q) { return q->device != device || empty(*q); });
      },
      lock);
}

void World::drain_all() {
  Lock lock(mutex);
  run_until(
      [&] {
        return std::all_of(queues_.begin(), queues_.end(), [](const auto& q) { return empty(*q); });
      },
      lock);
}

bool World::progress() {
  Lock lock(mutex);
  const std::shared_ptr<Queue> next = pick();
  if (next) run_first(next, lock);
  return next != nullptr;
}

void* World::allocate(int device, std::size_t bytes, std::size_t alignment) {
  void* data = nullptr;
  // A device gives back what it is done with before it says that it is full.
  while (device >= 0 &&
         allocated(device) + bytes > devices_[static_cast<std::size_t>(device)].memory)
    if (!progress())
      throw OutOfMemory(fmt::format(
          "out of memory: cannot allocate {} bytes ({:.1f} MiB) on cuda:{}: {} of {} bytes are in "
          "use",
          bytes, static_cast<double>(bytes) / 0x1p20, device, allocated(device),
          devices_[static_cast<std::size_t>(device)].memory));
  if (posix_memalign(&data, alignment, bytes) != 0)
    throw OutOfMemory(fmt::format("out of memory: simt cannot allocate {} bytes", bytes));
  poison(data, bytes);
  const Lock lock(mutex);
  memory_[static_cast<const char*>(data)] = {bytes, device};
  in_use_[device] += bytes;
  return data;
}

void World::release(int device, void* data) {
  std::size_t bytes = 0;
  {
    const Lock lock(mutex);
    const auto found = memory_.find(static_cast<const char*>(data));
    if (found == memory_.end() || found->second.device != device)
      throw DeviceError(fmt::format("simt: {} was released, but is no allocation on {}", data,
                                    device < 0 ? "the host" : fmt::format("cuda:{}", device)));
    bytes = found->second.bytes;
    memory_.erase(found);
    in_use_[device] -= bytes;
  }
  PACKRNN_SIMT_ALLOW(data, bytes);
  poison(data, bytes);  // whoever still reads it gets no sensible values
  std::free(data);
}

std::size_t World::allocated(int device) {
  const Lock lock(mutex);
  return in_use_[device];
}

std::map<const char*, Allocation>::iterator World::covering(const void* data) {
  const auto after = memory_.upper_bound(static_cast<const char*>(data));
  if (after == memory_.begin()) return memory_.end();
  const auto at = std::prev(after);
  const auto offset = static_cast<std::size_t>(static_cast<const char*>(data) - at->first);
  return offset < at->second.bytes ? at : memory_.end();
}

void World::check_device_memory(int device, const void* data, std::size_t bytes, const char* what) {
  const Lock lock(mutex);
  const auto at = covering(data);
  if (at == memory_.end() || at->second.device != device)
    throw DeviceError(
        fmt::format("simt: the {} at {} is not memory of cuda:{}", what, data, device));
  const auto offset = static_cast<std::size_t>(static_cast<const char*>(data) - at->first);
  if (bytes > at->second.bytes - offset)
    throw DeviceError(
        fmt::format("simt: the {} of {} bytes at {} leaves its allocation of {} bytes at offset {}",
                    what, bytes, data, at->second.bytes, offset));
}

bool World::check_host_memory(const void* data, std::size_t bytes, const char* what) {
  const Lock lock(mutex);
  const auto at = covering(data);
  if (at == memory_.end()) return false;
  const auto offset = static_cast<std::size_t>(static_cast<const char*>(data) - at->first);
  if (at->second.device >= 0 || bytes > at->second.bytes - offset)
    throw DeviceError(
        fmt::format("simt: the {} of {} bytes at {} is not memory of the host", what, bytes, data));
  return true;
}

}  // namespace packrnn::simt

// The simt devices' streams. A stream is a list of operations, and lazy: nothing happens before
// some host thread waits; then that thread runs operations from the heads of all streams, in an
// order that depends on the seed and is bound by nothing but events. So what a real device may do
// late or early does happen late and early. With every fourth seed it is the other extreme:
// operations run as soon as they can.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "packrnn/runtime/gpu.hpp"
#include "tests/simt/simt.hpp"

namespace packrnn::simt {

/// Shared by its handle and by what is on streams, so that either may go first.
struct EventState {
  int device = 0;
  bool timed = false;
  std::uint64_t recorded = 0, done = 0;  // counts of records
  double at_us = 0;                      // virtual time of the last record that is done
  std::weak_ptr<struct Queue> last;      // where it was recorded
};

struct Operation {
  std::function<void()> run;                 // may be empty
  std::shared_ptr<EventState> record, wait;  // at most one
  std::uint64_t count = 0;                   // of the event's records
  bool always = false;                       // happens after an error, too: memory is given back
  double cost_us = 0;
  Options options;      // of the thread that asked for it
  std::uint64_t issue;  // in the order of all calls
};

struct Queue {
  int device = 0;
  std::deque<Operation> operations;
  bool busy = false;  // some thread runs the first operation, which has left the list
  bool capturing = false;
  std::vector<Operation> recording;
  std::vector<Operation> after_capture;  // memory that was given back meanwhile
  std::string error;  // the first since the last wait; until that, nothing more is done
  double now_us = 0;  // virtual time
};

struct Allocation {
  std::size_t bytes;
  int device;  // -1: pinned memory of the host
};

class World {
 public:
  static World& get();

  const std::vector<gpu::Properties>& devices() const noexcept { return devices_; }
  void set_model(const gpu::Properties& model);

  std::shared_ptr<Queue> add(int device);
  /// The queue with this address, if there is one.
  std::shared_ptr<Queue> find(const void* queue);
  /// Records it if the queue captures.
  void put(const std::shared_ptr<Queue>& queue, Operation operation);
  void put_all(const std::shared_ptr<Queue>& queue, const std::vector<Operation>& operations);
  /// Not recorded: done when the capture has ended.
  void put_past_capture(const std::shared_ptr<Queue>& queue, Operation operation);
  void record(const std::shared_ptr<Queue>& queue, const std::shared_ptr<EventState>& event);
  void wait(const std::shared_ptr<Queue>& queue, const std::shared_ptr<EventState>& event);

  /// The host's waits. Throws the queue's error, which is then forgotten.
  void drain(const std::shared_ptr<Queue>& queue);
  void drain(const std::shared_ptr<EventState>& event);
  void drain_device(int device);
  void drain_all();
  /// Time passes: one operation, if there is one that can be done.
  bool progress();

  void* allocate(int device, std::size_t bytes, std::size_t alignment);
  void release(int device, void* data);
  std::size_t allocated(int device);
  /// Throws DeviceError unless the bytes lie within one allocation on the device.
  void check_device_memory(int device, const void* data, std::size_t bytes, const char* what);
  /// Throws DeviceError if any of it is a device's; says whether it is pinned.
  bool check_host_memory(const void* data, std::size_t bytes, const char* what);

  std::atomic<std::int64_t> waits{0};
  std::mutex mutex;  // guards all but devices_; not held while operations run

 private:
  using Lock = std::unique_lock<std::mutex>;

  World();
  void put(const std::shared_ptr<Queue>& queue, Operation operation, Lock& lock);
  std::shared_ptr<Queue> pick();
  void run_first(const std::shared_ptr<Queue>& queue, Lock& lock);
  void run_until(const std::function<bool()>& reached, Lock& lock);
  std::map<const char*, Allocation>::iterator covering(const void* data);

  std::vector<gpu::Properties> devices_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<Queue>> queues_;
  std::map<const char*, Allocation> memory_;  // by its first byte
  std::map<int, std::size_t> in_use_;         // bytes, by device
  std::uint64_t issued_ = 0, picks_ = 0;
};

}  // namespace packrnn::simt

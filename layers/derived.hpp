// A value computed from a layer's parameters (packed weights) and kept until they change, one for
// each device that asks; private to the library. This is what makes forward() const and safe to
// call from many threads, and several devices, at once.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "packrnn/runtime/context.hpp"

namespace packrnn {

/// A point in the work of a context on a GPU. On the CPU, where work is done when a call returns,
/// there is nothing to mark.
class StreamMark {
 public:
  StreamMark() = default;
  /// All that `context` was asked for so far.
  explicit StreamMark(Context& context);

  /// What `context` is asked for from here on starts after the mark: the device waits, the host
  /// does not. Throws InvalidArgument while `context` is captured and the mark is not reached yet:
  /// a graph could not wait for it.
  void hold_up(Context& context);

 private:
  gpu::Stream stream_ = nullptr;
  std::shared_ptr<void> event_;  // null: reached
};

/// Throws InvalidArgument while the work of `context` is captured: what is derived now would be
/// recorded instead of done.
void refuse_capture(const Context& context);

template <class T>
class Derived {
 public:
  /// The value for this version of the parameters on the context's device. `make` returns a T and
  /// runs at most once per version and device, also when several threads come first together; it
  /// puts its work on the context's stream. Other streams of the device are made to wait for that
  /// work. What `make` throws leaves everything as it was.
  ///
  /// The memory of a T must not be tied to one stream (Tensor::empty, not Context::empty): a value
  /// that is replaced may still be in use on several.
  template <class Make>
  std::shared_ptr<const T> get(Context& context, std::uint64_t version, Make&& make) const {
    const std::scoped_lock lock(state_->mutex);
    Entry& entry = state_->entry(context.device());
    if (!entry.value || entry.version != version) {
      refuse_capture(context);
      auto value = std::make_shared<const T>(make());
      entry.mark = StreamMark(context);
      entry.value = std::move(value);
      entry.version = version;
    }
    entry.mark.hold_up(context);
    return entry.value;
  }

 private:
  struct Entry {
    Device device;
    std::shared_ptr<const T> value;
    std::uint64_t version = 0;
    StreamMark mark;  // when the value is there
  };
  struct State {
    std::mutex mutex;
    std::vector<Entry> entries;  // one per device: few

    Entry& entry(Device device) {
      for (Entry& known : entries)
        if (known.device == device) return known;
      entries.emplace_back().device = device;
      return entries.back();
    }
  };
  std::unique_ptr<State> state_ = std::make_unique<State>();  // apart, so that layers can move
};

/// The same for parameters that are trained on a device, where values change with every step: kept
/// only while somebody else holds it, as a tape does until its backward. So its memory can be that
/// of the context's stream, and neither making nor dropping it waits for the device.
template <class T>
class DerivedForStep {
 public:
  /// Not from several threads at once.
  template <class Make>
  std::shared_ptr<const T> get(Context& context, std::uint64_t version, Make&& make) {
    // While the value lives, so does the stream that its memory belongs to.
    std::shared_ptr<const T> value = value_.lock();
    if (value && version_ == version && stream_ == context.stream()) return value;
    value = std::make_shared<const T>(make());
    value_ = value;
    version_ = version;
    stream_ = context.stream();
    return value;
  }

 private:
  std::weak_ptr<const T> value_;
  std::uint64_t version_ = 0;
  gpu::Stream stream_ = nullptr;
};

}  // namespace packrnn

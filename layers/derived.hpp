// A value computed from a layer's parameters (packed weights) and kept until they change; private
// to the library. This is what makes forward() const and safe to call from many threads at once.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

namespace packrnn {

template <class T>
class Derived {
 public:
  /// The value made for this version of the parameters; `make` returns a T and runs at most once
  /// per version, also when several threads come first together.
  template <class Make>
  std::shared_ptr<const T> get(std::uint64_t version, Make&& make) const {
    const std::scoped_lock lock(state_->mutex);
    if (!state_->value || state_->version != version) {
      state_->value = std::make_shared<const T>(make());
      state_->version = version;
    }
    return state_->value;
  }

 private:
  struct State {
    std::mutex mutex;
    std::shared_ptr<const T> value;
    std::uint64_t version = 0;
  };
  std::unique_ptr<State> state_ = std::make_unique<State>();  // apart, so that layers can move
};

}  // namespace packrnn

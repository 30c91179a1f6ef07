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
    const std::scoped_lock lock(mutex_);
    if (!value_ || version_ != version) {
      value_ = std::make_shared<const T>(make());
      version_ = version;
    }
    return value_;
  }

 private:
  mutable std::mutex mutex_;
  mutable std::shared_ptr<const T> value_;
  mutable std::uint64_t version_ = 0;
};

}  // namespace packrnn

// What tests of kernels need to run on any device: targets with guard bytes in the device's memory.
#pragma once

#include "packrnn/runtime/context.hpp"
#include "tests/packing_cases.hpp"

namespace packrnn::tests {

inline bool on_gpu(const Context& context) { return context.device().type == DeviceType::cuda; }

// A target full of poison (0xFF is NaN in every floating dtype) between guard bytes, on the device
// of the context. `shift` bytes after a boundary of 64.
class Target {
 public:
  Target(Context& context, const Shape& shape, Dtype dtype, std::byte poison = std::byte{0xFF},
         std::size_t shift = 0)
      : context_(context),
        begin_(kGuard + shift),
        bytes_(static_cast<std::size_t>(shape.elements()) * size_of(dtype)) {
    Bytes initial(begin_ + bytes_ + kGuard, kMark);
    std::fill_n(initial.begin() + static_cast<std::ptrdiff_t>(begin_), bytes_, poison);
    initial.resize((initial.size() + 3) / 4 * 4, kMark);
    const auto words = static_cast<std::int64_t>(initial.size() / 4);
    memory_ = context.to_device(TensorView(initial.data(), {words}, Dtype::i32));
    span_ = TensorSpan(static_cast<std::byte*>(memory_.span().raw()) + begin_, shape, dtype,
                       context.device());
  }

  const TensorSpan& span() const { return span_; }
  operator const TensorSpan&() const { return span_; }  // NOLINT(google-explicit-constructor)
  // These wait, and throw what kernels found wrong.
  Bytes bytes() const {
    const Bytes all = everything();
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(begin_);
    return {begin, begin + static_cast<std::ptrdiff_t>(bytes_)};
  }
  bool guards_intact() const {
    const Bytes all = everything();
    for (std::size_t i = 0; i < all.size(); ++i)
      if ((i < begin_ || i >= begin_ + bytes_) && all[i] != kMark) return false;
    return true;
  }

 private:
  static constexpr std::size_t kGuard = 64;
  static constexpr std::byte kMark{0xA5};

  Bytes everything() const { return bytes_of(context_.to_host(memory_)); }

  Context& context_;
  std::size_t begin_, bytes_;
  Tensor memory_;
  TensorSpan span_;
};

// The bytes of a tensor of the context's device.
inline Bytes bytes_on(Context& context, const TensorView& tensor) {
  return bytes_of(context.to_host(tensor));
}

}  // namespace packrnn::tests

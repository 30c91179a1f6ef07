#include "packrnn/runtime/tensor.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "packrnn/runtime/element.hpp"
#include "packrnn/runtime/expects.hpp"
#include "packrnn/runtime/gpu.hpp"

namespace packrnn {
namespace {

constexpr std::int64_t kMaxInt64 = std::numeric_limits<std::int64_t>::max();

std::int64_t max_elements(Dtype dtype) noexcept {
  return kMaxInt64 / static_cast<std::int64_t>(size_of(dtype));
}

template <class T>
T load(const void* data, std::int64_t i) noexcept {
  T value;
  std::memcpy(&value, static_cast<const std::byte*>(data) + i * std::int64_t{sizeof(T)}, sizeof(T));
  return value;
}

template <class T>
void store(void* data, std::int64_t i, T value) noexcept {
  std::memcpy(static_cast<std::byte*>(data) + i * std::int64_t{sizeof(T)}, &value, sizeof(T));
}

void copy_bytes(void* target, const void* source, std::size_t bytes) noexcept {
  if (bytes != 0)  // null is legal without bytes, but not for memcpy
    std::memcpy(target, source, bytes);
}

void expects_host(const TensorView& view, const char* name) {
  expects(view.defined(), "{} is not defined", name);
  expects(view.device().type == DeviceType::cpu, "{} is on {}, but must be on the host", name,
          view.device());
}

/// Zeros without a context, so with a stream for the occasion.
void fill_device(const TensorSpan& span) {
  if (span.bytes() == 0) return;
  const std::unique_ptr<gpu::StreamHandle, void (*)(gpu::Stream)> stream(
      gpu::create_stream(span.device().index), [](gpu::Stream s) { gpu::destroy(s); });
  gpu::fill(span.raw(), 0, span.bytes(), stream.get());
  gpu::wait(stream.get());
}

void check_convertible(const TensorView& source, Dtype dtype) {
  expects_host(source, "source");
  expects(!is_floating(source.dtype()) || is_floating(dtype),
          "source is {}: floating values are not converted to {}", source.dtype(), dtype);
  if (source.dtype() != Dtype::i64 || dtype != Dtype::i32) return;
  for (std::int64_t i = 0; i < source.elements(); ++i) {
    const auto value = load<std::int64_t>(source.raw(), i);
    expects(std::in_range<std::int32_t>(value), "source[{}] is {}, which does not fit i32", i,
            value);
  }
}

void convert_checked(const TensorView& source, const TensorSpan& target) {
  if (source.dtype() == target.dtype())
    return copy_bytes(target.raw(), source.raw(), source.bytes());
  with_dtype(source.dtype(), [&]<class S>(std::type_identity<S>) {
    with_dtype(target.dtype(), [&]<class T>(std::type_identity<T>) {
      if constexpr (std::is_integral_v<S> || !std::is_integral_v<T>) {
        const void* from = source.raw();
        void* to = target.raw();
        const std::int64_t count = source.elements();
        for (std::int64_t i = 0; i < count; ++i)
          store<T>(to, i, convert_element<T>(load<S>(from, i)));
      }
    });
  });
}

}  // namespace

Shape::Shape(std::initializer_list<std::int64_t> extents)
    : Shape(std::span<const std::int64_t>(extents.begin(), extents.size())) {}

namespace {

/// Why these are no shape. Apart from the constructor, which every call of a layer goes through
/// dozens of times.
[[noreturn, gnu::cold]] void refuse_shape(std::span<const std::int64_t> extents) {
  expects(extents.size() <= Shape::kMaxRank,
          "a shape has {} dimensions, but at most {} are possible", extents.size(),
          Shape::kMaxRank);
  for (std::size_t i = 0; i < extents.size(); ++i)
    expects(extents[i] >= 0, "extent {} of shape [{}] is {}, but must not be negative", i,
            fmt::join(extents, ", "), extents[i]);
  throw InvalidArgument(fmt::format("shape [{}] has more elements than an int64 can count",
                                    fmt::join(extents, ", ")));
}

}  // namespace

Shape::Shape(std::span<const std::int64_t> extents) {
  if (extents.size() > kMaxRank) refuse_shape(extents);
  std::int64_t product = 1;
  bool none = false, bad = false;
  for (std::size_t i = 0; i < extents.size(); ++i) {
    const std::int64_t extent = extents[i];
    extents_[i] = extent;
    none = none || extent == 0;
    // Zeros are left out, so that no part of a legal shape can overflow either.
    bad = bad || extent < 0 ||
          __builtin_mul_overflow(product, std::max<std::int64_t>(extent, 1), &product);
  }
  if (bad) refuse_shape(extents);
  rank_ = static_cast<int>(extents.size());
  elements_ = none ? 0 : product;
}

std::int64_t Shape::operator[](int i) const {
  expects(i >= -rank_ && i < rank_, "dimension {} of shape {} does not exist", i, *this);
  return extents_[static_cast<std::size_t>(i < 0 ? i + rank_ : i)];
}

Shape Shape::from(int first) const {
  expects(first >= 0 && first <= rank_, "first is {}, but shape {} has {} dimensions", first, *this,
          rank_);
  return Shape(extents().subspan(static_cast<std::size_t>(first)));
}

Shape Shape::prepend(std::int64_t extent) const {
  expects(rank_ < kMaxRank, "shape {} has {} dimensions already, the most that are possible", *this,
          kMaxRank);
  std::array<std::int64_t, kMaxRank> longer{extent};
  std::copy_n(extents_.begin(), rank_, longer.begin() + 1);
  return Shape(std::span<const std::int64_t>(longer.data(), static_cast<std::size_t>(rank_) + 1));
}

std::string Shape::str() const { return fmt::format("[{}]", fmt::join(extents(), ", ")); }

TensorView::TensorView(const void* data, Shape shape, Dtype dtype, Device device)
    : data_(data), shape_(shape), dtype_(dtype), device_(device), defined_(true) {
  expects(data != nullptr || shape.elements() == 0, "data is null, but shape {} has elements",
          shape);
  expects(shape.elements() <= max_elements(dtype),
          "shape {} of {} has more bytes than an int64 can count", shape, dtype);
}

void TensorView::check_access(Dtype dtype) const {
  expects(defined_, "a tensor that is not defined was read as {}", dtype);
  expects(dtype == dtype_, "a tensor of {} was read as {}", dtype_, dtype);
  expects(device_.type == DeviceType::cpu, "a tensor on {} was read by the host", device_);
  expects(reinterpret_cast<std::uintptr_t>(data_) % size_of(dtype) == 0,
          "a tensor of {} at address {} is not aligned to its elements; copy it first", dtype,
          data_);
}

TensorView TensorView::rows(std::int64_t begin, std::int64_t end) const {
  expects(defined_ && shape_.rank() > 0, "rows were asked of a tensor that has none");
  expects(begin >= 0 && begin <= end && end <= shape_[0],
          "rows [{}, {}) are not within the {} rows of shape {}", begin, end, shape_[0], shape_);
  const Shape row = shape_.from(1);
  TensorView view = *this;
  view.shape_ = row.prepend(end - begin);
  const std::int64_t offset = begin * row.elements() * static_cast<std::int64_t>(size_of(dtype_));
  if (offset != 0) view.data_ = static_cast<const std::byte*>(data_) + offset;
  return view;
}

TensorView TensorView::reshape(Shape shape) const {
  expects(defined_, "a tensor that is not defined cannot become {}", shape);
  expects(shape.elements() == shape_.elements(), "shape {} ({} elements) cannot become {} ({})",
          shape_, shape_.elements(), shape, shape.elements());
  TensorView view = *this;
  view.shape_ = shape;
  return view;
}

TensorSpan TensorSpan::rows(std::int64_t begin, std::int64_t end) const {
  const TensorView view = TensorView::rows(begin, end);
  return {const_cast<void*>(view.raw()), view.shape(), dtype_, device_};
}

TensorSpan TensorSpan::reshape(Shape shape) const {
  const TensorView view = TensorView::reshape(shape);
  return {raw(), view.shape(), dtype_, device_};
}

Tensor::Tensor(Tensor&& other) noexcept
    : storage_(std::move(other.storage_)), span_(std::exchange(other.span_, {})) {}

Tensor& Tensor::operator=(Tensor&& other) noexcept {
  if (this != &other) {
    storage_ = std::move(other.storage_);
    span_ = std::exchange(other.span_, {});
  }
  return *this;
}

std::size_t Tensor::bytes_of(const Shape& shape, Dtype dtype) {
  if (shape.elements() > max_elements(dtype))
    throw OutOfMemory(
        fmt::format("out of memory: a tensor {} of {} has more bytes than 2^63", shape, dtype));
  return static_cast<std::size_t>(shape.elements()) * size_of(dtype);
}

Tensor Tensor::empty(Shape shape, Dtype dtype, Device device) {
  auto storage = std::make_shared<Buffer>(Buffer::allocate(device, bytes_of(shape, dtype)));
  void* data = storage->data();
  return share(std::move(storage), data, shape, dtype);
}

Tensor Tensor::zeros(Shape shape, Dtype dtype, Device device) {
  Tensor tensor = empty(shape, dtype, device);
  if (device.type == DeviceType::cuda)
    fill_device(tensor.span_);
  else
    std::memset(tensor.span_.raw(), 0, tensor.span_.bytes());
  return tensor;
}

Tensor Tensor::copy_of(const TensorView& view) {
  expects_host(view, "view");
  Tensor copy = empty(view.shape(), view.dtype());
  copy_bytes(copy.span_.raw(), view.raw(), view.bytes());
  return copy;
}

Tensor Tensor::share(std::shared_ptr<Buffer> storage, void* data, Shape shape, Dtype dtype) {
  expects(storage != nullptr, "storage is null");
  const TensorSpan span(data, shape, dtype, storage->device());
  const auto base = reinterpret_cast<std::uintptr_t>(storage->data());
  const auto first = reinterpret_cast<std::uintptr_t>(data);
  expects(span.bytes() == 0 || (first >= base && first - base <= storage->size() &&
                                span.bytes() <= storage->size() - (first - base)),
          "a tensor {} of {} ({} bytes at offset {}) does not lie within its storage of {} bytes",
          shape, dtype, span.bytes(), static_cast<std::intptr_t>(first - base), storage->size());
  Tensor tensor;
  tensor.storage_ = std::move(storage);
  tensor.span_ = span;
  return tensor;
}

Tensor Tensor::reshape(Shape shape) && {
  const TensorSpan span = span_.reshape(shape);  // throws before *this is touched
  Tensor tensor;
  tensor.storage_ = std::move(storage_);
  tensor.span_ = span;
  span_ = {};
  return tensor;
}

TensorView Tensor::checked_view(const void* data, std::int64_t count, const Shape& shape,
                                Dtype dtype) {
  expects(count == shape.elements(), "{} values were given for shape {}, which has {} elements",
          count, shape, shape.elements());
  return {data, shape, dtype};
}

bool overlap(const TensorView& a, const TensorView& b) noexcept {
  const auto a_begin = reinterpret_cast<std::uintptr_t>(a.raw());
  const auto b_begin = reinterpret_cast<std::uintptr_t>(b.raw());
  return a_begin < b_begin + b.bytes() && b_begin < a_begin + a.bytes();
}

Tensor convert(const TensorView& source, Dtype dtype) {
  check_convertible(source, dtype);
  Tensor target = Tensor::empty(source.shape(), dtype);
  convert_checked(source, target.span());
  return target;
}

void convert_into(const TensorView& source, const TensorSpan& target) {
  expects_host(target, "target");
  check_convertible(source, target.dtype());
  expects(source.shape() == target.shape(), "source is {}, but target is {}", source.shape(),
          target.shape());
  expects(!overlap(source, target), "source and target overlap");
  convert_checked(source, target);
}

}  // namespace packrnn

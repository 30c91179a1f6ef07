// Contiguous row-major arrays. TensorView reads, TensorSpan writes, Tensor owns. There are no
// strides: a caller with a strided array copies it first, and sees that copy in their own code.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "packrnn/runtime/buffer.hpp"
#include "packrnn/runtime/device.hpp"
#include "packrnn/runtime/dtype.hpp"

namespace packrnn {

/// Extents of at most kMaxRank dimensions, each >= 0, whose product, zeros left out, fits an int64
/// (checked when made: InvalidArgument). A value without heap memory. Rank 0 is a scalar of one
/// element.
class Shape {
 public:
  static constexpr int kMaxRank = 8;

  Shape() = default;
  Shape(std::initializer_list<std::int64_t> extents);
  explicit Shape(std::span<const std::int64_t> extents);

  int rank() const noexcept { return rank_; }
  /// Extent of dimension i; negative i counts from the end. Throws InvalidArgument out of range.
  std::int64_t operator[](int i) const;
  /// Product of all extents (1 for rank 0).
  std::int64_t elements() const noexcept { return elements_; }
  std::span<const std::int64_t> extents() const noexcept {
    return {extents_.data(), static_cast<std::size_t>(rank_)};
  }
  /// The dimensions from `first` on: the shape of one row when `first` is 1.
  Shape from(int first) const;
  /// This shape with `extent` put before it.
  Shape prepend(std::int64_t extent) const;

  /// "[3, 4]".
  std::string str() const;

  friend bool operator==(const Shape&, const Shape&) = default;

 private:
  std::array<std::int64_t, kMaxRank> extents_{};
  int rank_ = 0;
  std::int64_t elements_ = 1;
};

/// Borrowed, read-only. Valid as long as what it looks at. An absent argument is TensorView{}
/// (defined() is false).
class TensorView {
 public:
  TensorView() = default;
  /// Throws InvalidArgument for null data with elements, or more bytes than an int64 counts.
  TensorView(const void* data, Shape shape, Dtype dtype, Device device = Device::cpu());
  template <class T>
  TensorView(const T* data, Shape shape) : TensorView(data, shape, kDtypeOf<T>) {}

  bool defined() const noexcept { return defined_; }
  const void* raw() const noexcept { return data_; }
  const Shape& shape() const noexcept { return shape_; }
  std::int64_t size(int dim) const { return shape_[dim]; }
  std::int64_t elements() const noexcept { return defined_ ? shape_.elements() : 0; }
  std::size_t bytes() const noexcept {
    return static_cast<std::size_t>(elements()) * size_of(dtype_);
  }
  Dtype dtype() const noexcept { return dtype_; }
  Device device() const noexcept { return device_; }

  /// Typed pointer; throws InvalidArgument unless T matches dtype(), the memory is the host's and
  /// it is aligned to T (a view of a mapped file need not be; copy_of() and convert() take that
  /// too).
  template <class T>
  const T* data() const {
    check_access(kDtypeOf<T>);
    return static_cast<const T*>(data_);
  }
  /// The elements in row-major order; same checks as data().
  template <class T>
  std::span<const T> values() const {
    return {data<T>(), static_cast<std::size_t>(elements())};
  }

  /// Rows [begin, end) of the first dimension; still contiguous.
  TensorView rows(std::int64_t begin, std::int64_t end) const;
  /// Same elements under another shape of equal size.
  TensorView reshape(Shape shape) const;

 protected:
  void check_access(Dtype dtype) const;

  const void* data_ = nullptr;
  Shape shape_;
  Dtype dtype_ = Dtype::f32;
  Device device_;
  bool defined_ = false;
};

/// Borrowed, writable. Converts to TensorView.
class TensorSpan : public TensorView {
 public:
  TensorSpan() = default;
  TensorSpan(void* data, Shape shape, Dtype dtype, Device device = Device::cpu())
      : TensorView(data, shape, dtype, device) {}
  template <class T>
  TensorSpan(T* data, Shape shape) : TensorView(data, shape, kDtypeOf<T>) {}

  void* raw() const noexcept { return const_cast<void*>(data_); }
  template <class T>
  T* data() const {
    check_access(kDtypeOf<T>);
    return static_cast<T*>(raw());
  }
  template <class T>
  std::span<T> values() const {
    return {data<T>(), static_cast<std::size_t>(elements())};
  }
  TensorSpan rows(std::int64_t begin, std::int64_t end) const;
  TensorSpan reshape(Shape shape) const;
};

/// Owns its elements. Moves are cheap; a copy is spelled clone(). A default-made or moved-from
/// Tensor is not defined().
class Tensor {
 public:
  Tensor() = default;
  Tensor(Tensor&& other) noexcept;
  Tensor& operator=(Tensor&& other) noexcept;

  /// Uninitialised elements. Throws OutOfMemory. On a GPU both may wait for the device; the same of
  /// a Context (runtime/context.hpp) do not.
  static Tensor empty(Shape shape, Dtype dtype, Device device = Device::cpu());
  static Tensor zeros(Shape shape, Dtype dtype, Device device = Device::cpu());
  /// A copy of `values`, whose count must be shape.elements().
  template <class T>
  static Tensor from(std::span<const T> values, Shape shape) {
    return copy_of(
        checked_view(values.data(), static_cast<std::int64_t>(values.size()), shape, kDtypeOf<T>));
  }
  template <class T>
  static Tensor from(const std::vector<T>& values, Shape shape) {
    return from(std::span<const T>(values), shape);
  }
  template <class T>
  static Tensor from(std::initializer_list<T> values, Shape shape) {
    return from(std::span<const T>(values.begin(), values.size()), shape);
  }
  /// A copy of what `view` shows, on the host both.
  static Tensor copy_of(const TensorView& view);
  /// What the elements take; throws OutOfMemory if an int64 cannot count it.
  static std::size_t bytes_of(const Shape& shape, Dtype dtype);
  /// Shares storage that already exists: `data` points into `storage`, which is kept alive.
  static Tensor share(std::shared_ptr<Buffer> storage, void* data, Shape shape, Dtype dtype);

  Tensor clone() const { return copy_of(view()); }
  /// Gives the same elements another shape of equal size, without copying. Consumes *this.
  Tensor reshape(Shape shape) &&;

  bool defined() const noexcept { return span_.defined(); }
  const Shape& shape() const noexcept { return span_.shape(); }
  std::int64_t size(int dim) const { return span_.size(dim); }
  std::int64_t elements() const noexcept { return span_.elements(); }
  Dtype dtype() const noexcept { return span_.dtype(); }
  Device device() const noexcept { return span_.device(); }

  TensorView view() const noexcept { return span_; }
  TensorSpan span() noexcept { return span_; }
  operator TensorView() const noexcept { return span_; }  // NOLINT(google-explicit-constructor)
  operator TensorSpan() noexcept { return span_; }        // NOLINT(google-explicit-constructor)

  template <class T>
  std::span<const T> values() const {
    return view().values<T>();
  }
  template <class T>
  std::span<T> values() {
    return span_.values<T>();
  }
  /// The storage, shared with DLPack consumers.
  const std::shared_ptr<Buffer>& storage() const noexcept { return storage_; }

 private:
  static TensorView checked_view(const void* data, std::int64_t count, const Shape& shape,
                                 Dtype dtype);

  std::shared_ptr<Buffer> storage_;
  TensorSpan span_;
};

/// Whether the two show a byte in common; of device memory, only if both are on the same device.
bool overlap(const TensorView& a, const TensorView& b) noexcept;

/// A copy with every element converted to `dtype` (floating to integer is refused; float to 16-bit
/// rounds to nearest even, f64 too, once; i64 to i32 must fit; equal dtypes copy).
Tensor convert(const TensorView& source, Dtype dtype);
/// The same into memory that exists; shapes must be equal. May not overlap (checked).
void convert_into(const TensorView& source, const TensorSpan& target);

}  // namespace packrnn

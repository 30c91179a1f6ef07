#include "packrnn/kernels/elementwise.hpp"

#include <cstring>
#include <type_traits>

#include "packrnn/kernels/check.hpp"
#include "packrnn/kernels/cpu/parallel_for.hpp"
#include "packrnn/kernels/cpu/with_real.hpp"
#include "packrnn/kernels/cuda/elementwise.hpp"
#include "packrnn/kernels/cuda/pack.hpp"
#include "packrnn/kernels/cuda/row.hpp"
#include "packrnn/kernels/fill_value.hpp"

namespace packrnn::kernels {
namespace {

// Checks y = f(a, b) of elements; b may be a.
void check_elements(const Context& context, const char* name, const TensorView& a,
                    const TensorView& b, const TensorSpan& y) {
  expects(a.defined(), "{}: an argument is not defined", name);
  check_computable(name, a.dtype(), context.device());
  check("the first argument", a, a.shape(), a.dtype(), context.device());
  check("the second argument", b, a.shape(), a.dtype(), context.device());
  check("the result", y, a.shape(), a.dtype(), context.device());
}

// Assigns it on the CPU.
template <class Function>
void for_elements(Context& context, const TensorView& a, const TensorView& b, const TensorSpan& y,
                  Function&& function) {
  cpu::with_real(a.dtype(), [&]<class T>(std::type_identity<T>) {
    const T* const first = a.data<T>();
    const T* const second = b.data<T>();
    T* const to = y.data<T>();
    cpu::parallel_for(context.pool(), a.elements(), 3 * std::int64_t{sizeof(T)},
                      [&](std::int64_t begin, std::int64_t end) {
                        for (std::int64_t i = begin; i < end; ++i)
                          to[i] = function(first[i], second[i]);
                      });
  });
}

bool on_gpu(const Context& context) { return context.device().type == DeviceType::cuda; }

}  // namespace

void convert_elements(Context& context, const TensorView& source, const TensorSpan& target) {
  expects(source.defined(), "source is not defined");
  check("source", source, source.shape(), source.dtype(), context.device());
  check("target", target, source.shape(), target.dtype(), context.device());
  if (source.dtype() == target.dtype()) return context.copy(source, target);
  if (context.device().type == DeviceType::cpu) return convert_into(source, target);
  if (!is_floating(source.dtype()) || !is_floating(target.dtype()))
    throw Unsupported(fmt::format("{} cannot become {} on a GPU: both must be floating",
                                  source.dtype(), target.dtype()));
  cuda::convert(context.stream(), source.raw(), source.dtype(), source.elements(), target.raw(),
                target.dtype());
}

void swap_axes(Context& context, const TensorView& source, const TensorSpan& target) {
  expects(source.defined() && source.shape().rank() >= 2,
          "source: shape {}, expected two or more dimensions", source.shape());
  const std::int64_t a_count = source.size(0), b_count = source.size(1);
  const Shape row_shape = source.shape().from(2);
  check("source", source, source.shape(), source.dtype(), context.device());
  check("target", target, row_shape.prepend(a_count).prepend(b_count), source.dtype(),
        context.device());
  if (source.elements() == 0) return;
  const auto row = row_shape.elements() * static_cast<std::int64_t>(size_of(source.dtype()));
  if (context.device().type == DeviceType::cuda)
    return cuda::swap_axes(
        context.stream(), source.raw(), a_count, b_count,
        cuda::row_of(row, cuda::address(source.raw()) | cuda::address(target.raw())), target.raw());
  const auto* from = static_cast<const std::byte*>(source.raw());
  auto* to = static_cast<std::byte*>(target.raw());
  for (std::int64_t a = 0; a < a_count; ++a)
    for (std::int64_t b = 0; b < b_count; ++b)
      std::memcpy(to + (b * a_count + a) * row, from + (a * b_count + b) * row,
                  static_cast<std::size_t>(row));
}

void add_scaled(Context& context, const TensorView& a, double factor, const TensorView& b,
                const TensorSpan& y) {
  check_elements(context, "add_scaled", a, b, y);
  if (on_gpu(context))
    return cuda::add_scaled(context.stream(), a.dtype(), a.raw(), factor, b.raw(), a.elements(),
                            y.raw());
  for_elements(context, a, b, y,
               [&]<class T>(T first, T second) { return first + static_cast<T>(factor) * second; });
}

void multiply(Context& context, const TensorView& a, const TensorView& b, const TensorSpan& y) {
  check_elements(context, "multiply", a, b, y);
  if (on_gpu(context))
    return cuda::multiply(context.stream(), a.dtype(), a.raw(), b.raw(), a.elements(), y.raw());
  for_elements(context, a, b, y, []<class T>(T first, T second) { return first * second; });
}

void scale(Context& context, const TensorView& x, double factor, const TensorSpan& y) {
  check_elements(context, "scale", x, x, y);
  if (on_gpu(context))
    return cuda::scale(context.stream(), x.dtype(), x.raw(), factor, x.elements(), y.raw());
  for_elements(context, x, x, y,
               [&]<class T>(T first, T) { return static_cast<T>(factor) * first; });
}

void fill(Context& context, double value, const TensorSpan& target) {
  expects(target.defined(), "target is not defined");
  check("target", target, target.shape(), target.dtype(), context.device());
  const FillValue element = fill_value(value, target.dtype(), "value");
  const auto bytes = static_cast<std::int64_t>(target.bytes());
  if (context.device().type == DeviceType::cuda) {
    // As rows of one vector each.
    cuda::Row row = cuda::row_of(bytes, cuda::address(target.raw()), element);
    row.bytes = row.vector;
    return cuda::fill_rows(context.stream(), bytes / row.vector, row, target.raw());
  }
  auto* to = static_cast<std::byte*>(target.raw());
  const auto size = static_cast<std::int64_t>(element.size);
  for (std::int64_t at = 0; at < bytes; at += size)
    std::memcpy(to + at, element.bytes.data(), element.size);
}

}  // namespace packrnn::kernels

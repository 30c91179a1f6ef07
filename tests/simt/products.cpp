// Products on simt devices: plain loops, each sum in the order of k.
#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <type_traits>

#include "packrnn/runtime/element.hpp"
#include "packrnn/runtime/error.hpp"
#include "tests/simt/device.hpp"
#include "tests/simt/world.hpp"

namespace packrnn::gpu {

struct ProductsHandle {
  Stream stream;
};

namespace {

/// Nearest float with 10 bits after the point, ties to even.
float tf32(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7F800000U) == 0x7F800000U) return value;
  return std::bit_cast<float>((bits + 0xFFFU + (bits >> 13 & 1U)) & ~0x1FFFU);
}

template <class T>
float factor(const void* data, std::int64_t i) {
  const T value = static_cast<const T*>(data)[i];
  return std::is_same_v<T, float> ? tf32(convert_element<float>(value))
                                  : convert_element<float>(value);
}

template <class In, class Out>
void multiply_now(const Product& p, const void* a, const void* b, const float* bias, void* d) {
  std::vector<float> left(static_cast<std::size_t>(p.k));
  for (std::int64_t i = 0; i < p.m; ++i) {
    for (std::int64_t l = 0; l < p.k; ++l)
      left[static_cast<std::size_t>(l)] =
          factor<In>(a, p.transposed ? l * p.lda + i : i * p.lda + l);
    for (std::int64_t j = 0; j < p.n; ++j) {
      float sum = 0;
      for (std::int64_t l = 0; l < p.k; ++l)
        sum = std::fma(left[static_cast<std::size_t>(l)],
                       factor<In>(b, p.transposed ? l * p.ldb + j : j * p.ldb + l), sum);
      Out& out = static_cast<Out*>(d)[i * p.ldd + j];
      if (p.accumulate) sum += convert_element<float>(out);
      if (bias != nullptr) sum += bias[j];
      out = convert_element<Out>(sum);
    }
  }
}

void multiply_any(const Product& p, const void* a, const void* b, const float* bias, void* d) {
  const auto with = [&]<class In>(std::type_identity<In>) {
    if (p.out == Dtype::f32)
      multiply_now<In, float>(p, a, b, bias, d);
    else
      multiply_now<In, In>(p, a, b, bias, d);
  };
  if (p.in == Dtype::f32) return with(std::type_identity<float>{});
  if (p.in == Dtype::f16) return with(std::type_identity<Half>{});
  with(std::type_identity<BFloat16>{});
}

/// Bytes from the first element to the last of a matrix.
std::size_t extent(std::int64_t rows, std::int64_t columns, std::int64_t pitch, Dtype dtype) {
  return static_cast<std::size_t>((rows - 1) * pitch + columns) * size_of(dtype);
}

}  // namespace

Products create_products(Stream stream) { return new ProductsHandle{stream}; }
void destroy(Products products) noexcept { delete products; }

void multiply(Products products, const Product& product, const void* a, const void* b,
              const float* bias, void* d) {
  const Product p = checked(product, bias != nullptr);
  if (p.m == 0 || p.n == 0) return;
  const std::shared_ptr<simt::Queue> queue = simt::World::get().find(native(products->stream));
  const auto check = [=, device = queue->device] {
    simt::World& world = simt::World::get();
    const auto bytes_of = [&](std::int64_t rows, std::int64_t pitch) {
      return p.transposed ? extent(p.k, rows, pitch, p.in) : extent(rows, p.k, pitch, p.in);
    };
    world.check_device_memory(device, a, bytes_of(p.m, p.lda), "left factor");
    world.check_device_memory(device, b, bytes_of(p.n, p.ldb), "right factor");
    world.check_device_memory(device, d, extent(p.m, p.n, p.ldd, p.out), "product");
    if (bias != nullptr)
      world.check_device_memory(device, bias, extent(1, p.n, p.n, Dtype::f32), "bias");
  };
  check();
  simt::Operation operation;
  operation.run = [=] {
    check();
    multiply_any(p, a, b, bias, d);
  };
  operation.cost_us = 5;
  operation.options = simt::options();
  simt::World::get().put(queue, std::move(operation));
}

}  // namespace packrnn::gpu

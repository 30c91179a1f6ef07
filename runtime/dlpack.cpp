#include "packrnn/runtime/dlpack.hpp"

#include <dlpack/dlpack.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <limits>
#include <utility>

#include "packrnn/runtime/expects.hpp"

namespace packrnn {
namespace {

struct Export {
  DLManagedTensor managed{};
  std::array<std::int64_t, Shape::kMaxRank> extents{};
  std::array<std::int64_t, Shape::kMaxRank> strides{};
  std::shared_ptr<Buffer> storage;
};

DLDataType type_of(Dtype dtype) noexcept {
  std::uint8_t code = kDLFloat;
  if (dtype == Dtype::bf16)
    code = kDLBfloat;
  else if (!is_floating(dtype))
    code = kDLInt;
  return {code, static_cast<std::uint8_t>(8 * size_of(dtype)), 1};
}

Dtype dtype_of(DLDataType type) {
  for (const Dtype dtype :
       {Dtype::f32, Dtype::f64, Dtype::f16, Dtype::bf16, Dtype::i32, Dtype::i64}) {
    const DLDataType ours = type_of(dtype);
    if (type.code == ours.code && type.bits == ours.bits && type.lanes == ours.lanes) return dtype;
  }
  throw InvalidArgument(fmt::format(
      "the DLPack tensor has type code {}, {} bits, {} lanes, but must be f32, f64, f16, "
      "bf16, i32 or i64 with 1 lane",
      int{type.code}, int{type.bits}, int{type.lanes}));
}

Device device_of(const DLDevice& device) {
  // Pinned memory is the host's: only its allocator differs.
  int type = 0;  // a foreign value need not be one of the enumerators: not to be read as one
  static_assert(sizeof(type) == sizeof(device.device_type));
  std::memcpy(&type, &device.device_type, sizeof(type));
  if (type == kDLCPU || type == kDLCUDAHost) return Device::cpu();
  expects(type == kDLCUDA,
          "the DLPack tensor is on device type {} (index {}), but must be on the host (type {} or "
          "{}) or a CUDA device (type {})",
          type, device.device_id, static_cast<int>(kDLCPU), static_cast<int>(kDLCUDAHost),
          static_cast<int>(kDLCUDA));
  const Device result = Device::cuda(device.device_id);
  expects(result.index >= 0 && result.index < Device::cuda_count(),
          "the DLPack tensor is on {} (device type {}), which cannot be used: {}", result, type,
          Device::cuda_status());
  return result;
}

Shape shape_of(const DLTensor& tensor) {
  expects(tensor.ndim >= 0 && tensor.ndim <= Shape::kMaxRank,
          "the DLPack tensor has {} dimensions, but must have 0 to {}", tensor.ndim,
          Shape::kMaxRank);
  expects(tensor.ndim == 0 || tensor.shape != nullptr,
          "the DLPack tensor has {} dimensions, but no shape", tensor.ndim);
  return Shape(std::span<const std::int64_t>(tensor.shape, static_cast<std::size_t>(tensor.ndim)));
}

void check_contiguous(const DLTensor& tensor, const Shape& shape) {
  if (tensor.strides == nullptr || shape.elements() == 0) return;
  std::int64_t expected = 1;
  for (int i = tensor.ndim - 1; i >= 0; --i) {
    // The stride of a dimension of one element is never used, and producers write anything there.
    expects(shape[i] == 1 || tensor.strides[i] == expected,
            "the DLPack tensor {} is strided: dimension {} has stride {}, but {} would be "
            "contiguous; copy it first",
            shape, i, tensor.strides[i], expected);
    expected *= shape[i];
  }
}

void* data_of(const DLTensor& tensor, const Shape& shape, Dtype dtype) {
  if (shape.elements() == 0) return tensor.data;
  expects(tensor.data != nullptr, "the DLPack tensor {} has elements, but its data is null", shape);
  const auto base = reinterpret_cast<std::uintptr_t>(tensor.data);
  constexpr auto kMost = std::numeric_limits<std::uintptr_t>::max();
  expects(tensor.byte_offset <= kMost - base, "the DLPack tensor has byte_offset {}",
          tensor.byte_offset);
  expects((base + tensor.byte_offset) % size_of(dtype) == 0,
          "the DLPack tensor of {} (byte_offset {}) is not aligned to its elements; copy it first",
          dtype, tensor.byte_offset);
  return static_cast<std::byte*>(tensor.data) + tensor.byte_offset;
}

}  // namespace

void DLPackDeleter::operator()(DLManagedTensor* managed) const noexcept {
  if (managed != nullptr && managed->deleter != nullptr) managed->deleter(managed);
}

DLPackPtr to_dlpack(const Tensor& tensor) {
  expects(tensor.defined(), "tensor is not defined");
  auto owner = std::make_unique<Export>();
  owner->storage = tensor.storage();
  const Shape& shape = tensor.shape();
  std::int64_t stride = 1;
  for (int i = shape.rank() - 1; i >= 0; --i) {
    const auto at = static_cast<std::size_t>(i);
    owner->extents[at] = shape[i];
    owner->strides[at] = stride;
    stride *= shape[i] == 0 ? 1 : shape[i];
  }
  DLTensor& out = owner->managed.dl_tensor;
  out.data = const_cast<void*>(tensor.view().raw());
  out.device = {tensor.device().type == DeviceType::cuda ? kDLCUDA : kDLCPU, tensor.device().index};
  out.ndim = shape.rank();
  out.dtype = type_of(tensor.dtype());
  out.shape = owner->extents.data();
  out.strides = owner->strides.data();
  out.byte_offset = 0;
  owner->managed.manager_ctx = owner.get();
  owner->managed.deleter = [](DLManagedTensor* self) {
    delete static_cast<Export*>(self->manager_ctx);
  };
  return DLPackPtr(&owner.release()->managed);
}

Tensor from_dlpack(DLPackPtr& managed) {
  expects(managed != nullptr, "managed is null");
  const DLTensor& source = managed->dl_tensor;
  const Device device = device_of(source.device);
  const Dtype dtype = dtype_of(source.dtype);
  const Shape shape = shape_of(source);
  check_contiguous(source, shape);
  void* const data = data_of(source, shape, dtype);
  const TensorView view(data, shape, dtype, device);  // its checks, before anything is taken over

  // Ownership passes last, by a step that cannot fail.
  const auto owner = std::make_shared<DLPackPtr>();
  auto storage = std::make_shared<Buffer>(
      Buffer::adopt(device, data, view.bytes(), [owner] { owner->reset(); }));
  Tensor tensor = Tensor::share(std::move(storage), data, shape, dtype);
  *owner = std::move(managed);
  return tensor;
}

}  // namespace packrnn

// DLPack in and out without copies. The caller includes <dlpack/dlpack.h> of any 0.x version;
// this header only names its struct.
#pragma once

#include <memory>

#include "packrnn/runtime/tensor.hpp"

struct DLManagedTensor;

namespace packrnn {

/// Calls the tensor's own deleter.
struct DLPackDeleter {
  void operator()(DLManagedTensor* managed) const noexcept;
};
using DLPackPtr = std::unique_ptr<DLManagedTensor, DLPackDeleter>;

/// Shows `tensor` to another framework. The memory stays alive until both the tensor and every
/// exported handle are gone. On a GPU the consumer must order its work after the context's stream
/// (Context::native_stream()). Release the pointer to pass ownership (e.g. into a Python capsule).
DLPackPtr to_dlpack(const Tensor& tensor);

/// Takes a tensor made elsewhere, without copying; its deleter runs when the result dies. Throws
/// InvalidArgument, and leaves `managed` with the caller, when it is strided, on a device other
/// than the host's or this build's, of a dtype packrnn lacks (or with lanes != 1), has a negative
/// extent, too many dimensions, or null data with elements, or is not aligned to its elements.
/// Strides that spell contiguous rows are accepted, and so is pinned host memory. Of memory on a
/// GPU the producer's work must be done, or ordered before the context's stream by the caller.
Tensor from_dlpack(DLPackPtr& managed);

}  // namespace packrnn

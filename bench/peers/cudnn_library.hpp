// The calls of cuDNN 9 that the benchmark makes, found in the library when the program runs.
#pragma once

#include <cudnn.h>

#include <string>
#include <type_traits>

namespace packrnn::bench {

/// A combination that cuDNN refuses.
struct CudnnRefusal {
  std::string text;
};

/// Every call we make, by its name in the library.
struct CudnnLibrary {
  void* handle = nullptr;  // never closed: a library with threads of its own may not survive that

#define PACKRNN_CUDNN_CALLS(call)      \
  call(cudnnGetVersion);               \
  call(cudnnGetErrorString);           \
  call(cudnnGetLastErrorString);       \
  call(cudnnCreate);                   \
  call(cudnnDestroy);                  \
  call(cudnnSetStream);                \
  call(cudnnCreateDropoutDescriptor);  \
  call(cudnnDestroyDropoutDescriptor); \
  call(cudnnSetDropoutDescriptor);     \
  call(cudnnCreateTensorDescriptor);   \
  call(cudnnDestroyTensorDescriptor);  \
  call(cudnnSetTensorNdDescriptor);    \
  call(cudnnGetTensorNdDescriptor);    \
  call(cudnnCreateRNNDescriptor);      \
  call(cudnnDestroyRNNDescriptor);     \
  call(cudnnSetRNNDescriptor_v8);      \
  call(cudnnBuildRNNDynamic);          \
  call(cudnnCreateRNNDataDescriptor);  \
  call(cudnnDestroyRNNDataDescriptor); \
  call(cudnnSetRNNDataDescriptor);     \
  call(cudnnGetRNNTempSpaceSizes);     \
  call(cudnnGetRNNWeightSpaceSize);    \
  call(cudnnGetRNNWeightParams);       \
  call(cudnnRNNForward)
#define PACKRNN_CUDNN_DECLARE(name) decltype(&::name) name = nullptr
  PACKRNN_CUDNN_CALLS(PACKRNN_CUDNN_DECLARE);
#undef PACKRNN_CUDNN_DECLARE

  /// False, with the reason, when the library or one of its calls is missing.
  bool load(std::string& reason);
  /// Throws CudnnRefusal with the name of the call and all that cuDNN says about it.
  void check(cudnnStatus_t status, const char* call) const;
};

/// Owns a descriptor. T is a pointer type.
template <class T>
class CudnnHandle {
 public:
  CudnnHandle(cudnnStatus_t (*create)(T*), cudnnStatus_t (*destroy)(T), const CudnnLibrary& library,
              const char* name)
      : destroy_(destroy) {
    library.check(create(&value_), name);
  }
  ~CudnnHandle() {
    if (value_) destroy_(value_);
  }
  CudnnHandle(const CudnnHandle&) = delete;
  CudnnHandle& operator=(const CudnnHandle&) = delete;
  T get() const { return value_; }

 private:
  T value_ = nullptr;
  cudnnStatus_t (*destroy_)(T);
};

}  // namespace packrnn::bench

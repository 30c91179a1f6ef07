// The way back of kernel G for bf16.
#include "packrnn/kernels/cuda/persistent_backward_kernel.cuh"

namespace packrnn::kernels::cuda {

PersistentBackwardVariants persistent_backward_bf16_variants() {
  return persistent_backward_variants_of_16_bits<Bf16Product>();
}

}  // namespace packrnn::kernels::cuda

// The way back of kernel G for f16.
#include "packrnn/kernels/cuda/persistent_backward_kernel.cuh"

namespace packrnn::kernels::cuda {

PersistentBackwardVariants persistent_backward_f16_variants() {
  return persistent_backward_variants_of_16_bits<F16Product>();
}

}  // namespace packrnn::kernels::cuda

// Kernel G for bf16.
#include "packrnn/kernels/cuda/persistent_kernel.cuh"

namespace packrnn::kernels::cuda {

PersistentVariants persistent_bf16_variants() {
  return persistent_variants_of_16_bits<Bf16Product>();
}

}  // namespace packrnn::kernels::cuda

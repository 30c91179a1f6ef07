// Kernel G for f16.
#include "packrnn/kernels/cuda/persistent_kernel.cuh"

namespace packrnn::kernels::cuda {

PersistentVariants persistent_f16_variants() {
  return persistent_variants_of_16_bits<F16Product>();
}

}  // namespace packrnn::kernels::cuda

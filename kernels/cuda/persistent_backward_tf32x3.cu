// The way back of kernel G for f32 by three products of tf32.
#include "packrnn/kernels/cuda/persistent_backward_kernel.cuh"

namespace packrnn::kernels::cuda {

PersistentBackwardVariants persistent_backward_tf32x3_variants() {
  return persistent_backward_variants_of_32_bits<Tf32x3Product>();
}

}  // namespace packrnn::kernels::cuda

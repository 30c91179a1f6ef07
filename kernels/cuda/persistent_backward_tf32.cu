// The way back of kernel G for f32 by tf32.
#include "packrnn/kernels/cuda/persistent_backward_kernel.cuh"

namespace packrnn::kernels::cuda {

PersistentBackwardVariants persistent_backward_tf32_variants() {
  return persistent_backward_variants_of_32_bits<Tf32Product>();
}

}  // namespace packrnn::kernels::cuda

// Kernel C for f16.
#include "packrnn/kernels/cuda/cluster_kernel.cuh"

namespace packrnn::kernels::cuda {

std::vector<ClusterVariant> cluster_f16_variants() {
  return cluster_variants_of_16_bits<F16Product>();
}

}  // namespace packrnn::kernels::cuda

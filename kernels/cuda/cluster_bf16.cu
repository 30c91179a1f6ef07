// Kernel C for bf16.
#include "packrnn/kernels/cuda/cluster_kernel.cuh"

namespace packrnn::kernels::cuda {

std::vector<ClusterVariant> cluster_bf16_variants() {
  return cluster_variants_of_16_bits<Bf16Product>();
}

}  // namespace packrnn::kernels::cuda

// Kernel G for f32 by three products of tf32. Weights and states take twice the registers of 16-bit
// ones.
#include "packrnn/kernels/cuda/persistent_kernel.cuh"

namespace packrnn::kernels::cuda {

PersistentVariants persistent_tf32x3_variants() {
  using P = Tf32x3Product;
  constexpr Cell kLstm = Cell::lstm, kGru = Cell::gru, kRnn = Cell::rnn_tanh;
  return persistent_variants<
      Variant<P, kLstm, 8, 1, 1>, Variant<P, kLstm, 16, 1, 1>,                              //
      Variant<P, kLstm, 8, 2, 2>, Variant<P, kLstm, 32, 2, 1>, Variant<P, kLstm, 8, 4, 2>,  //
      Variant<P, kGru, 8, 1, 1>, Variant<P, kGru, 32, 1, 1>, Variant<P, kGru, 8, 2, 2>,
      Variant<P, kGru, 32, 2, 1>, Variant<P, kGru, 8, 4, 2>,  //
      Variant<P, kRnn, 32, 1, 1>, Variant<P, kRnn, 32, 2, 2>, Variant<P, kRnn, 32, 4, 3>,
      Variant<P, kRnn, 16, 8, 3>>();
}

}  // namespace packrnn::kernels::cuda

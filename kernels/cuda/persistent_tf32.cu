// Kernel G for f32 by tf32. Weights and states take twice the registers of 16-bit ones.
#include "packrnn/kernels/cuda/persistent_kernel.cuh"

namespace packrnn::kernels::cuda {

PersistentVariants persistent_tf32_variants() {
  using P = Tf32Product;
  constexpr Cell kLstm = Cell::lstm, kGru = Cell::gru, kRnn = Cell::rnn_tanh;
  return persistent_variants<
      Variant<P, kLstm, 8, 1, 1>, Variant<P, kLstm, 32, 1, 1>,                              //
      Variant<P, kLstm, 8, 2, 2>, Variant<P, kLstm, 32, 2, 1>, Variant<P, kLstm, 8, 4, 3>,  //
      Variant<P, kGru, 8, 1, 1>, Variant<P, kGru, 32, 1, 1>, Variant<P, kGru, 8, 2, 2>,
      Variant<P, kGru, 32, 2, 1>, Variant<P, kGru, 8, 4, 2>, Variant<P, kGru, 16, 4, 2>,
      Variant<P, kRnn, 32, 1, 1>, Variant<P, kRnn, 32, 2, 2>, Variant<P, kRnn, 32, 4, 3>,
      Variant<P, kRnn, 16, 8, 3>>();
}

}  // namespace packrnn::kernels::cuda

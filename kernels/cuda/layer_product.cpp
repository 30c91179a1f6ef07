#include "packrnn/kernels/cuda/layer_product.hpp"

#include "packrnn/kernels/cuda/recurrent_panels.hpp"

namespace packrnn::kernels::cuda {

bool in_chains(const Context& context, Dtype dtype) {
  return dtype == Dtype::f64 || (dtype == Dtype::f32 && context.f32_math() != F32Math::tf32);
}

void layer_product(Context& context, const ChainProduct& p) {
  if (in_chains(context, p.dtype)) return chain_product(context.stream(), p);
  gpu::multiply(context.products(),
                {.m = p.rows,
                 .n = p.outputs,
                 .k = p.k,
                 .in = p.dtype,
                 .out = Dtype::f32,
                 .lda = p.ldx,
                 .ldb = p.ldw,
                 .ldd = p.ldy,
                 .accumulate = p.accumulate},
                p.x, p.w, static_cast<const float*>(p.bias), p.y);
}

void input_product(Context& context, const RecurrentShape& s, const void* panels, const void* x,
                   std::int64_t rows, void* gx) {
  const RecurrentPanels p = RecurrentPanels::of(s);
  const std::int64_t outputs = p.units * p.gates;
  layer_product(context, {.dtype = s.dtype,
                          .rows = rows,
                          .outputs = outputs,
                          .k = s.input,
                          .x = x,
                          .w = at(panels, p.w_ih, s.dtype),
                          .bias = at(panels, p.bias, s.dtype),
                          .y = gx,
                          .ldx = s.input,
                          .ldw = p.pitch_ih,
                          .ldy = outputs});
}

}  // namespace packrnn::kernels::cuda

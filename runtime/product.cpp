// The part of products that every body of gpu.hpp shares: what may be asked.
#include "packrnn/runtime/expects.hpp"
#include "packrnn/runtime/gpu.hpp"

namespace packrnn::gpu {

Product checked(const Product& product, bool bias) {
  Product p = product;
  expects(p.m >= 0 && p.n >= 0 && p.k >= 1,
          "a product is {} x {} with sums of {}, but must be at least 0 x 0 with sums of 1", p.m,
          p.n, p.k);
  expects(p.in == Dtype::f32 || p.in == Dtype::f16 || p.in == Dtype::bf16,
          "the factors are {}, but must be f32, f16 or bf16", p.in);
  expects(p.out == Dtype::f32 || p.out == p.in, "the product is {}, but must be f32 or {}", p.out,
          p.in);
  expects(!bias || (p.out == Dtype::f32 && !p.accumulate),
          "a bias was given, but the product is {}{}: it must be f32 and not be added to", p.out,
          p.accumulate ? " and is added to what is there" : "");
  if (p.lda == 0) p.lda = p.k;
  if (p.ldb == 0) p.ldb = p.k;
  if (p.ldd == 0) p.ldd = p.n;
  expects(p.lda >= p.k && p.ldb >= p.k && p.ldd >= p.n,
          "rows of {}, {} and {} elements are {}, {} and {} elements apart, but must not overlap",
          p.k, p.k, p.n, p.lda, p.ldb, p.ldd);
  return p;
}

}  // namespace packrnn::gpu

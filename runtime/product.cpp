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
  expects(
      !bias || (p.out == Dtype::f32 && !p.accumulate && !p.transposed),
      "a bias was given, but the product is {}{}{}: it must be f32, of rows, and not be added to",
      p.out, p.accumulate ? " and is added to what is there" : "",
      p.transposed ? " and over rows" : "");
  const std::int64_t a_row = p.transposed ? p.m : p.k, b_row = p.transposed ? p.n : p.k;
  if (p.lda == 0) p.lda = a_row;
  if (p.ldb == 0) p.ldb = b_row;
  if (p.ldd == 0) p.ldd = p.n;
  expects(p.lda >= a_row && p.ldb >= b_row && p.ldd >= p.n,
          "rows of {}, {} and {} elements are {}, {} and {} elements apart, but must not overlap",
          a_row, b_row, p.n, p.lda, p.ldb, p.ldd);
  return p;
}

}  // namespace packrnn::gpu

// The sum of many terms in double: blocks of kSumTerms each, then of what they gave; the same order
// on every GPU. Bound by memory.
#pragma once

#include "packrnn/kernels/cuda/launch.cuh"
#include "packrnn/kernels/cuda/team.cuh"
#include "packrnn/runtime/context.hpp"

namespace packrnn::kernels::cuda {

inline constexpr std::int64_t kSumTerms = 16 * kRowThreads;

/// partial [(count + kSumTerms - 1) / kSumTerms] of term(0) + ... + term(count - 1).
template <class Term>
__global__ void __launch_bounds__(kRowThreads)
    partial_sums_kernel(Term term, std::int64_t count, double* partial) {
  for (std::int64_t block = blockIdx.x; block * kSumTerms < count; block += gridDim.x) {
    const std::int64_t left = count - block * kSumTerms;
    const std::int64_t end = block * kSumTerms + (left < kSumTerms ? left : kSumTerms);
    double sum = 0;
    for (std::int64_t i = block * kSumTerms + threadIdx.x; i < end; i += kRowThreads)
      sum += term(i);
    sum = fold(kRowThreads, sum, Plus{});
    if (threadIdx.x == 0) partial[block] = sum;
  }
}

/// By one block: *result = finish(sum).
template <class Finish, class R>
__global__ void __launch_bounds__(kRowThreads)
    sum_up_kernel(const double* partial, std::int64_t count, Finish finish, R* result) {
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < count; i += kRowThreads) sum += partial[i];
  sum = fold(kRowThreads, sum, Plus{});
  if (threadIdx.x == 0) *result = static_cast<R>(finish(sum));
}

struct AsIs {
  __device__ double operator()(double sum) const { return sum; }
};

/// Assigns *result, in device memory; 0 for no terms. R is float or double.
template <class Term, class Finish, class R>
void sum_terms(Context& context, const Term& term, std::int64_t count, const Finish& finish,
               R* result) {
  const gpu::Stream stream = context.stream();
  const std::int64_t blocks = (count + kSumTerms - 1) / kSumTerms;
  Workspace::Scope scope(context.workspace());
  double* const partial = scope.take<double>(blocks).data();
  launch(stream, PACKRNN_KERNEL(partial_sums_kernel<Term>),
         strided_shape(stream, blocks * kRowThreads), term, count, partial);
  gpu::LaunchShape one;
  one.block[0] = kRowThreads;
  launch(stream, PACKRNN_KERNEL(sum_up_kernel<Finish, R>), one, partial, blocks, finish, result);
}

}  // namespace packrnn::kernels::cuda

// Threads that work on a row together, and how they fold what each of them found. Order and number
// of a fold's steps follow from the row's length alone: a row has the same bits whatever rows stand
// beside it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "packrnn/kernels/cuda/device.cuh"
#include "packrnn/kernels/cuda/rows.cuh"

namespace packrnn::kernels::cuda {

/// How many threads share a row of so many elements: a power of two up to a warp, or a block of
/// kRowThreads.
inline int team_for(std::int64_t elements) {
  if (elements >= 8 * kRowThreads) return kRowThreads;
  int team = 1;
  while (team < 32 && 4 * team < elements) team *= 2;
  return team;
}

/// Blocks of kRowThreads for so many rows, at most eight blocks per multiprocessor.
inline gpu::LaunchShape team_shape(gpu::Stream stream, std::int64_t rows, int team) {
  return strided_shape(stream, rows * team);
}

/// The thread's place. All threads of a block walk the same number of rows, since folds need them
/// all; a row that is not there is worked on as one without elements:
///   for (std::int64_t first = team.begin; first < rows; first += team.stride) {
///     const std::int64_t row = first + team.number; ...
struct Team {
  int size, member;     // member of size
  std::int64_t number;  // of the team in its block
  std::int64_t begin, stride;
};

__device__ inline Team team_of(int size) {
  const int block = static_cast<int>(threadIdx.x) / size;
  const std::int64_t teams = kRowThreads / size;
  return {size, static_cast<int>(threadIdx.x) % size, block,
          static_cast<std::int64_t>(blockIdx.x) * teams,
          static_cast<std::int64_t>(gridDim.x) * teams};
}

__device__ inline double swapped(double value, int lanes) {
  return __shfl_xor_sync(0xFFFFFFFFU, value, lanes);
}

/// What the values of all members give, for each of them; called by all threads of the block.
/// combine(a, b) has the bits of combine(b, a).
template <class T, class Combine>
__device__ T fold(int team, T value, const Combine& combine) {
  for (int lanes = 1; lanes < 32 && lanes < team; lanes *= 2)
    value = combine(value, swapped(value, lanes));
  if (team == kRowThreads) {
    PACKRNN_SHARED(T, parts, [kRowThreads / 32]);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
    __syncthreads();
    value = parts[0];
    for (int i = 1; i < kRowThreads / 32; ++i) value = combine(value, parts[i]);
    __syncthreads();  // all have read before the next fold writes
  }
  return value;
}

struct Plus {
  __device__ double operator()(double a, double b) const { return a + b; }
};
/// A NaN is passed over.
struct Larger {
  __device__ double operator()(double a, double b) const { return fmax(a, b); }
};

}  // namespace packrnn::kernels::cuda

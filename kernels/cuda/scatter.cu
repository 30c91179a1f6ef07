// Sums of rows by index, in the CPU's order: the positions of one index in parts of
// kScatterPart, each summed from zero in their order, in double, and the parts added in theirs.
//
// Positions are sorted by index first: a stable radix sort of 8 bits at a time, as many as the
// largest index has. Each pass splits the positions into at most kTiles tiles, one per block:
// digits are counted per tile, the counts become places, and the tiles put their positions there.
// Ranks come from votes and sums, never from who came first, so that the order is always the same.
//
// Then a warp sums 32 columns of one part. A part that is all of its index's positions goes to the
// target, others to scratch memory, where one more pass adds them up: an index that is used often
// is summed by many warps. Bound by reading the rows.
#include <algorithm>
#include <utility>

#include "packrnn/kernels/cuda/fault.cuh"
#include "packrnn/kernels/cuda/launch.cuh"
#include "packrnn/kernels/cuda/rows.cuh"
#include "packrnn/kernels/cuda/scatter.hpp"
#include "packrnn/kernels/cuda/storage.cuh"
#include "packrnn/kernels/scatter.hpp"

namespace packrnn::kernels::cuda {
namespace {

constexpr int kDigitBits = 8, kDigits = 1 << kDigitBits;
static_assert(kDigits == kRowThreads, "a thread per digit");
constexpr int kWarps = kRowThreads / 32;
constexpr std::int64_t kTiles = 256, kLeastTile = 4 * kRowThreads;
constexpr unsigned kAll = 0xFFFFFFFFU;
constexpr int kAhead = 4;

/// Positions and their keys, the index or R for what is left out.
struct Pairs {
  std::int32_t* key = nullptr;
  std::int32_t* position = nullptr;
};

__global__ void __launch_bounds__(kRowThreads)
    make_keys_kernel(ScatterAdd p, Pairs pairs, DeviceFault* fault) {
  for (std::int64_t i = first_item(); i < p.total; i += item_stride()) {
    const std::int64_t index = p.wide ? static_cast<const std::int64_t*>(p.indices)[i]
                                      : static_cast<const std::int32_t*>(p.indices)[i];
    const bool legal = index >= 0 && index < p.count;
    if (!legal && index != p.skip) report(fault, FaultCode::index_range, i, index, 0, p.count);
    pairs.key[i] = static_cast<std::int32_t>(legal && index != p.skip ? index : p.count);
    pairs.position[i] = static_cast<std::int32_t>(i);
  }
}

__device__ int digit_of(std::int32_t key, int shift) { return key >> shift & (kDigits - 1); }

/// counts [tiles, kDigits]
__global__ void __launch_bounds__(kRowThreads)
    count_digits_kernel(const std::int32_t* keys, std::int64_t total, std::int64_t tile, int shift,
                        std::int32_t* counts) {
  PACKRNN_SHARED(std::int32_t, shared, [kDigits]);
  const int thread = static_cast<int>(threadIdx.x);
  shared[thread] = 0;
  __syncthreads();  // all counters are zero
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * tile;
  const std::int64_t end = min(begin + tile, total);
  for (std::int64_t i = begin + thread; i < end; i += kRowThreads)
    atomicAdd(&shared[digit_of(keys[i], shift)], 1);
  __syncthreads();  // all are counted
  counts[blockIdx.x * kDigits + thread] = shared[thread];
}

/// Counts become places: first of all that have a smaller digit, or the same in an earlier tile.
/// One block; a thread has a digit.
__global__ void __launch_bounds__(kRowThreads)
    find_places_kernel(std::int32_t* counts, std::int64_t tiles) {
  PACKRNN_SHARED(std::int32_t, shared, [2][kDigits]);
  const int digit = static_cast<int>(threadIdx.x);
  std::int32_t total = 0;
  for (std::int64_t t = 0; t < tiles; ++t) total += counts[t * kDigits + digit];
  int turn = 0;
  shared[0][digit] = total;
  for (int step = 1; step < kDigits; step *= 2, turn ^= 1) {
    __syncthreads();  // the sums of the step before are there, and nobody reads the older ones
    shared[turn ^ 1][digit] =
        shared[turn][digit] + (digit >= step ? shared[turn][digit - step] : 0);
  }
  std::int32_t place = shared[turn][digit] - total;
  for (std::int64_t t = 0; t < tiles; ++t) {
    const std::int32_t count = counts[t * kDigits + digit];
    counts[t * kDigits + digit] = place;
    place += count;
  }
}

/// Puts a tile's pairs into their places, kRowThreads at a time and in their order.
__global__ void __launch_bounds__(kRowThreads)
    place_kernel(Pairs from, std::int64_t total, std::int64_t tile, int shift,
                 const std::int32_t* places, Pairs to) {
  PACKRNN_SHARED(std::int32_t, shared, [kWarps][kDigits]);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * tile;
  const std::int64_t end = min(begin + tile, total);
  std::int32_t place = places[blockIdx.x * kDigits + thread];  // of digit `thread`
  for (std::int64_t first = begin; first < end; first += kRowThreads) {
    for (int w = 0; w < kWarps; ++w) shared[w][thread] = 0;
    __syncthreads();  // all counters are zero
    const std::int64_t i = first + thread;
    const bool valid = i < end;
    const std::int32_t key = valid ? from.key[i] : 0;
    const int digit = valid ? digit_of(key, shift) : kDigits;
    const unsigned same = __match_any_sync(kAll, digit);
    const int rank = __popc(same & ((1U << lane) - 1));
    if (valid && rank == 0) shared[warp][digit] = __popc(same);
    __syncthreads();  // what each warp has of each digit
    for (int w = 0; w < kWarps; ++w) {
      const std::int32_t count = shared[w][thread];
      shared[w][thread] = place;
      place += count;
    }
    __syncthreads();  // counts became places
    if (valid) {
      const std::int32_t at = shared[warp][digit] + rank;
      to.key[at] = key;
      to.position[at] = from.position[i];
    }
    __syncthreads();  // all have read theirs
  }
}

/// begins[i]: where the run of equal keys begins that i is in.
__global__ void __launch_bounds__(kRowThreads)
    find_begins_kernel(const std::int32_t* keys, std::int64_t total, std::int32_t* begins) {
  for (std::int64_t i = first_item(); i < total; i += item_stride()) {
    const std::int32_t key = keys[i];
    std::int64_t low = 0, high = i;
    while (low < high) {
      const std::int64_t middle = (low + high) / 2;
      if (keys[middle] < key)
        low = middle + 1;
      else
        high = middle;
    }
    begins[i] = static_cast<std::int32_t>(low);
  }
}

/// The sorted positions, and the sums [2 slots, W] of parts of runs that have several. Of parts
/// that begin in the same kScatterPart positions, at most two are such: the last of one run and the
/// first of another. Each has a slot.
struct Parts {
  Pairs pairs;
  const std::int32_t* begins = nullptr;
  double* sums = nullptr;

  __device__ double* sum(std::int64_t begin, std::int64_t i, std::int64_t width) const {
    return sums + (i / kScatterPart * 2 + (i == begin ? 0 : 1)) * width;
  }
};

template <class Target>
__device__ void add_to(Target& target, double sum) {
  using A = Sum<Target>;
  target = stored<Target>(value_of(target) + static_cast<A>(sum));
}

template <class T, class Target>
__global__ void __launch_bounds__(kRowThreads) sum_parts_kernel(ScatterAdd p, Parts parts) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t groups = (p.width + 31) / 32, items = p.total * groups;
  for (std::int64_t item = first_item() / 32; item < items; item += item_stride() / 32) {
    const std::int64_t i = item / groups, column = (item - i * groups) * 32 + lane;
    const std::int32_t key = parts.pairs.key[i];
    const std::int64_t begin = parts.begins[i];
    if (key == p.count || (i - begin) % kScatterPart != 0 || column >= p.width) continue;
    const T* const from = static_cast<const T*>(p.rows) + column;
    const std::int64_t end = min(i + kScatterPart, p.total);
    double sum = 0;
    std::int64_t j = i;
    for (; j + kAhead <= end && parts.pairs.key[j + kAhead - 1] == key; j += kAhead) {
      T ahead[kAhead];
      PACKRNN_UNROLL
      for (int a = 0; a < kAhead; ++a) ahead[a] = from[parts.pairs.position[j + a] * p.width];
      PACKRNN_UNROLL
      for (int a = 0; a < kAhead; ++a) sum += static_cast<double>(value_of(ahead[a]));
    }
    for (; j < end && parts.pairs.key[j] == key; ++j)
      sum += static_cast<double>(value_of(from[parts.pairs.position[j] * p.width]));
    const bool whole = i == begin && (j == p.total || parts.pairs.key[j] != key);
    if (whole)
      add_to(static_cast<Target*>(p.target)[key * p.width + column], sum);
    else
      parts.sum(begin, i, p.width)[column] = sum;
  }
}

/// A warp adds up 32 columns of the parts of one run, from where it begins.
template <class Target>
__global__ void __launch_bounds__(kRowThreads) add_parts_kernel(ScatterAdd p, Parts parts) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t groups = (p.width + 31) / 32, items = p.total * groups;
  for (std::int64_t item = first_item() / 32; item < items; item += item_stride() / 32) {
    const std::int64_t i = item / groups, column = (item - i * groups) * 32 + lane;
    const std::int32_t key = parts.pairs.key[i];
    if (key == p.count || parts.begins[i] != i || column >= p.width) continue;
    const auto goes_on = [&](std::int64_t j) { return j < p.total && parts.pairs.key[j] == key; };
    if (!goes_on(i + kScatterPart)) continue;
    double sum = 0;
    for (std::int64_t j = i; goes_on(j); j += kScatterPart) sum += parts.sum(i, j, p.width)[column];
    add_to(static_cast<Target*>(p.target)[key * p.width + column], sum);
  }
}

/// Sorts by key, stably; gives the pairs that hold the result.
Pairs sort(gpu::Stream stream, std::int64_t total, std::int64_t largest, Pairs from, Pairs to,
           std::int32_t* counts) {
  const std::int64_t tile = std::max(
      kLeastTile, ((total + kTiles - 1) / kTiles + kRowThreads - 1) / kRowThreads * kRowThreads);
  const std::int64_t tiles = (total + tile - 1) / tile;
  gpu::LaunchShape shape;
  shape.block[0] = kRowThreads;
  gpu::LaunchShape one = shape;
  shape.grid[0] = static_cast<unsigned>(tiles);
  for (int shift = 0; shift == 0 || largest >> shift != 0; shift += kDigitBits) {
    launch(stream, PACKRNN_KERNEL(count_digits_kernel), shape, from.key, total, tile, shift,
           counts);
    launch(stream, PACKRNN_KERNEL(find_places_kernel), one, counts, tiles);
    launch(stream, PACKRNN_KERNEL(place_kernel), shape, from, total, tile, shift, counts, to);
    std::swap(from, to);
  }
  return from;
}

template <class T, class Target>
void sum(gpu::Stream stream, const ScatterAdd& p, const Parts& parts) {
  const gpu::LaunchShape shape = strided_shape(stream, p.total * ((p.width + 31) / 32) * 32);
  launch(stream, PACKRNN_KERNEL(sum_parts_kernel<T, Target>), shape, p, parts);
  if (p.total > kScatterPart)
    launch(stream, PACKRNN_KERNEL(add_parts_kernel<Target>), shape, p, parts);
}

}  // namespace

void scatter_add(Context& context, const ScatterAdd& p) {
  if (p.total == 0) return;
  const gpu::Stream stream = context.stream();
  Workspace::Scope scratch(context.workspace());
  const auto take = [&](std::int64_t count) { return scratch.take<std::int32_t>(count).data(); };
  Pairs first{take(p.total), take(p.total)}, second{take(p.total), take(p.total)};
  std::int32_t* const begins = take(p.total);
  launch(stream, PACKRNN_KERNEL(make_keys_kernel), strided_shape(stream, p.total), p, first,
         context.fault());
  Parts parts;
  parts.pairs = sort(stream, p.total, p.count, first, second, take(kTiles * kDigits));
  parts.begins = begins;
  launch(stream, PACKRNN_KERNEL(find_begins_kernel), strided_shape(stream, p.total),
         parts.pairs.key, p.total, begins);
  if (p.width == 0) return;
  parts.sums = scratch.take<double>((p.total / kScatterPart + 1) * 2 * p.width).data();
  with_floating(p.dtype, [&]<class T>(std::type_identity<T>) {
    if (p.target_dtype == p.dtype)
      sum<T, T>(stream, p, parts);
    else if constexpr (sizeof(T) == 2)
      sum<T, float>(stream, p, parts);
  });
}

}  // namespace packrnn::kernels::cuda

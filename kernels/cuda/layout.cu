// A packed layout made on the device in two stages: the stable order by decreasing length, then the
// tables of its steps.
//
// Up to kRankedBatch sequences, a sequence's place is the number of those before it, counted by
// comparing it to all: N^2 comparisons, but one launch. Beyond, a stable radix sort: four bits at a
// time, each thread keeps a stretch of neighbouring sequences in order.
#include <algorithm>
#include <utility>

#include "packrnn/kernels/cuda/fault.cuh"
#include "packrnn/kernels/cuda/launch.cuh"
#include "packrnn/kernels/cuda/layout.hpp"
#include "packrnn/kernels/cuda/rows.cuh"

namespace packrnn::kernels::cuda {
namespace {

constexpr int kWarp = 32;
constexpr int kTableThreads = 1024;
constexpr int kDigitBits = 4, kDigits = 1 << kDigitBits;
constexpr std::int32_t kSortThreads = 1 << 14;  // at most; each has its own row of counters

/// A table of the layout that is being made, which everybody else only reads.
template <class T>
__device__ T* writable(const T* table) {
  return const_cast<T*>(table);
}

// ---- lengths ----------------------------------------------------------------------------------

__device__ std::int64_t given_length(const LayoutJob& job, std::int32_t n) {
  return job.wide ? static_cast<const std::int64_t*>(job.lengths)[n]
                  : static_cast<const std::int32_t*>(job.lengths)[n];
}

__device__ std::int32_t length_of(const LayoutJob& job, std::int32_t n) {
  const std::int64_t length = given_length(job, n);
  if (length < 0) return 0;
  return static_cast<std::int32_t>(min(length, std::int64_t{job.tables.steps_capacity}));
}

__device__ void check_length(const LayoutJob& job, std::int32_t n) {
  const std::int64_t length = given_length(job, n);
  if (length < 0)
    report(job.fault, FaultCode::length_negative, n, length);
  else if (length > job.tables.steps_capacity)
    report(job.fault, FaultCode::length_capacity, n, length, job.tables.steps_capacity);
  else if (job.enforce_sorted && n > 0 && length > given_length(job, n - 1))
    report(job.fault, FaultCode::length_order, n, length, given_length(job, n - 1));
}

__device__ void place(const LayoutJob& job, std::int32_t n, std::int32_t rank,
                      std::int32_t length) {
  writable(job.tables.sorted_indices)[rank] = n;
  writable(job.tables.lengths)[rank] = length;
  writable(job.tables.unsorted_indices)[n] = rank;
  writable(job.tables.sequence_ids)[n] = job.given_ids != nullptr ? job.given_ids[n] : n;
}

// ---- order by comparison ----------------------------------------------------------------------

__global__ void __launch_bounds__(kRowThreads) rank_kernel(LayoutJob job) {
  PACKRNN_SHARED(std::int32_t, others, [kRowThreads]);
  const auto n = static_cast<std::int32_t>(first_item());
  const std::int32_t length = n < job.tables.batch ? length_of(job, n) : 0;
  if (n < job.tables.batch) check_length(job, n);
  std::int32_t rank = 0;
  for (std::int32_t begin = 0; begin < job.tables.batch; begin += kRowThreads) {
    const std::int32_t m = begin + static_cast<std::int32_t>(threadIdx.x);
    if (m < job.tables.batch) others[threadIdx.x] = length_of(job, m);
    __syncthreads();
    // Of equal lengths, those before n are the ones with the smaller index.
    const std::int32_t before = n - begin, count = min(kRowThreads, job.tables.batch - begin);
    for (std::int32_t j = 0; j < count; ++j)
      rank += others[j] > length || (others[j] == length && j < before) ? 1 : 0;
    __syncthreads();  // before the next stretch takes the place of this one
  }
  if (n < job.tables.batch) place(job, n, rank, length);
}

// ---- order by sorting -------------------------------------------------------------------------

/// Sequences that each sorting thread keeps in order.
__host__ __device__ std::int32_t stretch_of(std::int32_t batch) {
  const std::int32_t stretch = (batch + kSortThreads - 1) / kSortThreads;
  return stretch < 16 ? 16 : stretch;
}
__host__ __device__ std::int32_t stretches_of(std::int32_t batch) {
  const std::int32_t stretch = stretch_of(batch);
  return (batch + stretch - 1) / stretch;
}

struct Keys {
  std::uint32_t* key;    // [batch]: steps_capacity - length, so that ascending keys are decreasing
  std::uint32_t* index;  // [batch]: the caller's index
};

__global__ void __launch_bounds__(kRowThreads) sort_begin_kernel(LayoutJob job, Keys keys) {
  for (std::int64_t i = first_item(); i < job.tables.batch; i += item_stride()) {
    const auto n = static_cast<std::int32_t>(i);
    check_length(job, n);
    keys.key[n] = static_cast<std::uint32_t>(job.tables.steps_capacity - length_of(job, n));
    keys.index[n] = static_cast<std::uint32_t>(n);
  }
}

__device__ std::uint32_t digit_of(std::uint32_t key, int shift) {
  return key >> shift & (kDigits - 1U);
}

/// counters [digit][stretch]: how often each digit occurs in a stretch.
__global__ void __launch_bounds__(kRowThreads)
    sort_count_kernel(std::int32_t batch, Keys keys, int shift, std::uint32_t* counters) {
  const std::int32_t stretch = stretch_of(batch), stretches = stretches_of(batch);
  for (std::int64_t i = first_item(); i < stretches; i += item_stride()) {
    for (int digit = 0; digit < kDigits; ++digit) counters[digit * stretches + i] = 0;
    const std::int64_t begin = i * stretch;
    const std::int64_t end = min(begin + stretch, static_cast<std::int64_t>(batch));
    for (std::int64_t j = begin; j < end; ++j)
      ++counters[digit_of(keys.key[j], shift) * static_cast<std::uint32_t>(stretches) + i];
  }
}

/// The sum over this and all lower threads of the block. Every thread of the block calls it;
/// `sums` is left alone by the other threads until the caller's next barrier.
template <class T>
__device__ T block_scan(T value, T* sums) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const T other = __shfl_up_sync(0xFFFFFFFFU, value, distance);
    if (lane >= distance) value += other;
  }
  if (lane == kWarp - 1) sums[warp] = value;
  __syncthreads();
  if (warp == 0) {
    T sum = lane < warps ? sums[lane] : T{0};
    for (int distance = 1; distance < kWarp; distance *= 2) {
      const T other = __shfl_up_sync(0xFFFFFFFFU, sum, distance);
      if (lane >= distance) sum += other;
    }
    if (lane < warps) sums[lane] = sum;
  }
  __syncthreads();
  return warp > 0 ? value + sums[warp - 1] : value;
}

/// Turns counters into the places where the sequences they count begin. One block.
__global__ void __launch_bounds__(kTableThreads)
    sort_scan_kernel(std::int32_t count, std::uint32_t* counters) {
  PACKRNN_SHARED(std::uint32_t, sums, [kWarp]);
  std::uint32_t before = 0;
  for (std::int32_t begin = 0; begin < count; begin += kTableThreads) {
    const std::int32_t i = begin + static_cast<std::int32_t>(threadIdx.x);
    const std::uint32_t value = i < count ? counters[i] : 0;
    const std::uint32_t sum = block_scan(value, sums);
    if (i < count) counters[i] = before + sum - value;
    before += sums[kTableThreads / kWarp - 1];
    __syncthreads();  // before the next scan writes sums
  }
}

__global__ void __launch_bounds__(kRowThreads)
    sort_move_kernel(std::int32_t batch, Keys from, int shift, std::uint32_t* counters, Keys to) {
  const std::int32_t stretch = stretch_of(batch), stretches = stretches_of(batch);
  for (std::int64_t i = first_item(); i < stretches; i += item_stride()) {
    const std::int64_t begin = i * stretch;
    const std::int64_t end = min(begin + stretch, static_cast<std::int64_t>(batch));
    for (std::int64_t j = begin; j < end; ++j) {
      const std::uint32_t key = from.key[j];
      const std::uint32_t at =
          counters[digit_of(key, shift) * static_cast<std::uint32_t>(stretches) + i]++;
      to.key[at] = key;
      to.index[at] = from.index[j];
    }
  }
}

__global__ void __launch_bounds__(kRowThreads) sort_end_kernel(LayoutJob job, Keys keys) {
  for (std::int64_t i = first_item(); i < job.tables.batch; i += item_stride())
    place(job, static_cast<std::int32_t>(keys.index[i]), static_cast<std::int32_t>(i),
          job.tables.steps_capacity - static_cast<std::int32_t>(keys.key[i]));
}

void sort(gpu::Stream stream, const LayoutJob& job, std::uint32_t* scratch) {
  const std::int32_t stretches = stretches_of(job.tables.batch);
  Keys from{scratch, scratch + job.tables.batch};
  Keys to{from.index + job.tables.batch,
          from.index + 2 * static_cast<std::int64_t>(job.tables.batch)};
  std::uint32_t* const counters = to.index + job.tables.batch;
  const gpu::LaunchShape all = strided_shape(stream, job.tables.batch),
                         each = strided_shape(stream, stretches);
  gpu::LaunchShape one;
  one.block[0] = kTableThreads;
  launch(stream, PACKRNN_KERNEL(sort_begin_kernel), all, job, from);
  for (int shift = 0; shift < 32 && (job.tables.steps_capacity >> shift) > 0; shift += kDigitBits) {
    launch(stream, PACKRNN_KERNEL(sort_count_kernel), each, job.tables.batch, from, shift,
           counters);
    launch(stream, PACKRNN_KERNEL(sort_scan_kernel), one, kDigits * stretches, counters);
    launch(stream, PACKRNN_KERNEL(sort_move_kernel), each, job.tables.batch, from, shift, counters,
           to);
    std::swap(from, to);
  }
  launch(stream, PACKRNN_KERNEL(sort_end_kernel), all, job, from);
}

// ---- steps ------------------------------------------------------------------------------------

/// How many of the lengths, which decrease, exceed t.
__device__ std::int32_t longer_than(const std::int32_t* lengths, std::int32_t batch,
                                    std::int32_t t) {
  std::int32_t low = 0, high = batch;
  while (low < high) {
    const std::int32_t middle = low + (high - low) / 2;
    if (lengths[middle] > t)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

/// One block: batch sizes and their running sum, a stretch of kTableThreads steps at a time.
__global__ void __launch_bounds__(kTableThreads) steps_kernel(LayoutJob job) {
  PACKRNN_SHARED(std::int64_t, sums, [kWarp]);
  const auto thread = static_cast<std::int32_t>(threadIdx.x);
  const std::int32_t longest = job.tables.batch > 0 ? job.tables.lengths[0] : 0;
  std::int64_t before = 0;
  for (std::int32_t begin = 0; begin < job.tables.steps_capacity; begin += kTableThreads) {
    const std::int32_t t = begin + thread;
    const std::int64_t size =
        t < longest ? longer_than(job.tables.lengths, job.tables.batch, t) : 0;
    const std::int64_t sum = block_scan(size, sums);
    if (t < job.tables.steps_capacity) {
      writable(job.tables.batch_sizes)[t] = static_cast<std::int32_t>(size);
      writable(job.tables.offsets)[t + 1] = before + sum;
    }
    before += sums[kTableThreads / kWarp - 1];
    __syncthreads();  // before the next scan writes sums
  }
  const bool too_many = before > job.tables.rows_capacity;
  if (thread == 0) {
    writable(job.tables.offsets)[0] = 0;
    *writable(job.tables.steps) = too_many ? 0 : longest;
    if (too_many) report(job.fault, FaultCode::rows_capacity, before, job.tables.rows_capacity);
  }
  if (!too_many) return;
  // Nothing may be written behind the rows there are: an empty batch, to be on the safe side.
  for (std::int32_t t = thread; t < job.tables.steps_capacity; t += kTableThreads) {
    writable(job.tables.batch_sizes)[t] = 0;
    writable(job.tables.offsets)[t + 1] = 0;
  }
  for (std::int32_t k = thread; k < job.tables.batch; k += kTableThreads)
    writable(job.tables.lengths)[k] = 0;
}

}  // namespace

std::int64_t layout_scratch(std::int32_t batch, std::int32_t ranked) {
  if (batch <= ranked) return 0;
  return 4 * static_cast<std::int64_t>(batch) + kDigits * stretches_of(batch);
}

void make_layout(gpu::Stream stream, const LayoutJob& job, std::uint32_t* scratch,
                 std::int32_t ranked) {
  if (job.tables.batch > ranked) {
    sort(stream, job, scratch);
  } else if (job.tables.batch > 0) {
    gpu::LaunchShape shape;
    shape.grid[0] = static_cast<unsigned>((job.tables.batch + kRowThreads - 1) / kRowThreads);
    shape.block[0] = kRowThreads;
    launch(stream, PACKRNN_KERNEL(rank_kernel), shape, job);
  }
  gpu::LaunchShape one;
  one.block[0] = kTableThreads;
  launch(stream, PACKRNN_KERNEL(steps_kernel), one, job);
}

}  // namespace packrnn::kernels::cuda

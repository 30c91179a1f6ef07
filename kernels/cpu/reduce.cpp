// In sorted order a step of packed data is one block of memory that lines up with the accumulators
// [N * F], of which it covers a prefix. So a reduction is one streaming pass that adds blocks to
// blocks, whatever F is. It is cut into strips of accumulators that stay in the first-level cache.
#include "packrnn/kernels/cpu/reduce.hpp"

#include <algorithm>
#include <array>
#include <type_traits>

#include "packrnn/kernels/cpu/parallel_for.hpp"
#include "packrnn/runtime/element.hpp"

namespace packrnn::kernels::cpu {
namespace {

constexpr std::int64_t kStrip = 1024;  // accumulators

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

struct Add {
  template <class A>
  static A combine(A sum, A value) {
    return sum + value;
  }
};

struct Max {
  // The second comparison is true for NaN alone; once taken, no value is greater.
  template <class A>
  static A combine(A most, A value) {
    return value > most || value != value ? value : most;
  }
};

// Folds accumulators [begin, end) of the sorted order over time.
template <class Fold, class T, class A>
void fold(std::span<const T> packed, const PackedLayout& layout, std::int64_t features,
          std::int64_t begin, std::int64_t end, A* result) {
  const auto sizes = layout.batch_sizes();
  const auto offsets = layout.offsets();
  for (std::int64_t t = 0; t < layout.steps(); ++t) {
    const std::int64_t count = std::min(end, sizes[at(t)] * features) - begin;
    if (count <= 0) break;  // sizes never grow
    const T* const values = packed.data() + offsets[at(t)] * features + begin;
    if (t == 0) {
      for (std::int64_t i = 0; i < count; ++i) result[i] = convert_element<A>(values[i]);
    } else {
      for (std::int64_t i = 0; i < count; ++i)
        result[i] = Fold::combine(result[i], convert_element<A>(values[i]));
    }
  }
}

}  // namespace

template <class T>
void reduce(ThreadPool& pool, Reduction reduction, std::span<const T> packed,
            const PackedLayout& layout, std::int64_t features, double empty_value,
            std::span<T> target) {
  using A = std::conditional_t<std::is_same_v<T, double>, double, float>;
  const T empty = convert_element<T>(empty_value);
  const std::int64_t accumulators = layout.batch() * features;
  const std::int64_t strips = (accumulators + kStrip - 1) / kStrip;

  const auto run_strip = [&](std::int64_t strip) {
    std::array<A, kStrip> result;
    const std::int64_t begin = strip * kStrip;
    const std::int64_t end = std::min(begin + kStrip, accumulators);
    if (reduction == Reduction::max)
      fold<Max>(packed, layout, features, begin, end, result.data());
    else
      fold<Add>(packed, layout, features, begin, end, result.data());
    for (std::int64_t next = begin; next < end;) {
      const std::int64_t k = next / features, first = next % features;
      const std::int64_t count = std::min(features - first, end - next);
      const std::int64_t n = layout.sorted_indices()[at(k)];
      const std::int64_t length = layout.lengths()[at(n)];
      T* const out = target.data() + n * features + first;
      const A* const from = result.data() + (next - begin);
      for (std::int64_t i = 0; i < count; ++i) {
        if (length == 0)
          out[i] = empty;
        else if (reduction == Reduction::mean)
          out[i] = convert_element<T>(from[i] / static_cast<A>(length));
        else
          out[i] = convert_element<T>(from[i]);
      }
      next += count;
    }
  };

  // Early strips hold the long sequences, so they are dealt out in turn.
  const bool together =
      strips > 1 && packed.size() * sizeof(T) > static_cast<std::size_t>(kParallelBytes);
  if (!together || pool.size() == 1) {
    for (std::int64_t strip = 0; strip < strips; ++strip) run_strip(strip);
    return;
  }
  pool.run([&](int worker) {
    for (std::int64_t strip = worker; strip < strips; strip += pool.size()) run_strip(strip);
  });
}

template <class T>
void reduce_backward(ThreadPool& pool, Reduction reduction, const T* packed,
                     const PackedLayout& layout, std::int64_t features, const T* gradient,
                     T* target) {
  const auto average = layout.batch() == 0 ? 0 : layout.total() / layout.batch();
  parallel_for(pool, layout.batch(), (average + 1) * features * std::int64_t{sizeof(T)},
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t n = begin; n < end; ++n) {
                   const std::int64_t length = layout.lengths()[at(n)];
                   const T* const from = gradient + n * features;
                   for (std::int64_t t = 0; t < length; ++t) {
                     T* const to = target + layout.row(n, t) * features;
                     if (reduction == Reduction::mean)
                       for (std::int64_t i = 0; i < features; ++i)
                         to[i] = from[i] / static_cast<T>(length);
                     else if (reduction == Reduction::sum)
                       std::copy_n(from, features, to);
                     else
                       std::fill_n(to, features, T{0});
                   }
                   if (reduction != Reduction::max || length == 0) continue;
                   for (std::int64_t i = 0; i < features; ++i) {
                     std::int64_t best = layout.row(n, 0) * features + i;
                     for (std::int64_t t = 1; t < length && packed[best] == packed[best]; ++t) {
                       const std::int64_t next = layout.row(n, t) * features + i;
                       if (!(packed[next] <= packed[best])) best = next;
                     }
                     target[best] = from[i];
                   }
                 }
               });
}

template void reduce_backward(ThreadPool&, Reduction, const float*, const PackedLayout&,
                              std::int64_t, const float*, float*);
template void reduce_backward(ThreadPool&, Reduction, const double*, const PackedLayout&,
                              std::int64_t, const double*, double*);
template void reduce(ThreadPool&, Reduction, std::span<const float>, const PackedLayout&,
                     std::int64_t, double, std::span<float>);
template void reduce(ThreadPool&, Reduction, std::span<const double>, const PackedLayout&,
                     std::int64_t, double, std::span<double>);
template void reduce(ThreadPool&, Reduction, std::span<const Half>, const PackedLayout&,
                     std::int64_t, double, std::span<Half>);
template void reduce(ThreadPool&, Reduction, std::span<const BFloat16>, const PackedLayout&,
                     std::int64_t, double, std::span<BFloat16>);

}  // namespace packrnn::kernels::cpu

// The positions are sorted by index, stably, by counting. Then each row of the target is one sum
// over a list of positions, and threads take whole rows of the target, about equally many positions
// each. An index that is used very often would leave the others waiting for one thread: its columns
// are split over all.
#include "packrnn/kernels/cpu/scatter.hpp"

#include <algorithm>
#include <array>

#include "packrnn/kernels/cpu/parallel_for.hpp"

namespace packrnn::kernels::cpu {
namespace {

constexpr std::int64_t kStrip = 256;  // sums at a time, which stay in the first-level cache

constexpr std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

constexpr std::int64_t kOften = 4096;

/// Columns [begin, end) of one row of the target.
template <class T>
void add_sum(const T* rows, std::span<const std::int64_t> positions, std::int64_t width,
             std::int64_t begin, std::int64_t end, T* target) {
  const auto used = std::ssize(positions);
  for (std::int64_t first = begin; first < end; first += kStrip) {
    const std::int64_t count = std::min(kStrip, end - first);
    std::array<double, at(kStrip)> sums{};
    for (std::int64_t part = 0; part < used; part += kScatterPart) {
      std::array<double, at(kStrip)> own{};
      for (std::int64_t p = part; p < std::min(part + kScatterPart, used); ++p) {
        const T* const row = rows + positions[at(p)] * width + first;
        for (std::int64_t i = 0; i < count; ++i) own[at(i)] += static_cast<double>(row[i]);
      }
      for (std::int64_t i = 0; i < count; ++i) sums[at(i)] += own[at(i)];
    }
    for (std::int64_t i = 0; i < count; ++i) target[first + i] += static_cast<T>(sums[at(i)]);
  }
}

}  // namespace

template <class T, class Index>
void scatter_add(Context& context, const T* rows, std::span<const Index> indices, std::int64_t skip,
                 std::int64_t width, std::int64_t count, T* target) {
  Workspace::Scope scope(context.workspace());
  const auto total = static_cast<std::int64_t>(indices.size());
  const auto order = scope.take<std::int64_t>(total);
  // ends[r + 2] counts the positions of row r; then ends[r + 1] is where they begin, and once they
  // are put there, where they end: those of row r are at ends[r] .. ends[r + 1].
  const auto ends = scope.take<std::int64_t>(count + 2);
  std::ranges::fill(ends, 0);
  for (const Index index : indices)
    if (index != skip) ++ends[at(index) + 2];
  for (std::int64_t r = 0; r < count; ++r) ends[at(r + 2)] += ends[at(r + 1)];
  for (std::int64_t i = 0; i < total; ++i)
    if (indices[at(i)] != skip) order[at(ends[at(indices[at(i)]) + 1]++)] = i;

  const auto positions_of = [&](std::int64_t r) {
    return std::span<const std::int64_t>(order).subspan(at(ends[at(r)]),
                                                        at(ends[at(r + 1)] - ends[at(r)]));
  };
  const std::int64_t used = ends[at(count)];
  parallel_for(context.pool(), used, width * std::int64_t{sizeof(T)},
               [&](std::int64_t begin, std::int64_t end) {
                 // The rows whose positions begin in this part.
                 const auto starts = ends.first(at(count));
                 const auto first = std::ranges::lower_bound(starts, begin) - starts.begin();
                 const auto last = std::ranges::lower_bound(starts, end) - starts.begin();
                 for (std::int64_t r = first; r < last; ++r)
                   if (const auto own = positions_of(r); !own.empty() && std::ssize(own) < kOften)
                     add_sum(rows, own, width, 0, width, target + r * width);
               });
  for (std::int64_t r = 0; r < count && used >= kOften; ++r)
    if (const auto own = positions_of(r); std::ssize(own) >= kOften)
      parallel_for(context.pool(), width, std::ssize(own) * std::int64_t{sizeof(T)},
                   [&](std::int64_t begin, std::int64_t end) {
                     add_sum(rows, own, width, begin, end, target + r * width);
                   });
}

template void scatter_add(Context&, const float*, std::span<const std::int32_t>, std::int64_t,
                          std::int64_t, std::int64_t, float*);
template void scatter_add(Context&, const float*, std::span<const std::int64_t>, std::int64_t,
                          std::int64_t, std::int64_t, float*);
template void scatter_add(Context&, const double*, std::span<const std::int32_t>, std::int64_t,
                          std::int64_t, std::int64_t, double*);
template void scatter_add(Context&, const double*, std::span<const std::int64_t>, std::int64_t,
                          std::int64_t, std::int64_t, double*);

}  // namespace packrnn::kernels::cpu

// Bound by memory: each valid byte is read once and written once. Where a step is one block on both
// sides (sorted, time-major) it moves in one memcpy; elsewhere each row does, and rows of up to 16
// bytes (indices, scalars) move in one register instead of a call.
#include "packrnn/kernels/cpu/pack.hpp"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "packrnn/kernels/cpu/parallel_for.hpp"

namespace packrnn::kernels::cpu {
namespace {

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

// Calls body with the row size as a compile-time constant where that makes the copy one move.
template <class Body>
void with_row_size(std::int64_t row, Body&& body) {
  switch (row) {
    case 2:
      return body(std::integral_constant<std::int64_t, 2>{});
    case 4:
      return body(std::integral_constant<std::int64_t, 4>{});
    case 8:
      return body(std::integral_constant<std::int64_t, 8>{});
    case 16:
      return body(std::integral_constant<std::int64_t, 16>{});
    default:
      return body(row);
  }
}

template <class Size>
void copy(std::byte* target, const std::byte* source, Size bytes) {
  std::memcpy(target, source, static_cast<std::size_t>(bytes));
}

template <std::size_t kSize>
void fill_elements(std::byte* target, std::int64_t bytes, const FillValue& value) {
  for (std::int64_t i = 0; i < bytes; i += static_cast<std::int64_t>(kSize))
    std::memcpy(target + i, value.bytes.data(), kSize);
}

void fill(std::byte* target, std::int64_t bytes, const FillValue& value) {
  switch (value.size) {
    case 2:
      return fill_elements<2>(target, bytes, value);
    case 4:
      return fill_elements<4>(target, bytes, value);
    default:
      return fill_elements<8>(target, bytes, value);
  }
}

// Writes `columns` x `lines` cells of a target in the order in which they lie in memory, split over
// threads anywhere, also within a line: body(line, first column, one past the last column).
template <class Body>
void for_lines(ThreadPool& pool, std::int64_t lines, std::int64_t columns, std::int64_t row,
               Body&& body) {
  parallel_for(pool, lines * columns, row, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t line = begin / columns; line * columns < end; ++line)
      body(line, std::max<std::int64_t>(begin - line * columns, 0),
           std::min(end - line * columns, columns));
  });
}

// place(n, t) is where element t of sequence n comes from.
template <class Place>
void unpack_from(ThreadPool& pool, Place place, std::span<const std::int64_t> lengths,
                 std::int64_t longest, std::int64_t row, const SequencesOut& target,
                 std::int64_t steps, const FillValue& value) {
  const auto count = static_cast<std::int64_t>(lengths.size());
  const std::int64_t span = std::max(longest, steps);
  with_row_size(row, [&](auto size) {
    if (target.time_major) {
      for_lines(pool, span, count, row, [&](std::int64_t t, std::int64_t n, std::int64_t n_end) {
        std::byte* out = target.base[at(n)] + t * target.step;
        for (; n < n_end; ++n, out += size) {
          if (t < lengths[at(n)])
            copy(out, place(n, t), size);
          else
            fill(out, size, value);
        }
      });
    } else {
      for_lines(pool, count, span, row, [&](std::int64_t n, std::int64_t t, std::int64_t t_end) {
        const std::int64_t end = std::min(t_end, lengths[at(n)]);
        std::byte* const out = target.base[at(n)];
        for (; t < end; ++t) copy(out + t * target.step, place(n, t), size);
        for (t_end = std::min(t_end, steps); t < t_end; ++t)
          fill(out + t * target.step, size, value);
      });
    }
  });
}

}  // namespace

void pack(ThreadPool& pool, const SequencesIn& source, const PackedLayout& layout, std::int64_t row,
          std::byte* packed) {
  const auto offsets = layout.offsets();
  const auto order = layout.sorted_indices();
  const bool blocks = source.time_major && layout.sorted();
  parallel_for(pool, layout.total(), row, [&](std::int64_t begin, std::int64_t end) {
    with_row_size(row, [&](auto size) {
      auto step = std::upper_bound(offsets.begin(), offsets.end(), begin) - offsets.begin() - 1;
      for (std::int64_t next = begin; next < end; ++step) {
        const std::int64_t first = next - offsets[at(step)];
        const std::int64_t last = std::min(end, offsets[at(step + 1)]) - offsets[at(step)];
        const std::int64_t place = step * source.step;
        std::byte* out = packed + next * size;
        if (blocks) {
          copy(out, source.base[at(first)] + place, (last - first) * size);
        } else {
          for (std::int64_t k = first; k < last; ++k, out += size)
            copy(out, source.base[at(order[at(k)])] + place, size);
        }
        next += last - first;
      }
    });
  });
}

void unpack(ThreadPool& pool, const std::byte* packed, const PackedLayout& layout, std::int64_t row,
            const SequencesOut& target, std::int64_t steps, const FillValue& value) {
  if (target.time_major && layout.sorted()) {
    const auto sizes = layout.batch_sizes();
    for_lines(pool, steps, layout.batch(), row,
              [&](std::int64_t t, std::int64_t n, std::int64_t n_end) {
                const std::int64_t live = t < layout.steps() ? sizes[at(t)] : 0;
                const std::int64_t end = std::clamp(live, n, n_end);
                std::byte* const out = target.base[at(n)] + t * target.step;
                if (n < end) copy(out, packed + layout.row(n, t) * row, (end - n) * row);
                fill(out + (end - n) * row, (n_end - end) * row, value);
              });
    return;
  }
  unpack_from(
      pool, [&](std::int64_t n, std::int64_t t) { return packed + layout.row(n, t) * row; },
      layout.lengths(), layout.steps(), row, target, steps, value);
}

void pad(ThreadPool& pool, const SequencesIn& source, std::span<const std::int64_t> lengths,
         std::int64_t row, const SequencesOut& target, std::int64_t steps, const FillValue& value) {
  unpack_from(
      pool, [&](std::int64_t n, std::int64_t t) { return source.base[at(n)] + t * source.step; },
      lengths, steps, row, target, steps, value);
}

template <class Index>
void gather(ThreadPool& pool, const std::byte* source, std::span<const Index> indices,
            std::int64_t row, const FillValue* absent, std::byte* target) {
  const auto count = static_cast<std::int64_t>(indices.size());
  parallel_for(pool, count, row, [&](std::int64_t begin, std::int64_t end) {
    with_row_size(row, [&](auto size) {
      for (std::int64_t i = begin; i < end; ++i) {
        const auto index = static_cast<std::int64_t>(indices[at(i)]);
        if (index < 0)
          fill(target + i * size, size, *absent);
        else
          copy(target + i * size, source + index * size, size);
      }
    });
  });
}
template void gather(ThreadPool&, const std::byte*, std::span<const std::int32_t>, std::int64_t,
                     const FillValue*, std::byte*);
template void gather(ThreadPool&, const std::byte*, std::span<const std::int64_t>, std::int64_t,
                     const FillValue*, std::byte*);

void spread(ThreadPool& pool, const std::byte* source, std::int64_t rows, std::int64_t width,
            std::byte* target, std::int64_t stride) {
  parallel_for(pool, rows, width, [&](std::int64_t begin, std::int64_t end) {
    with_row_size(width, [&](auto size) {
      for (std::int64_t i = begin; i < end; ++i) copy(target + i * stride, source + i * size, size);
    });
  });
}

}  // namespace packrnn::kernels::cpu

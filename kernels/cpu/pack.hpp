// CPU bodies of kernels/pack.hpp: arguments are checked, sizes and strides are bytes. Private.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "packrnn/kernels/fill_value.hpp"
#include "packrnn/runtime/packed_layout.hpp"
#include "packrnn/runtime/thread_pool.hpp"

namespace packrnn::kernels::cpu {

/// N sequences in memory: element t of sequence n is at base[n] + t * step. A padded batch of
/// either order and a list of tensors are the same thing here.
template <class Byte>
struct Sequences {
  std::span<Byte* const> base;
  std::int64_t step = 0;
  bool time_major = false;  // base[n + 1] == base[n] + row: a step is one block of memory
};
using SequencesIn = Sequences<const std::byte>;
using SequencesOut = Sequences<std::byte>;

void pack(ThreadPool& pool, const SequencesIn& source, const PackedLayout& layout, std::int64_t row,
          std::byte* packed);

/// Each target sequence is filled from its end up to `steps`; with fewer steps than the longest
/// length, `steps` only bounds the fill.
void unpack(ThreadPool& pool, const std::byte* packed, const PackedLayout& layout, std::int64_t row,
            const SequencesOut& target, std::int64_t steps, const FillValue& fill);

/// The same from sequences that lie apart; `steps` is at least the longest of `lengths`.
void pad(ThreadPool& pool, const SequencesIn& source, std::span<const std::int64_t> lengths,
         std::int64_t row, const SequencesOut& target, std::int64_t steps, const FillValue& fill);

/// `absent` fills rows of index -1; null when there are none.
template <class Index>
void gather(ThreadPool& pool, const std::byte* source, std::span<const Index> indices,
            std::int64_t row, const FillValue* absent, std::byte* target);

/// Copies rows of `width` bytes that lie `width` apart to rows that lie `stride` apart.
void spread(ThreadPool& pool, const std::byte* source, std::int64_t rows, std::int64_t width,
            std::byte* target, std::int64_t stride);

}  // namespace packrnn::kernels::cpu

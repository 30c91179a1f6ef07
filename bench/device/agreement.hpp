// How far the outputs of two runs of one batch are apart.
#pragma once

#include <packrnn/runtime/packed_layout.hpp>
#include <span>
#include <string>

namespace packrnn::bench {

/// Where the row of a sequence's step lies.
enum class RowOrder { packed, seq_major, batch_major };
const char* name_of(RowOrder order) noexcept;

struct Agreement {
  bool bits = true;      // every compared value is the same, NaN included
  double largest = 0.0;  // difference; infinite where one of the two is no number
  std::int64_t sequence = -1, step = -1, unit = -1;  // of the largest; -1: no difference

  /// "bits" or "1.2e-04", with the place when it is more than `allowed`.
  std::string text(double allowed) const;
};

/// `expected` is packed [total, width]; `got` is in `order`, with padding to `steps`, that is not
/// looked at. Sizes have to fit: InvalidArgument.
Agreement compare(const PackedLayout& layout, std::int64_t width, std::span<const float> expected,
                  std::span<const float> got, RowOrder order);

}  // namespace packrnn::bench

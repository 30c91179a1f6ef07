#include "bench/device/agreement.hpp"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <packrnn/runtime/error.hpp>

namespace packrnn::bench {
namespace {

double distance(float a, float b) {
  const double difference = std::abs(static_cast<double>(a) - static_cast<double>(b));
  return std::isfinite(difference) ? difference : INFINITY;
}

}  // namespace

const char* name_of(RowOrder order) noexcept {
  constexpr const char* kNames[] = {"packed", "seq-major", "batch-major"};
  return kNames[static_cast<int>(order)];
}

std::string Agreement::text(double allowed) const {
  if (bits) return "bits";
  if (largest <= allowed) return fmt::format("{:.1e}", largest);
  return fmt::format("WRONG: {:.1e} at sequence {}, step {}, unit {}", largest, sequence, step,
                     unit);
}

Agreement compare(const PackedLayout& layout, std::int64_t width, std::span<const float> expected,
                  std::span<const float> got, RowOrder order) {
  const std::int64_t steps = layout.steps(), batch = layout.batch();
  const std::int64_t rows = order == RowOrder::packed ? layout.total() : steps * batch;
  const auto count = [&](std::int64_t n) { return static_cast<std::size_t>(n * width); };
  if (expected.size() != count(layout.total()) || got.size() != count(rows))
    throw InvalidArgument(fmt::format("{} and {} values, expected {} and {}", expected.size(),
                                      got.size(), layout.total() * width, rows * width));
  Agreement result;
  for (std::int64_t n = 0; n < batch; ++n)
    for (std::int64_t t = 0; t < layout.lengths()[static_cast<std::size_t>(n)]; ++t) {
      const std::int64_t row = layout.row(n, t);
      const std::int64_t other = order == RowOrder::packed      ? row
                                 : order == RowOrder::seq_major ? t * batch + n
                                                                : n * steps + t;
      for (std::int64_t u = 0; u < width; ++u) {
        const float a = expected[count(row) + static_cast<std::size_t>(u)];
        const float b = got[count(other) + static_cast<std::size_t>(u)];
        if (std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b)) continue;
        const double apart = distance(a, b);
        if (result.bits || apart > result.largest) result = {false, apart, n, t, u};
      }
    }
  return result;
}

}  // namespace packrnn::bench

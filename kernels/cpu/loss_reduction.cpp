// A few additions for each row, which took an exponential or more: not worth a team.
#include "packrnn/kernels/cpu/loss_reduction.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace packrnn::kernels::cpu {
namespace {

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

double inverse(double weight) { return weight > 0 ? 1 / weight : 0; }

// Calls body(row, element) for all rows in order.
template <class Body>
void for_rows(Collect collect, const PackedLayout* layout, std::size_t rows, const Body& body) {
  if (collect != Collect::sequences) {
    for (std::size_t row = 0; row < rows; ++row) body(row, collect == Collect::rows ? row : 0);
    return;
  }
  std::size_t row = 0;
  for (const std::int64_t size : layout->batch_sizes())
    for (std::int64_t k = 0; k < size; ++k) body(row++, at(layout->sorted_indices()[at(k)]));
}

void average_sequences(Average average, std::span<const double> weights, const PackedLayout& layout,
                       std::span<double> scales) {
  std::vector<double> each(at(layout.batch()));
  double counted = 0;
  for (std::int64_t n = 0; n < layout.batch(); ++n) {
    double total = 0;
    for (std::int64_t t = 0; t < layout.lengths()[at(n)]; ++t)
      total += weights[at(layout.row(n, t))];
    each[at(n)] = inverse(total);
    if (total > 0) counted += 1;
  }
  if (average == Average::sequences)
    for (double& scale : each) scale *= inverse(counted);
  for_rows(Collect::sequences, &layout, scales.size(),
           [&](std::size_t row, std::size_t n) { scales[row] = each[n]; });
}

}  // namespace

void loss_scales(Average average, std::span<const double> weights, const PackedLayout* layout,
                 std::span<double> scales) {
  if (average == Average::sequence || average == Average::sequences)
    return average_sequences(average, weights, *layout, scales);
  double total = 0;
  for (const double weight : weights) total += weight;
  std::ranges::fill(scales, average == Average::rows ? inverse(total) : 1.0);
}

void leave_out_infinite(std::span<const double> losses, std::span<double> scales) {
  for (std::size_t m = 0; m < losses.size(); ++m)
    if (std::isinf(losses[m])) scales[m] = 0;
}

void collect_losses(Collect collect, const PackedLayout* layout, std::span<const double> losses,
                    std::span<const double> scales, std::span<double> sums) {
  std::ranges::fill(sums, 0.0);
  for_rows(collect, layout, losses.size(), [&](std::size_t row, std::size_t element) {
    if (scales[row] != 0) sums[element] += scales[row] * losses[row];
  });
}

void collect_losses_backward(Collect collect, const PackedLayout* layout,
                             std::span<const double> gradient, std::span<const double> scales,
                             std::span<double> row_gradients) {
  for_rows(collect, layout, scales.size(), [&](std::size_t row, std::size_t element) {
    row_gradients[row] = scales[row] != 0 ? scales[row] * gradient[element] : 0.0;
  });
}

}  // namespace packrnn::kernels::cpu

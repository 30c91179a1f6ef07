// CPU bodies of kernels/loss_reduction.hpp: arguments are checked. Private.
#pragma once

#include <span>

#include "packrnn/kernels/loss_reduction.hpp"

namespace packrnn::kernels::cpu {

void loss_scales(Average average, std::span<const double> weights, const PackedLayout* layout,
                 std::span<double> scales);

void leave_out_infinite(std::span<const double> losses, std::span<double> scales);

/// Assigns sums of the result's elements.
void collect_losses(Collect collect, const PackedLayout* layout, std::span<const double> losses,
                    std::span<const double> scales, std::span<double> sums);

void collect_losses_backward(Collect collect, const PackedLayout* layout,
                             std::span<const double> gradient, std::span<const double> scales,
                             std::span<double> row_gradients);

}  // namespace packrnn::kernels::cpu

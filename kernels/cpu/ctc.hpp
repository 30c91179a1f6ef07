// CPU bodies of kernels/ctc.hpp: arguments are checked, T is float or double. Private.
#pragma once

#include <span>

#include "packrnn/kernels/ctc.hpp"

namespace packrnn::kernels::cpu {

template <class T>
void ctc(Context& context, std::span<const T> logits, const PackedLayout& layout,
         const CtcLabels& labels, std::span<double> log_sum_exp, std::span<double> losses);

template <class T>
void ctc_backward(Context& context, std::span<const T> logits, const PackedLayout& layout,
                  const CtcLabels& labels, std::span<const double> log_sum_exp,
                  std::span<const double> losses, std::span<const double> scales,
                  std::span<T> gradient);

}  // namespace packrnn::kernels::cpu

// y = x W^T + b on the CPU: the panel product with a bias as initial value. Rows are worked on in
// blocks that stay in L2 while all panels pass by; threads share rows when there are many, else
// panels. The way back: panels of the transpose, and the gradient product for what is summed over
// rows, of which threads share the results.
#include "packrnn/kernels/cpu/linear.hpp"

#include "packrnn/kernels/cpu/targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "packrnn/kernels/cpu/linear.cpp"
#include <hwy/foreach_target.h>
// After foreach_target:
#include "packrnn/kernels/cpu/gradient_product-inl.hpp"
#include "packrnn/kernels/cpu/panel-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace packrnn::kernels::HWY_NAMESPACE {
namespace {

constexpr int kLinearWidth = 4;

template <class T>
void pack(const TensorView& weight, T* panels) {
  const std::int64_t outputs = weight.size(0), k_count = weight.size(1);
  const T* data = weight.data<T>();
  fill_panels<kLinearWidth, T>(
      round_up(outputs, kLinearWidth * kLanes<T>), k_count,
      [&](std::int64_t c) { return c < outputs ? data + c * k_count : nullptr; }, panels);
}

/// Panels of the transpose of weight [O, K]: they have the weight's own rows as k, in pieces.
template <class T>
void pack_backward(const TensorView& weight, T* panels) {
  constexpr std::int64_t kColumns = kLinearWidth * kLanes<T>;
  const std::int64_t outputs = weight.size(0), columns = weight.size(1);
  for (std::int64_t first = 0; first < columns; first += kColumns) {
    const std::int64_t count = std::min(kColumns, columns - first);
    for (std::int64_t o = 0; o < outputs; ++o, panels += kColumns) {
      std::copy_n(weight.data<T>() + o * columns + first, count, panels);
      std::fill(panels + count, panels + kColumns, T{0});
    }
  }
}

/// Rows [rows.begin, rows.end) of y for panels [panels.begin, panels.end).
template <class T>
HWY_NOINLINE void part(const T* x, const T* weights, const T* bias, T* y, std::int64_t outputs,
                       std::int64_t k_count, Range rows, Range panels) {
  constexpr std::int64_t kN = kLanes<T>, kColumns = kLinearWidth * kN;
  const Tag<T> d;
  HWY_ALIGN T init[kColumns];
  HWY_ALIGN T buffer[kGroupRows * kColumns];
  for (std::int64_t first = rows.begin; first < rows.end; first += kGroupRows) {
    const std::int64_t count = std::min<std::int64_t>(kGroupRows, rows.end - first);
    for (std::int64_t p = panels.begin; p < panels.end; ++p) {
      const std::int64_t column = p * kColumns, width = std::min(kColumns, outputs - column);
      for (std::int64_t c = 0; c < kColumns; ++c)
        init[c] = bias && c < width ? bias[column + c] : T{0};
      const Rows<T> out{y + first * outputs + column, outputs}, scratch{buffer, kColumns};
      const auto product = [&]<int kVectors>(std::integral_constant<int, kVectors>) {
        panel_product<kLinearWidth, 0, kVectors>(
            count, k_count, Rows<const T>{x + first * k_count, k_count},
            weights + p * k_count * kColumns, Rows<const T>{init, 0},
            width == kColumns ? out : scratch);
      };
      // Of the last panel, no vectors that hold no output.
      if (width <= kN)
        product(std::integral_constant<int, 1>{});
      else if (width <= 2 * kN)
        product(std::integral_constant<int, 2>{});
      else
        product(std::integral_constant<int, kLinearWidth>{});
      if (width < kColumns)
        for (std::int64_t r = 0; r < count; ++r)
          for (std::int64_t c = 0; c < width; c += kN)
            store_first(hn::Load(d, scratch[r] + c), width - c, out[r] + c);
    }
  }
}

template <class T>
void run(Context& context, const TensorView& x, const TensorView& panels, const TensorView& bias,
         const TensorSpan& y) {
  const std::int64_t rows = y.size(0), outputs = y.size(1), k_count = x.size(1);
  const std::int64_t count =
      round_up(outputs, kLinearWidth * kLanes<T>) / (kLinearWidth * kLanes<T>);
  const T* b = bias.defined() ? bias.data<T>() : nullptr;
  const auto work = [&](Range own_rows, Range own_panels) {
    part(x.data<T>(), panels.data<T>(), b, y.data<T>(), outputs, k_count, own_rows, own_panels);
  };
  constexpr std::int64_t kWorthwhile = 64 * 1024;  // multiply-adds that pay for waking the pool
  const int team = context.threads();
  if (team == 1 || rows * outputs * k_count < kWorthwhile) return work({0, rows}, {0, count});
  const bool by_rows = rows >= kGroupRows / 2 * team;
  context.pool().run([&](int worker) {
    if (by_rows)
      work(split(rows, worker, team), {0, count});
    else
      work({0, rows}, split(count, worker, team));
  });
}

template <class T>
void run_gradient(Context& context, const TensorView& x, const TensorView& dy, const TensorSpan& dw,
                  const TensorSpan& db) {
  const std::int64_t rows = x.size(0), inputs = x.size(1), outputs = dy.size(1);
  const Rows<const T> gradient{dy.data<T>(), outputs};
  const T* const values = x.data<T>();
  T* const weights = dw.defined() ? dw.data<T>() : nullptr;
  T* const biases = db.defined() ? db.data<T>() : nullptr;
  const std::int64_t width = weights ? inputs : 0;
  constexpr std::int64_t kWorthwhile = 64 * 1024;  // multiply-adds that pay for waking the pool
  const int team = rows * outputs * (width + 1) < kWorthwhile ? 1 : context.threads();
  const std::int64_t each = gradient_product_scratch<T>(width);
  Workspace::Scope scope(context.workspace());
  T* const scratch = scope.take<T>(each * team).data();

  const auto work = [&](Range own_outputs, Range own_inputs, T* own_scratch) {
    gradient_product<T>(
        rows, own_outputs, gradient, own_inputs.end - own_inputs.begin,
        [&](std::int64_t m) { return values + m * inputs + own_inputs.begin; },
        [&](std::int64_t o) { return weights + o * inputs + own_inputs.begin; }, own_scratch);
  };
  const auto sum = [&](Range own) {
    if (biases)
      column_sums<T>(rows, own, gradient, [&](std::int64_t o, T part) { biases[o] += part; });
  };
  if (team == 1) {
    work({0, outputs}, {0, width}, scratch);
    return sum({0, outputs});
  }
  // A tile covers few outputs and many inputs: outputs are dealt as long as everyone gets some
  // tiles of them.
  const bool by_outputs = outputs >= 4 * kGradientRows<kGradientWidth> * team;
  context.pool().run([&](int worker) {
    const Range own = split(outputs, worker, team);
    if (by_outputs) {
      work(own, {0, width}, scratch + worker * each);
    } else {
      constexpr std::int64_t kN = kLanes<T>;
      const Range vectors = split(round_up(width, kN) / kN, worker, team);
      work({0, outputs}, {std::min(vectors.begin * kN, width), std::min(vectors.end * kN, width)},
           scratch + worker * each);
    }
    sum(own);
  });
}

std::int64_t PanelElements(std::int64_t outputs, std::int64_t k_count, Dtype dtype) {
  const std::int64_t lanes = dtype == Dtype::f32 ? kLanes<float> : kLanes<double>;
  return round_up(outputs, kLinearWidth * lanes) * k_count;
}

void Pack(const TensorView& weight, const TensorSpan& panels) {
  if (weight.dtype() == Dtype::f32)
    pack(weight, panels.data<float>());
  else
    pack(weight, panels.data<double>());
}

void PackBackward(const TensorView& weight, const TensorSpan& panels) {
  if (weight.dtype() == Dtype::f32)
    pack_backward(weight, panels.data<float>());
  else
    pack_backward(weight, panels.data<double>());
}

void Linear(Context& context, const TensorView& x, const TensorView& panels, const TensorView& bias,
            const TensorSpan& y) {
  if (x.dtype() == Dtype::f32)
    run<float>(context, x, panels, bias, y);
  else
    run<double>(context, x, panels, bias, y);
}

void WeightGradient(Context& context, const TensorView& x, const TensorView& dy,
                    const TensorSpan& dw, const TensorSpan& db) {
  if (x.dtype() == Dtype::f32)
    run_gradient<float>(context, x, dy, dw, db);
  else
    run_gradient<double>(context, x, dy, dw, db);
}

}  // namespace
}  // namespace packrnn::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace packrnn::kernels {
namespace {

HWY_EXPORT(PanelElements);
HWY_EXPORT(Pack);
HWY_EXPORT(PackBackward);
HWY_EXPORT(Linear);
HWY_EXPORT(WeightGradient);

}  // namespace

namespace cpu {

std::int64_t linear_panel_elements(std::int64_t outputs, std::int64_t k, Dtype dtype) {
  return HWY_DYNAMIC_DISPATCH(PanelElements)(outputs, k, dtype);
}

void pack_linear(const TensorView& weight, const TensorSpan& panels) {
  HWY_DYNAMIC_DISPATCH(Pack)(weight, panels);
}

void pack_linear_backward(const TensorView& weight, const TensorSpan& panels) {
  HWY_DYNAMIC_DISPATCH(PackBackward)(weight, panels);
}

void linear(Context& context, const TensorView& x, const TensorView& panels, const TensorView& bias,
            const TensorSpan& y) {
  HWY_DYNAMIC_DISPATCH(Linear)(context, x, panels, bias, y);
}

void linear_weight_gradient(Context& context, const TensorView& x, const TensorView& dy,
                            const TensorSpan& dw, const TensorSpan& db) {
  HWY_DYNAMIC_DISPATCH(WeightGradient)(context, x, dy, dw, db);
}

}  // namespace cpu
}  // namespace packrnn::kernels
#endif  // HWY_ONCE

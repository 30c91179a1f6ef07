// The way back through one recurrent layer on a GPU: what is no recurrence before and after, for
// all tokens at once, and the recurrence between by whichever algorithm is chosen. Nothing here
// waits for the device.
#include "packrnn/kernels/cuda/recurrent_backward.hpp"

#include <algorithm>

#include "packrnn/kernels/cuda/elementwise.hpp"
#include "packrnn/kernels/cuda/gradient_product.hpp"
#include "packrnn/kernels/cuda/layer_product.hpp"
#include "packrnn/kernels/cuda/persistent_backward.hpp"
#include "packrnn/kernels/cuda/recurrent_backward_run.hpp"
#include "packrnn/kernels/cuda/recurrent_gates.hpp"
#include "packrnn/kernels/cuda/select_backward.hpp"
#include "packrnn/kernels/cuda/step.hpp"
#include "packrnn/kernels/cuda/step_backward.hpp"

namespace packrnn::kernels::cuda {
namespace {

const void* data_of(const TensorView& t) { return t.defined() ? t.raw() : nullptr; }
void* data_of(const TensorSpan& t) { return t.defined() ? t.raw() : nullptr; }

/// One call: what its parts share.
class Backward {
 public:
  Backward(Context& context, const RecurrentShape& shape, const PackedLayout& layout,
           const TensorView& x, const TensorView& y, const TensorView& dy,
           std::span<const RecurrentBackwardDirection> directions, const BackwardOptions& options)
      : context_(context),
        scratch_(context.workspace()),
        s_(shape),
        layout_(layout),
        rows_(layout.total()),
        x_(x),
        given_(directions),
        options_(options) {
    run_.shape = shape;
    run_.panels = RecurrentBackwardPanels::of(shape);
    run_.layout = layout.on(context);
    if (layout.known()) run_.batch_sizes = layout.batch_sizes();
    run_.directions = static_cast<int>(directions.size());
    run_.ldy = std::ssize(directions) * shape.state();
    const std::int64_t S = shape.state(), U = run_.panels.units;
    const bool rnn = gates(shape.cell) == 1, lstm = shape.cell == Cell::lstm;
    for (int i = 0; i < run_.directions; ++i) {
      const RecurrentBackwardDirection& from = directions[static_cast<std::size_t>(i)];
      GatesRun& gates_of = gates_[i];
      gates_of = {.shape = shape,
                  .layout = run_.layout,
                  .rows = rows_,
                  .reverse = from.reverse,
                  .panels = at(from.panels.raw(), run_.panels.forward, shape.dtype),
                  .x = x.raw(),
                  .y = at(y.raw(), i * S, shape.dtype),
                  .h_0 = data_of(from.h_0),
                  .before = take(S, shape.dtype),
                  .gates = rnn ? nullptr : take(4 * U, cell_dtype(shape.dtype)),
                  .reset = two_products() ? take(S, shape.dtype) : nullptr,
                  .ldy = run_.ldy};
      run_.direction[i] = {.panels = from.panels.raw(),
                           .reverse = from.reverse,
                           .gates = gates_of.gates,
                           .before = gates_of.before,
                           .y = gates_of.y,
                           .dy = dy.defined() ? at(dy.raw(), i * S, shape.dtype) : nullptr,
                           .cells = lstm ? from.reserve.raw() : nullptr,
                           .c_0 = data_of(from.c_0),
                           .dh_n = data_of(from.dh_n),
                           .dc_n = data_of(from.dc_n),
                           .dgates = take(pitch(), shape.dtype),
                           .dh = shape.projection > 0 ? take(S, shape.dtype) : nullptr,
                           .dh_0 = data_of(from.dh_0),
                           .dc_0 = data_of(from.dc_0)};
    }
  }

  /// Assigns dgates of all steps, dh_0 and dc_0.
  void recurrence() {
    if (run_.batch_sizes.empty() || run_.batch_sizes[0] < run_.layout.batch)
      empty_gradients(context_.stream(), run_);
    if (rows_ == 0) return;
    for (int i = 0; i < run_.directions; ++i) {
      recompute_gates(context_, gates_[i], options_.scratch_bytes);
      if (!run_.batch_sizes.empty()) continue;
      const BackwardDirectionRun& d = run_.direction[i];
      const TensorSpan dgates(d.dgates, {rows_, pitch()}, s_.dtype, context_.device());
      const TensorSpan dh =
          d.dh == nullptr ? TensorSpan()
                          : TensorSpan(d.dh, {rows_, s_.projection}, s_.dtype, context_.device());
      zero_unused_rows(context_.stream(), run_.layout, dgates, dh);
    }
    const Choice choice = options_.choice ? *options_.choice
                                          : choose_backward(context_, s_, layout_, run_.directions);
    if (choice.algorithm == Algorithm::persistent)
      persistent_backward(context_, run_, choice.mapping);
    else
      step_backward(context_, run_);
  }

  /// dx: one direction's share, then the other's on top.
  void input(const TensorSpan& dx) {
    // Sums of 16 bits are in f32: rounded to the dtype at last, some rows at a time.
    const bool narrow = size_of(s_.dtype) == 2;
    const std::int64_t most =
        narrow ? std::max<std::int64_t>(1, options_.scratch_bytes / (s_.input * 4)) : rows_;
    Workspace::Scope scratch(context_.workspace());
    float* const sums =
        narrow ? scratch.take<float>(std::min(most, rows_) * s_.input).data() : nullptr;
    for (std::int64_t first = 0; first < rows_; first += most) {
      const std::int64_t rows = std::min(most, rows_ - first);
      void* const to = at(dx.raw(), first * s_.input, s_.dtype);
      for (int i = 0; i < run_.directions; ++i)
        layer_product(context_, {.dtype = s_.dtype,
                                 .rows = rows,
                                 .outputs = s_.input,
                                 .k = run_.panels.gates * run_.panels.units,
                                 .x = at(part(i, input_part()), first * pitch(), s_.dtype),
                                 .w = at(run_.direction[i].panels, run_.panels.w_ih, s_.dtype),
                                 .y = narrow ? sums : to,
                                 .ldx = pitch(),
                                 .ldw = run_.panels.pitch_ih,
                                 .ldy = s_.input,
                                 .accumulate = i > 0});
      if (narrow) convert(context_.stream(), sums, Dtype::f32, rows * s_.input, to, s_.dtype);
    }
  }

  void weights(int i) {
    const RecurrentWeightGradients& to = given_[static_cast<std::size_t>(i)].weights;
    const std::int64_t I = s_.input, S = s_.state(), G = run_.panels.gates;
    const void* const before = run_.direction[i].before;
    add_products(i, input_part(), 0, G, x_.raw(), I, to.w_ih);
    add_sums(i, input_part(), 0, G, to.b_ih);
    if (s_.cell == Cell::gru) {  // d(W_hn h + b_hn) is the first part, n the last gate
      add_products(i, 1, 0, 2, before, S, to.w_hh);
      add_products(i, 0, 2, 1, before, S, to.w_hh);
      add_sums(i, 1, 0, 2, to.b_hh);
      add_sums(i, 0, 2, 1, to.b_hh);
    } else if (two_products()) {
      add_products(i, 0, 0, 2, before, S, to.w_hh);
      add_products(i, 2, 2, 1, gates_[i].reset, S, to.w_hh);
      add_sums(i, 0, 0, G, to.b_hh);
    } else {
      add_products(i, 0, 0, G, before, S, to.w_hh);
      add_sums(i, 0, 0, G, to.b_hh);
    }
    if (!to.w_hr.defined()) return;
    Workspace::Scope scratch(context_.workspace());
    void* const hidden =
        scratch.take<std::byte>(rows_ * s_.hidden * static_cast<std::int64_t>(size_of(s_.dtype)))
            .data();
    hidden_states(context_.stream(), gates_[i], run_.direction[i].cells, hidden);
    gradient_product(context_, {.dtype = s_.dtype,
                                .rows = rows_,
                                .m = S,
                                .n = s_.hidden,
                                .a = run_.direction[i].dh,
                                .b = hidden,
                                .sums = to.w_hr.raw(),
                                .lda = S,
                                .ldb = s_.hidden,
                                .ldsums = s_.hidden});
  }

 private:
  bool two_products() const { return s_.cell == Cell::gru_reset_before; }
  std::int64_t pitch() const { return run_.panels.parts * run_.panels.units; }
  /// The first part of dgates that reaches x.
  std::int64_t input_part() const { return run_.panels.parts - run_.panels.gates; }
  const void* part(int i, std::int64_t index) const {
    return at(run_.direction[i].dgates, index * run_.panels.units, s_.dtype);
  }
  /// [total, width]
  void* take(std::int64_t width, Dtype dtype) {
    return scratch_.take<std::byte>(rows_ * width * static_cast<std::int64_t>(size_of(dtype)))
        .data();
  }

  /// Calls add(part, gate, rows) for `count` neighbouring parts of dgates and the gates that they
  /// are of: once, where no units are filled up between them.
  template <class Add>
  void for_parts(std::int64_t part, std::int64_t gate, std::int64_t count, Add&& add) const {
    if (run_.panels.units == s_.hidden) return add(part, gate, count * s_.hidden);
    for (std::int64_t k = 0; k < count; ++k) add(part + k, gate + k, s_.hidden);
  }

  /// Rows of a weight's gradient, from those of `gate` on, += parts of dgates times b [total, n].
  void add_products(int i, std::int64_t first_part, std::int64_t first_gate, std::int64_t count,
                    const void* b, std::int64_t n, const TensorSpan& gradient) {
    if (!gradient.defined()) return;
    for_parts(first_part, first_gate, count,
              [&](std::int64_t index, std::int64_t gate, std::int64_t m) {
                gradient_product(
                    context_, {.dtype = s_.dtype,
                               .rows = rows_,
                               .m = m,
                               .n = n,
                               .a = part(i, index),
                               .b = b,
                               .sums = at(gradient.raw(), gate * s_.hidden * n, gradient.dtype()),
                               .lda = pitch(),
                               .ldb = n,
                               .ldsums = n});
              });
  }

  /// The same of a bias.
  void add_sums(int i, std::int64_t first_part, std::int64_t first_gate, std::int64_t count,
                const TensorSpan& gradient) {
    if (!gradient.defined()) return;
    for_parts(first_part, first_gate, count,
              [&](std::int64_t index, std::int64_t gate, std::int64_t columns) {
                column_sums(context_,
                            {.dtype = s_.dtype,
                             .rows = rows_,
                             .columns = columns,
                             .values = part(i, index),
                             .sums = at(gradient.raw(), gate * s_.hidden, gradient.dtype()),
                             .ld = pitch()});
              });
  }

  Context& context_;
  Workspace::Scope scratch_;
  RecurrentShape s_;
  const PackedLayout& layout_;
  std::int64_t rows_;
  TensorView x_;
  std::span<const RecurrentBackwardDirection> given_;
  BackwardOptions options_;
  RecurrentBackwardRun run_;
  GatesRun gates_[2];
};

}  // namespace

std::int64_t recurrent_reserve_elements(const RecurrentShape& shape, std::int64_t total) {
  return shape.cell == Cell::lstm ? total * shape.hidden : 0;
}

void recurrent_backward(Context& context, const RecurrentShape& shape, const PackedLayout& layout,
                        const TensorView& x, const TensorView& y, const TensorView& dy,
                        std::span<const RecurrentBackwardDirection> directions,
                        const TensorSpan& dx, const BackwardOptions& options) {
  if (layout.batch() == 0) return;
  Backward backward(context, shape, layout, x, y, dy, directions, options);
  backward.recurrence();
  if (layout.total() == 0) return;
  if (dx.defined()) backward.input(dx);
  for (int i = 0; i < static_cast<int>(directions.size()); ++i) backward.weights(i);
}

std::string explain_recurrent_backward(Context& context, const RecurrentShape& shape,
                                       const PackedLayout& layout, std::int64_t directions) {
  return choose_backward(context, shape, layout, static_cast<int>(directions)).reason;
}

}  // namespace packrnn::kernels::cuda

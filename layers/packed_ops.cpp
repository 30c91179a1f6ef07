#include "packrnn/layers/packed_ops.hpp"

#include <utility>
#include <vector>

#include "packrnn/kernels/pack.hpp"
#include "packrnn/kernels/reduce.hpp"
#include "packrnn/layers/arguments.hpp"
#include "packrnn/layers/functions.hpp"
#include "packrnn/runtime/expects.hpp"

namespace packrnn {
namespace {

void expects_same_rows(std::size_t i, const PackedLayout& layout, const PackedLayout& first) {
  if (!same_rows(layout, first))
    throw InvalidArgument(
        fmt::format("inputs[{}] has lengths {} in sorted order {}, the first has "
                    "{} in {}",
                    i, fmt::join(layout.lengths(), " "), fmt::join(layout.sorted_indices(), " "),
                    fmt::join(first.lengths(), " "), fmt::join(first.sorted_indices(), " ")));
}

Tensor per_sequence(Context& context, const TensorView& data, const PackedLayout& layout) {
  expects_on_device("packed", data, context);
  return context.empty(data.shape().from(1).prepend(layout.batch()), data.dtype());
}

Tensor pick(Context& context, const TensorView& data, const PackedLayout& layout, bool last,
            double empty_value) {
  Tensor result = per_sequence(context, data, layout);
  kernels::pick_elements(context, data, layout, last, empty_value, result);
  return result;
}

Tensor pick(Context& context, const PackedSequence& packed, bool last, double empty_value) {
  expects(packed.defined(), "packed is not defined");
  return pick(context, packed.data(), packed.layout(), last, empty_value);
}

Variable pick(Tape& tape, const PackedVariable& packed, bool last, double empty_value) {
  expects(packed.defined(), "packed is not defined");
  Variable y =
      tape.result(pick(tape.context(), packed.data.value(), *packed.layout, last, empty_value),
                  packed.data.needs_gradient());
  tape.record(y, [last, layout = packed.layout, dx = packed.data.gradient_ptr()](
                     Context& context, const Tensor& upstream) {
    Tensor rows = context.empty(dx->shape(), upstream.dtype());
    kernels::put_elements(context, upstream, *layout, last, rows);
    dx->add(context, std::move(rows));
  });
  return y;
}

Tensor reduce(Context& context, kernels::Reduction reduction, const TensorView& data,
              const PackedLayout& layout, double empty_value) {
  Tensor result = per_sequence(context, data, layout);
  kernels::reduce_sequences(context, reduction, data, layout, empty_value, result);
  return result;
}

Tensor reduce(Context& context, kernels::Reduction reduction, const PackedSequence& packed,
              double empty_value) {
  expects(packed.defined(), "packed is not defined");
  return reduce(context, reduction, packed.data(), packed.layout(), empty_value);
}

Variable reduce(Tape& tape, kernels::Reduction reduction, const PackedVariable& packed,
                double empty_value) {
  expects(packed.defined(), "packed is not defined");
  Variable y = tape.result(
      reduce(tape.context(), reduction, packed.data.value(), *packed.layout, empty_value),
      packed.data.needs_gradient());
  tape.record(y, [reduction, layout = packed.layout, dx = packed.data.gradient_ptr(),
                  x = reduction == kernels::Reduction::max ? packed.data.value_ptr() : nullptr](
                     Context& context, const Tensor& upstream) {
    Tensor rows = context.empty(dx->shape(), upstream.dtype());
    kernels::reduce_sequences_backward(context, reduction, x ? x->view() : TensorView{}, *layout,
                                       upstream, rows);
    dx->add(context, std::move(rows));
  });
  return y;
}

}  // namespace

PackedSequence concat_features(Context& context, std::span<const PackedSequence* const> inputs) {
  expects(!inputs.empty(), "inputs is empty, expected one packed sequence or more");
  std::vector<TensorView> parts;
  std::int64_t features = 0;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    expects(inputs[i] != nullptr && inputs[i]->defined(), "inputs[{}] is not defined", i);
    const TensorView data = inputs[i]->data();
    expects_on_device("an input", data, context);
    expects(data.shape().rank() >= 2, "inputs[{}] has data {}: there is no feature dimension", i,
            data.shape());
    expects_same_rows(i, inputs[i]->layout(), inputs[0]->layout());
    features += data.size(-1);
    parts.push_back(data);
  }
  auto extents = std::vector(parts[0].shape().extents().begin(), parts[0].shape().extents().end());
  extents.back() = features;
  Tensor result = context.empty(Shape(extents), parts[0].dtype());
  kernels::concat_features(context, parts, result);
  return {std::move(result), inputs[0]->layout_ptr()};
}

Tensor first_element(Context& context, const PackedSequence& packed, double empty_value) {
  return pick(context, packed, false, empty_value);
}
Tensor last_element(Context& context, const PackedSequence& packed, double empty_value) {
  return pick(context, packed, true, empty_value);
}

Tensor sum_sequences(Context& context, const PackedSequence& packed, double empty_value) {
  return reduce(context, kernels::Reduction::sum, packed, empty_value);
}
Tensor mean_sequences(Context& context, const PackedSequence& packed, double empty_value) {
  return reduce(context, kernels::Reduction::mean, packed, empty_value);
}
Tensor max_sequences(Context& context, const PackedSequence& packed, double empty_value) {
  return reduce(context, kernels::Reduction::max, packed, empty_value);
}

PackedVariable concat_features(Tape& tape, std::span<const PackedVariable> inputs) {
  expects(!inputs.empty(), "inputs is empty, expected one packed variable or more");
  std::vector<Variable> parts;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    expects(inputs[i].defined(), "inputs[{}] is not defined", i);
    expects(inputs[i].data.shape().rank() >= 2,
            "inputs[{}] has data {}: there is no feature dimension", i, inputs[i].data.shape());
    expects_same_rows(i, *inputs[i].layout, *inputs[0].layout);
    parts.push_back(inputs[i].data);
  }
  return {concat(tape, parts), inputs[0].layout};
}

Variable first_element(Tape& tape, const PackedVariable& packed, double empty_value) {
  return pick(tape, packed, false, empty_value);
}
Variable last_element(Tape& tape, const PackedVariable& packed, double empty_value) {
  return pick(tape, packed, true, empty_value);
}

Variable sum_sequences(Tape& tape, const PackedVariable& packed, double empty_value) {
  return reduce(tape, kernels::Reduction::sum, packed, empty_value);
}
Variable mean_sequences(Tape& tape, const PackedVariable& packed, double empty_value) {
  return reduce(tape, kernels::Reduction::mean, packed, empty_value);
}
Variable max_sequences(Tape& tape, const PackedVariable& packed, double empty_value) {
  return reduce(tape, kernels::Reduction::max, packed, empty_value);
}

}  // namespace packrnn

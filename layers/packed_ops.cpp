#include "packrnn/layers/packed_ops.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "packrnn/kernels/pack.hpp"
#include "packrnn/kernels/reduce.hpp"
#include "packrnn/layers/arguments.hpp"
#include "packrnn/runtime/expects.hpp"

namespace packrnn {
namespace {

// Whether equal rows mean equal elements. Lengths alone do not say it: a layout that came from
// another framework may order ties otherwise. Of lengths that only a device knows, nothing can be
// said unless it is one layout.
bool same_rows(const PackedLayout& a, const PackedLayout& b) {
  return &a == &b || (std::ranges::equal(a.lengths(), b.lengths()) &&
                      std::ranges::equal(a.sorted_indices(), b.sorted_indices()));
}

Tensor per_sequence(Context& context, const PackedSequence& packed) {
  expects(packed.defined(), "packed is not defined");
  const TensorView data = packed.data();
  expects_on_device("packed", data, context);
  return context.empty(data.shape().from(1).prepend(packed.layout().batch()), data.dtype());
}

Tensor pick(Context& context, const PackedSequence& packed, bool last, double empty_value) {
  Tensor result = per_sequence(context, packed);
  kernels::pick_elements(context, packed.data(), packed.layout(), last, empty_value, result);
  return result;
}

Tensor reduce(Context& context, kernels::Reduction reduction, const PackedSequence& packed,
              double empty_value) {
  Tensor result = per_sequence(context, packed);
  kernels::reduce_sequences(context, reduction, packed.data(), packed.layout(), empty_value,
                            result);
  return result;
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
    if (!same_rows(inputs[i]->layout(), inputs[0]->layout()))
      throw InvalidArgument(
          fmt::format("inputs[{}] has lengths {} in sorted order {}, the first has {} in {}", i,
                      fmt::join(inputs[i]->lengths(), " "),
                      fmt::join(inputs[i]->layout().sorted_indices(), " "),
                      fmt::join(inputs[0]->lengths(), " "),
                      fmt::join(inputs[0]->layout().sorted_indices(), " ")));
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

}  // namespace packrnn

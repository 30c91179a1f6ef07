#include "packrnn/layers/embedding.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numbers>
#include <utility>
#include <vector>

#include "packrnn/kernels/pack.hpp"
#include "packrnn/kernels/scatter.hpp"
#include "packrnn/layers/arguments.hpp"
#include "packrnn/runtime/expects.hpp"
#include "packrnn/runtime/random.hpp"

namespace packrnn {
namespace {

// A number of (0, 1] from 53 of 64 random bits.
double uniform(std::uint32_t high, std::uint32_t low) {
  const std::uint64_t bits = ((std::uint64_t{high} << 32) | low) >> 11;
  return static_cast<double>(bits + 1) * 0x1p-53;
}

// Box and Muller's transform; elements 2 j and 2 j + 1 depend only on (seed, j). In double, because
// float uniforms would end the tails at 5.8.
void fill_normal(std::uint64_t seed, std::span<double> values) {
  const PhiloxKey key = {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)};
  for (std::size_t i = 0; i < values.size(); i += 2) {
    const std::uint64_t pair = i / 2;
    const PhiloxCounter bits = philox4x32_10(
        {static_cast<std::uint32_t>(pair), static_cast<std::uint32_t>(pair >> 32), 0, 0}, key);
    const double radius = std::sqrt(-2.0 * std::log(uniform(bits[0], bits[1])));
    const double angle = 2.0 * std::numbers::pi * uniform(bits[2], bits[3]);
    values[i] = radius * std::cos(angle);
    if (i + 1 < values.size()) values[i + 1] = radius * std::sin(angle);
  }
}

Parameters make_parameters(const EmbeddingOptions& options) {
  const std::int64_t V = options.num_embeddings, E = options.embedding_dim;
  expects(V >= 1, "num_embeddings is {}, expected 1 or more", V);
  expects(E >= 1, "embedding_dim is {}, expected 1 or more", E);
  expects(options.padding_idx >= -1 && options.padding_idx < V,
          "padding_idx is {}, expected -1 (none) or 0 to {}", options.padding_idx, V - 1);
  Parameters parameters({{"weight", {V, E}}}, options.dtype);
  Tensor initial = Tensor::empty({V, E}, Dtype::f64);
  fill_normal(options.seed, initial.values<double>());
  if (options.padding_idx >= 0)
    std::ranges::fill(
        initial.span().rows(options.padding_idx, options.padding_idx + 1).values<double>(), 0.0);
  parameters.set("weight", initial.view());
  return parameters;
}

}  // namespace

Embedding::Embedding(const EmbeddingOptions& options)
    : options_(options), parameters_(make_parameters(options)) {}

PackedSequence Embedding::forward(Context& context, const PackedSequence& indices) const {
  expects(indices.defined(), "indices is not defined");
  return {forward(context, indices.data()), indices.layout_ptr()};
}

Tensor Embedding::forward(Context& context, const TensorView& indices) const {
  expects(indices.defined(), "indices is not defined");
  expects_on_device("indices", indices, context);
  auto extents = std::vector(indices.shape().extents().begin(), indices.shape().extents().end());
  extents.push_back(options_.embedding_dim);
  const TensorView weight = parameters_.value("weight");
  std::shared_ptr<const Tensor> table;  // the host's weight needs no second form
  if (context.device() != Device::cpu())
    table = table_.get(context, parameters_.version(), [&] {
      Tensor copy = Tensor::empty(weight.shape(), weight.dtype(), context.device());
      context.copy(weight, copy);
      return copy;
    });
  Tensor result = context.empty(Shape(extents), options_.dtype);
  kernels::gather_rows(context, table ? table->view() : weight, indices, result);
  return result;
}

PackedVariable Embedding::forward(Tape& tape, const PackedSequence& indices) {
  expects(indices.defined(), "indices is not defined");
  return {forward(tape, indices.data()), indices.layout_ptr()};
}

PackedVariable Embedding::forward(Tape& tape, const PackedVariable& indices) {
  expects(indices.defined(), "indices is not defined");
  return {forward(tape, indices.data.value_ptr()), indices.layout};
}

Variable Embedding::forward(Tape& tape, const TensorView& indices) {
  expects(indices.defined(), "indices is not defined");
  expects_on_device("indices", indices, tape.context());
  return forward(tape, copy_on_device(tape.context(), indices));
}

Variable Embedding::forward(Tape& tape, std::shared_ptr<const Tensor> indices) {
  Variable y = tape.result(std::as_const(*this).forward(tape.context(), indices->view()),
                           parameters_.trainable());
  if (!y.needs_gradient()) return y;
  tape.record([=, dy = y.gradient_ptr(), padding = options_.padding_idx,
               parameters = std::make_shared<Parameters>(parameters_.shared())](Context& context) {
    if (const Tensor upstream = dy->take(context); upstream.defined())
      kernels::scatter_add_rows(context, upstream, *indices, parameters->gradient("weight"),
                                padding);
  });
  return y;
}

}  // namespace packrnn

#include "packrnn/layers/embedding.hpp"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "packrnn/kernels/pack.hpp"
#include "packrnn/kernels/scatter.hpp"
#include "packrnn/layers/arguments.hpp"
#include "packrnn/runtime/expects.hpp"
#include "packrnn/runtime/random.hpp"

namespace packrnn {
namespace {

Parameters make_parameters(const EmbeddingOptions& options) {
  const std::int64_t V = options.num_embeddings, E = options.embedding_dim;
  expects(V >= 1, "num_embeddings is {}, expected 1 or more", V);
  expects(E >= 1, "embedding_dim is {}, expected 1 or more", E);
  expects(options.padding_idx >= -1 && options.padding_idx < V,
          "padding_idx is {}, expected -1 (none) or 0 to {}", options.padding_idx, V - 1);
  Parameters parameters({{"weight", {V, E}}}, options.dtype);
  Tensor initial = Tensor::empty({V, E}, Dtype::f64);
  Generator generator(options.seed);
  fill_normal(generator, initial);
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
  expects_usable(parameters_, context, false);
  auto extents = std::vector(indices.shape().extents().begin(), indices.shape().extents().end());
  extents.push_back(options_.embedding_dim);
  const TensorView weight = parameters_.value("weight");
  std::shared_ptr<const Tensor> table;  // a weight that is there already needs no second form
  if (context.device() != weight.device())
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

Variable Embedding::forward(Tape& tape, const std::shared_ptr<const Tensor>& indices) {
  expects_usable(parameters_, tape.context(), parameters_.trainable());
  Variable y = tape.result(std::as_const(*this).forward(tape.context(), indices->view()),
                           parameters_.trainable());
  tape.record(y, [=, padding = options_.padding_idx,
                  parameters = std::make_shared<Parameters>(parameters_.shared())](
                     Context& context, const Tensor& upstream) {
    kernels::scatter_add_rows(context, upstream, *indices, parameters->gradient("weight"), padding);
  });
  return y;
}

}  // namespace packrnn

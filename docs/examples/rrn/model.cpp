#include "docs/examples/rrn/model.hpp"

#include <array>
#include <cmath>
#include <utility>

namespace packrnn::rrn {
namespace {

constexpr std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

}  // namespace

std::vector<Parameters*> parameters_of(const Models& models) {
  std::vector<Parameters*> parameters;
  for (const TrainingRun::Model& model : models) parameters.push_back(model.parameters);
  return parameters;
}

Linear make_linear(Making& making, std::int64_t in, std::int64_t out, bool bias,
                   std::int64_t fan_in) {
  Linear layer({.in_features = in, .out_features = out, .bias = bias, .dtype = making.dtype});
  const auto inputs = static_cast<double>(fan_in > 0 ? fan_in : in);
  const auto outputs = static_cast<double>(out);
  const bool xavier = making.init == Init::xavier;
  const double bound = xavier ? std::sqrt(6.0 / (inputs + outputs)) : 1.0 / std::sqrt(inputs);
  const Initializer uniform = [bound](Generator& generator, const TensorSpan& target) {
    fill_uniform(generator, target, -bound, bound);
  };
  initialize(layer.parameters(), "weight", uniform, making.generator);
  if (bias)
    initialize(layer.parameters(), "bias", xavier ? constant(0.0) : uniform, making.generator);
  return layer;
}

Embedding make_embedding(Making& making, std::int64_t count, std::int64_t width) {
  Embedding table({.num_embeddings = count, .embedding_dim = width, .dtype = making.dtype});
  initialize(
      table.parameters(), "weight",
      [](Generator& generator, const TensorSpan& target) { fill_normal(generator, target); },
      making.generator);
  return table;
}

Lstm make_lstm(Making& making, std::int64_t in, std::int64_t hidden) {
  Lstm lstm({.input_size = in, .hidden_size = hidden, .dtype = making.dtype});
  lstm.reset_parameters(making.generator);
  return lstm;
}

Mlp::Mlp(Making& making, std::span<const std::int64_t> widths) {
  for (std::size_t i = 0; i + 1 < widths.size(); ++i)
    layers_.push_back(make_linear(making, widths[i], widths[i + 1]));
}

Variable Mlp::forward(Tape& tape, Variable x) {
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    if (i > 0) x = relu(tape, x);
    x = layers_[i].forward(tape, x);
  }
  return x;
}

void Mlp::list(Models& models, const std::string& prefix) {
  for (std::size_t i = 0; i < layers_.size(); ++i)
    models.push_back({prefix + std::to_string(i) + ".", &layers_[i].parameters()});
}

std::vector<Edge> complete_graph(std::int64_t nodes) {
  std::vector<Edge> edges;
  for (std::int64_t to = 0; to < nodes; ++to)
    for (std::int64_t from = 0; from < nodes; ++from) edges.push_back({from, to});
  return edges;
}

Graphs make_graphs(std::span<const Graph> graphs) {
  std::vector<std::int64_t> sizes;
  std::size_t edges = 0;
  for (const Graph& graph : graphs) {
    sizes.push_back(graph.nodes);
    edges += graph.edges.size();
  }
  Graphs batch;
  batch.layout = PackedLayout::make(sizes);
  const std::int64_t M = batch.layout->total();
  batch.graph = Tensor::empty({M}, Dtype::i64);
  batch.incoming = Tensor::zeros({M, 1}, Dtype::f64);
  batch.from = Tensor::empty({static_cast<std::int64_t>(edges)}, Dtype::i64);
  batch.to = Tensor::empty({static_cast<std::int64_t>(edges)}, Dtype::i64);
  const auto graph_of = batch.graph.values<std::int64_t>();
  const auto from = batch.from.values<std::int64_t>(), to = batch.to.values<std::int64_t>();
  const auto incoming = batch.incoming.values<double>();
  std::size_t edge = 0;
  for (std::size_t g = 0; g < graphs.size(); ++g) {
    const auto sequence = static_cast<std::int64_t>(g);
    for (std::int64_t k = 0; k < sizes[g]; ++k)
      graph_of[at(batch.layout->row(sequence, k))] = sequence;
    for (const Edge& e : graphs[g].edges) {
      from[edge] = batch.layout->row(sequence, e.from);
      to[edge] = batch.layout->row(sequence, e.to);
      incoming[at(to[edge++])] += 1.0;
    }
  }
  return batch;
}

Rrn::Rrn(Making& making, const RrnOptions& options)
    : options_(options),
      from_(make_linear(making, options.hidden, options.hidden, false,
                        2 * options.hidden + options.edge_features)),
      to_(make_linear(making, options.hidden, options.hidden, true,
                      2 * options.hidden + options.edge_features)),
      message_(making, std::array{options.hidden, options.hidden, options.hidden}),
      sum_(make_linear(making, options.hidden, options.hidden, false)),
      sum_bias_(make_linear(making, 1, options.hidden, false, options.hidden)),
      node_message_(make_linear(making, options.hidden, options.hidden, false, 2 * options.hidden)),
      node_x_(make_linear(making, options.hidden, options.hidden, true, 2 * options.hidden)),
      node_(making, std::array{options.hidden, options.hidden, options.hidden, options.hidden}),
      lstm_(make_lstm(making, options.hidden, options.hidden)) {
  if (options.edge_features > 0)
    edge_features_.push_back(make_linear(making, options.edge_features, options.hidden, false,
                                         2 * options.hidden + options.edge_features));
  if (making.init == Init::xavier)
    initialize(sum_bias_.parameters(), "weight", constant(0.0), making.generator);
}

// [forward]
std::vector<Variable> Rrn::forward(Tape& tape, const Graphs& graphs, const Variable& x,
                                   const Variable& e, std::int64_t steps) {
  const std::int64_t M = graphs.layout->total();
  const PackedLayoutPtr time =
      options_.variant == Variant::article
          ? graphs.layout                                             // nodes of a graph
          : PackedLayout::make(std::vector<std::int64_t>(at(M), 1));  // each node alone, one step
  const Variable bias = sum_bias_.forward(tape, tape.constant(convert(graphs.incoming, x.dtype())));
  const Variable from_x = node_x_.forward(tape, x);
  Variable from_e;
  if (!edge_features_.empty())
    from_e = gather_rows(tape, edge_features_[0].forward(tape, e), graphs.graph);

  std::vector<Variable> result;
  Variable h = x;
  StateVariable state;
  for (std::int64_t step = 0; step < steps; ++step) {
    Variable to = to_.forward(tape, h);
    if (from_e.defined()) to = add(tape, to, from_e);
    Variable m = add(tape, gather_rows(tape, from_.forward(tape, h), graphs.from),
                     gather_rows(tape, to, graphs.to));
    m = relu(tape, message_.forward(tape, relu(tape, m)));
    m = add(tape, sum_.forward(tape, segment_sum(tape, m, graphs.to, M)), bias);
    const Variable g =
        node_.forward(tape, relu(tape, add(tape, node_message_.forward(tape, m), from_x)));
    const auto [output, next] = lstm_.forward(tape, {g, time}, state);
    h = output.data;
    state = next;
    result.push_back(h);
  }
  return result;
}
// [/forward]

void Rrn::list(Models& models, const std::string& prefix) {
  models.push_back({prefix + "from.", &from_.parameters()});
  models.push_back({prefix + "to.", &to_.parameters()});
  for (Linear& layer : edge_features_)
    models.push_back({prefix + "edge_features.", &layer.parameters()});
  message_.list(models, prefix + "message.");
  models.push_back({prefix + "sum.", &sum_.parameters()});
  models.push_back({prefix + "sum_bias.", &sum_bias_.parameters()});
  models.push_back({prefix + "node_message.", &node_message_.parameters()});
  models.push_back({prefix + "node_x.", &node_x_.parameters()});
  node_.list(models, prefix + "node.");
  models.push_back({prefix + "lstm.", &lstm_.parameters()});
}

Variable mean_cross_entropy(Tape& tape, std::span<const Variable> scores,
                            const TensorView& targets) {
  Variable sum;
  for (const Variable& of_step : scores) {
    const Variable loss = cross_entropy(tape, of_step, targets);
    sum = sum.defined() ? add(tape, sum, loss) : loss;
  }
  return scale(tape, sum, 1.0 / static_cast<double>(scores.size()));
}

}  // namespace packrnn::rrn

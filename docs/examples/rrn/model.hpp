// The recurrent relational network: R. B. Palm, U. Paquet, O. Winther, "Recurrent Relational
// Networks", NeurIPS 2018. Nodes of a graph send messages along its edges and keep a state over
// several steps of reasoning:
//
//   h_i = x_i at first, then in every step
//   m_i = sum over edges j -> i of f([h_j, h_i, e])
//   h_i = LSTM(g([m_i, x_i]))
//
// f and g are three ReLU layers and a linear one. Graphs of any sizes are one batch without padded
// nodes: all nodes are rows of one matrix, edges are pairs of rows. docs/rrn.md explains it.
#pragma once

#include <cstdint>
#include <packrnn/packrnn.hpp>
#include <span>
#include <string>
#include <vector>

namespace packrnn::rrn {

/// Parameters under names: what optimizers and checkpoints ask for.
using Models = std::vector<TrainingRun::Model>;
std::vector<Parameters*> parameters_of(const Models& models);

/// How linear layers begin. xavier: U(-a, a), a = sqrt(6 / (fan-in + fan-out)), biases zero.
/// pytorch: U(-a, a), a = 1 / sqrt(fan-in), biases too; a signal fades in a dozen such
/// layers. Embeddings and LSTMs are PyTorch's either way.
enum class Init : std::uint8_t { xavier, pytorch };

/// What every layer of one network has in common.
struct Making {
  Dtype dtype = Dtype::f32;
  Init init = Init::xavier;
  Generator generator = Generator(0);
};
/// `fan_in`, where not 0, is that of the layer of which this one is a part.
Linear make_linear(Making& making, std::int64_t in, std::int64_t out, bool bias = true,
                   std::int64_t fan_in = 0);
Embedding make_embedding(Making& making, std::int64_t count, std::int64_t width);
Lstm make_lstm(Making& making, std::int64_t in, std::int64_t hidden);

/// Linear layers with ReLU between them, none behind the last.
class Mlp {
 public:
  /// From widths.front() to widths.back() features.
  Mlp(Making& making, std::span<const std::int64_t> widths);

  Variable forward(Tape& tape, Variable x);
  void list(Models& models, const std::string& prefix);

 private:
  std::vector<Linear> layers_;
};

/// Of one graph, whose nodes are counted from 0.
struct Edge {
  std::int64_t from, to;
};
struct Graph {
  std::int64_t nodes;
  std::span<const Edge> edges;
};
/// An edge from each node to each, itself included.
std::vector<Edge> complete_graph(std::int64_t nodes);

/// A batch of graphs. Its nodes are the rows of a packed batch: graph g is sequence g, node k its
/// step k, in row layout->row(g, k).
struct Graphs {
  PackedLayoutPtr layout;
  Tensor graph;     // [M] i64: whose node a row is
  Tensor from, to;  // [E] i64: rows
  Tensor incoming;  // [M, 1] f64: edges to a row
};
Graphs make_graphs(std::span<const Graph> graphs);

/// paper: the state belongs to a node and runs over the steps. article: as in the article's code,
/// within a step the LSTM runs over the nodes of a graph as if they were time, and one state for
/// each graph is carried over the steps.
enum class Variant : std::uint8_t { paper, article };

struct RrnOptions {
  std::int64_t hidden = 0;         // H: width of nodes, of messages and of all layers
  std::int64_t edge_features = 0;  // F: width of e, which all edges of a graph share; 0: no e
  Variant variant = Variant::paper;
};

class Rrn {
 public:
  Rrn(Making& making, const RrnOptions& options);

  /// x [M, H] and, if F > 0, e [graphs, F] give h [M, H] after each of `steps` steps.
  std::vector<Variable> forward(Tape& tape, const Graphs& graphs, const Variable& x,
                                const Variable& e, std::int64_t steps);
  void list(Models& models, const std::string& prefix);

 private:
  RrnOptions options_;
  // f. Its first layer is linear in three parts of which each lives in fewer rows than there are
  // edges, and its last one commutes with the sum over edges: only the two in between are computed
  // for each edge.
  Linear from_, to_;
  std::vector<Linear> edge_features_;  // one, or none
  Mlp message_;
  Linear sum_, sum_bias_;  // the bias as often as there are incoming edges
  // g. The part of its first layer that reads x is the same in all steps.
  Linear node_message_, node_x_;
  Mlp node_;
  Lstm lstm_;
};

/// The mean over the steps of the mean cross entropy of scores [M, C] after each step.
Variable mean_cross_entropy(Tape& tape, std::span<const Variable> scores,
                            const TensorView& targets);

}  // namespace packrnn::rrn

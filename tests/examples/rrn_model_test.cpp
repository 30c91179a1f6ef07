// The recurrent relational network of docs/examples/rrn: against PyTorch and central differences,
// and what its nodes may and may not know of one another.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "docs/examples/rrn/model.hpp"
#include "tests/catch.hpp"
#include "tests/golden/golden.hpp"
#include "tests/packing_cases.hpp"

namespace packrnn::rrn {
namespace {

using tests::cpu_context;
using Doubles = std::vector<double>;

constexpr std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

const std::string kFolder = PACKRNN_SOURCE_DIR "/tests/golden/";
constexpr std::int64_t kHidden = 5, kFeatures = 2, kClasses = 3, kSteps = 3;

Variant variant_of(const std::string& name) {
  return name == "article" ? Variant::article : Variant::paper;
}

/// A network with a readout, in f64.
struct Network {
  explicit Network(Variant variant,
                   Making making = {.dtype = Dtype::f64, .generator = Generator(5)})
      : rrn(making, {.hidden = kHidden, .edge_features = kFeatures, .variant = variant}),
        readout(make_linear(making, kHidden, kClasses)) {
    rrn.list(models, "");
    models.push_back({"readout.", &readout.parameters()});
  }

  Parameters& part(const std::string& prefix) {
    for (const TrainingRun::Model& model : models)
      if (model.prefix == prefix + ".") return *model.parameters;
    throw InvalidArgument("no parameters " + prefix);
  }
  std::vector<Variable> scores(Tape& tape, const Graphs& graphs, const Variable& x,
                               const Variable& e) {
    std::vector<Variable> result;
    for (const Variable& h : rrn.forward(tape, graphs, x, e, kSteps))
      result.push_back(readout.forward(tape, h));
    return result;
  }

  Rrn rrn;
  Linear readout;
  Models models;
};

/// Graphs, what their nodes and edges hold, and classes of the nodes, by graph and node.
struct Example {
  std::vector<std::int64_t> sizes;
  std::vector<std::vector<Edge>> edges;
  Doubles x, e;  // [nodes, H], [graphs, F]
  std::vector<std::int64_t> targets;

  Graphs graphs() const {
    std::vector<Graph> all;
    for (std::size_t g = 0; g < sizes.size(); ++g) all.push_back({sizes[g], edges[g]});
    return make_graphs(all);
  }
};

/// The packed row of each node, graph after graph.
std::vector<std::size_t> rows_of(const Example& example, const Graphs& graphs) {
  std::vector<std::size_t> rows;
  for (std::size_t g = 0; g < example.sizes.size(); ++g)
    for (std::int64_t k = 0; k < example.sizes[g]; ++k)
      rows.push_back(at(graphs.layout->row(static_cast<std::int64_t>(g), k)));
  return rows;
}

/// Rows [nodes, width], graph after graph, from or to packed rows.
Doubles moved(const Doubles& values, const std::vector<std::size_t>& rows, bool to_packed) {
  Doubles result(values.size());
  const std::size_t width = values.size() / rows.size();
  for (std::size_t n = 0; n < rows.size(); ++n)
    for (std::size_t i = 0; i < width; ++i)
      (to_packed ? result[rows[n] * width + i] : result[n * width + i]) =
          to_packed ? values[n * width + i] : values[rows[n] * width + i];
  return result;
}

Doubles doubles(const TensorView& tensor) {
  return {tensor.values<double>().begin(), tensor.values<double>().end()};
}

struct Outcome {
  std::vector<Doubles> scores;  // of each step, [nodes, C], graph after graph
  double loss = 0.0;
  Doubles x, e;  // gradients
};

Outcome run(Network& network, const Example& example, int threads = 1) {
  const Graphs graphs = example.graphs();
  const std::vector<std::size_t> rows = rows_of(example, graphs);
  const auto M = static_cast<std::int64_t>(rows.size());
  std::vector<std::int64_t> targets(rows.size());
  for (std::size_t n = 0; n < rows.size(); ++n) targets[rows[n]] = example.targets[n];

  for (Parameters* parameters : parameters_of(network.models)) parameters->zero_gradients();
  Context context = cpu_context(threads);
  Tape tape(context);
  const Variable x = tape.input(Tensor::from(moved(example.x, rows, true), {M, kHidden}));
  const Variable e = tape.input(
      Tensor::from(example.e, {static_cast<std::int64_t>(example.sizes.size()), kFeatures}));
  const std::vector<Variable> scores = network.scores(tape, graphs, x, e);
  const Variable loss = mean_cross_entropy(tape, scores, Tensor::from(targets, {M}));
  Outcome outcome;
  outcome.loss = loss.value().values<double>()[0];
  for (const Variable& of_step : scores)
    outcome.scores.push_back(moved(doubles(of_step.value()), rows, false));
  tape.backward(loss);
  outcome.x = moved(doubles(x.gradient()), rows, false);
  outcome.e = doubles(e.gradient());
  return outcome;
}

/// Two graphs of 4 and 2 nodes, of which one has no incoming edge.
Example small_example() {
  Example example{
      {4, 2},
      {{{0, 0}, {1, 0}, {2, 0}, {3, 1}, {0, 2}, {1, 2}, {2, 2}, {3, 2}}, {{0, 1}, {1, 1}}},
      {},
      {},
      {2, 0, 1, 1, 0, 2}};
  tests::Random random(3);
  for (std::int64_t i = 0; i < 6 * kHidden; ++i) example.x.push_back(1.5 * random.number());
  for (std::int64_t i = 0; i < 2 * kFeatures; ++i) example.e.push_back(1.5 * random.number());
  return example;
}

/// The largest difference, relative to 1 or to the expected value.
double distance(const Doubles& found, const Doubles& expected) {
  REQUIRE(found.size() == expected.size());
  double most = 0.0;
  for (std::size_t i = 0; i < found.size(); ++i)
    most = std::max(most, std::abs(found[i] - expected[i]) / std::max(1.0, std::abs(expected[i])));
  return most;
}

// With PyTorch -----------------------------------------------------------------------------------

/// Columns [begin, end) of a matrix of the file.
Doubles columns(const golden::Tensor& matrix, std::int64_t begin, std::int64_t end) {
  const std::int64_t width = matrix.shape[1];
  Doubles result;
  for (std::int64_t row = 0; row < matrix.shape[0]; ++row)
    for (std::int64_t i = begin; i < end; ++i) result.push_back(matrix.value[at(row * width + i)]);
  return result;
}

struct Place {
  std::string model, parameter;
  Doubles value;
};
/// The paper's parameters, or with a prefix their gradients, where this network has them.
std::vector<Place> places(const golden::File& file, const std::string& prefix) {
  constexpr std::int64_t H = kHidden, F = kFeatures;
  const auto all = [&](const std::string& name) { return file.at(prefix + name).value; };
  const golden::Tensor &message = file.at(prefix + "message.0.weight"),
                       &node = file.at(prefix + "node.0.weight");
  std::vector<Place> list = {{"from", "weight", columns(message, 0, H)},
                             {"to", "weight", columns(message, H, 2 * H)},
                             {"to", "bias", all("message.0.bias")},
                             {"edge_features", "weight", columns(message, 2 * H, 2 * H + F)},
                             {"sum", "weight", all("message.6.weight")},
                             {"sum_bias", "weight", all("message.6.bias")},
                             {"node_message", "weight", columns(node, 0, H)},
                             {"node_x", "weight", columns(node, H, 2 * H)},
                             {"node_x", "bias", all("node.0.bias")}};
  for (const std::string parameter : {"weight", "bias"}) {
    for (const int layer : {1, 2})
      list.push_back({"message." + std::to_string(layer - 1), parameter,
                      all("message." + std::to_string(2 * layer) + "." + parameter)});
    for (const int layer : {1, 2, 3})
      list.push_back({"node." + std::to_string(layer - 1), parameter,
                      all("node." + std::to_string(2 * layer) + "." + parameter)});
    list.push_back({"readout", parameter, all("readout." + parameter)});
  }
  for (const std::string parameter : {"weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"})
    list.push_back({"lstm", parameter, all("lstm." + parameter)});
  return list;
}

std::vector<std::int64_t> integers(const golden::Tensor& tensor) {
  std::vector<std::int64_t> result;
  for (const double value : tensor.value) result.push_back(static_cast<std::int64_t>(value));
  return result;
}

Example example_of(const golden::File& file) {
  Example example{integers(file.at("sizes")),
                  {},
                  file.at("x").value,
                  file.at("e").value,
                  integers(file.at("targets"))};
  for (std::size_t g = 0; g < example.sizes.size(); ++g) {
    const std::vector<std::int64_t> flat = integers(file.at("edges." + std::to_string(g)));
    example.edges.emplace_back();
    for (std::size_t i = 0; i < flat.size(); i += 2)
      example.edges.back().push_back({flat[i], flat[i + 1]});
  }
  return example;
}

TEST_CASE("scores, loss and gradients are those of PyTorch for the paper's formulas") {
  // Sums of at most some hundred terms of order 1, in double on both sides.
  constexpr double kAllowed = 1e-12;
  for (const std::string name : {"paper", "article"}) {
    const golden::File file = golden::read(kFolder + "rrn_" + name + ".safetensors");
    INFO(file.name);
    Network network(variant_of(file.text("variant")));
    std::int64_t count = 0;
    for (const Place& place : places(file, "")) {
      Parameters& parameters = network.part(place.model);
      const Shape shape = parameters.value(place.parameter).shape();
      parameters.set(place.parameter, Tensor::from(place.value, shape));
      count += shape.elements();
    }
    std::int64_t all = 0;
    for (const Parameters* parameters : parameters_of(network.models))
      for (std::int64_t i = 0; i < parameters->count(); ++i) all += parameters->value(i).elements();
    REQUIRE(count == all);

    const Outcome outcome = run(network, example_of(file));
    CHECK(std::abs(outcome.loss - file.at("loss").value[0]) <= kAllowed);
    for (std::size_t step = 0; step < at(kSteps); ++step)
      CHECK(distance(outcome.scores[step], file.at("scores." + std::to_string(step)).value) <=
            kAllowed);
    CHECK(distance(outcome.x, file.at("gradient.x").value) <= kAllowed);
    CHECK(distance(outcome.e, file.at("gradient.e").value) <= kAllowed);
    for (const Place& place : places(file, "gradient.")) {
      INFO(place.model << "." << place.parameter);
      CHECK(distance(doubles(network.part(place.model).gradient(place.parameter)), place.value) <=
            kAllowed);
    }
  }
}

// By differences ---------------------------------------------------------------------------------

/// d loss / d value by a central difference: its error is of the order of the step squared, and of
/// rounding divided by the step.
template <class Value>
double slope(Network& network, const Example& example, Value&& value) {
  constexpr double kStep = 1e-5;
  const double here = value();
  value() = here + kStep;
  const double above = run(network, example).loss;
  value() = here - kStep;
  const double below = run(network, example).loss;
  value() = here;
  return (above - below) / (2.0 * kStep);
}

TEST_CASE("gradients of every parameter and input are central differences") {
  constexpr double kAllowed = 1e-8;
  const Variant variant = GENERATE(Variant::paper, Variant::article);
  // With biases of zero some sum would be zero, where a ReLU has no derivative.
  Network network(variant, {.dtype = Dtype::f64, .init = Init::pytorch, .generator = Generator(5)});
  Example example = small_example();
  const Outcome outcome = run(network, example);
  std::vector<std::vector<Doubles>> gradients;
  for (Parameters* parameters : parameters_of(network.models)) {
    gradients.emplace_back();
    for (std::int64_t i = 0; i < parameters->count(); ++i)
      gradients.back().push_back(doubles(parameters->gradient(i)));
  }
  for (std::size_t m = 0; m < network.models.size(); ++m) {
    INFO(network.models[m].prefix);
    Parameters& parameters = *network.models[m].parameters;
    for (std::int64_t i = 0; i < parameters.count(); ++i)
      for (std::size_t j = 0; j < at(parameters.value(i).elements()); ++j) {
        const double expected = slope(network, example, [&]() -> double& {
          return parameters.change_value(i).values<double>()[j];
        });
        REQUIRE(std::abs(gradients[m][at(i)][j] - expected) <= kAllowed);
      }
  }
  for (std::size_t i = 0; i < example.x.size(); ++i)
    REQUIRE(std::abs(outcome.x[i] - slope(network, example,
                                          [&]() -> double& { return example.x[i]; })) <= kAllowed);
  for (std::size_t i = 0; i < example.e.size(); ++i)
    REQUIRE(std::abs(outcome.e[i] - slope(network, example,
                                          [&]() -> double& { return example.e[i]; })) <= kAllowed);
}

// What nodes know of one another -----------------------------------------------------------------

/// The same graphs with the nodes of the first numbered in another order.
Example renumbered(const Example& example, const std::vector<std::int64_t>& number) {
  Example other = example;
  for (std::size_t k = 0; k < number.size(); ++k) {
    const std::size_t to = at(number[k]);
    std::copy_n(example.x.begin() + static_cast<std::ptrdiff_t>(k * at(kHidden)), kHidden,
                other.x.begin() + static_cast<std::ptrdiff_t>(to * at(kHidden)));
    other.targets[to] = example.targets[k];
  }
  for (Edge& edge : other.edges[0]) edge = {number[at(edge.from)], number[at(edge.to)]};
  return other;
}

TEST_CASE("numbers of nodes are only names, except in the article's variant") {
  const Example example = small_example();
  const std::vector<std::int64_t> number{2, 0, 3, 1};
  const auto difference = [&](Variant variant) {
    Network network(variant);
    const Outcome one = run(network, example), other = run(network, renumbered(example, number));
    double most = 0.0;
    for (std::size_t step = 0; step < at(kSteps); ++step)
      for (std::size_t k = 0; k < number.size(); ++k)
        for (std::size_t c = 0; c < at(kClasses); ++c)
          most = std::max(most, std::abs(one.scores[step][k * at(kClasses) + c] -
                                         other.scores[step][at(number[k]) * at(kClasses) + c]));
    return most;
  };
  CHECK(difference(Variant::paper) <= 1e-14);  // sums of messages in another order
  CHECK(difference(Variant::article) >= 1e-2);
}

TEST_CASE("a graph's results have the same bits whatever graphs stand beside it") {
  const Variant variant = GENERATE(Variant::paper, Variant::article);
  Network network(variant);
  const Example both = small_example();
  const Outcome together = run(network, both);
  std::size_t node = 0;
  for (std::size_t g = 0; g < both.sizes.size(); ++g) {
    const std::size_t count = at(both.sizes[g]);
    const auto part = [&](const Doubles& values, std::size_t width, std::size_t from,
                          std::size_t rows) {
      const auto begin = values.begin() + static_cast<std::ptrdiff_t>(from * width);
      return Doubles(begin, begin + static_cast<std::ptrdiff_t>(rows * width));
    };
    const auto first = both.targets.begin() + static_cast<std::ptrdiff_t>(node);
    const Example one{{both.sizes[g]},
                      {both.edges[g]},
                      part(both.x, at(kHidden), node, count),
                      part(both.e, at(kFeatures), g, 1),
                      {first, first + static_cast<std::ptrdiff_t>(count)}};
    const Outcome alone = run(network, one);
    for (std::size_t step = 0; step < at(kSteps); ++step)
      CHECK(alone.scores[step] == part(together.scores[step], at(kClasses), node, count));
    node += count;
  }
}

TEST_CASE("the number of threads changes no bit") {
  Network network(Variant::paper);
  Example example;
  tests::Random random(8);
  for (std::int64_t g = 0; g < 30; ++g) {
    example.sizes.push_back(1 + random.below(12));
    example.edges.push_back(complete_graph(example.sizes.back()));
    for (std::int64_t i = 0; i < kFeatures; ++i) example.e.push_back(random.number());
    for (std::int64_t k = 0; k < example.sizes.back(); ++k) {
      for (std::int64_t i = 0; i < kHidden; ++i) example.x.push_back(random.number());
      example.targets.push_back(random.below(kClasses));
    }
  }
  const auto all = [&](int threads) {
    const Outcome outcome = run(network, example, threads);
    std::vector<Doubles> results = outcome.scores;
    results.insert(results.end(), {outcome.x, outcome.e, Doubles{outcome.loss}});
    for (Parameters* parameters : parameters_of(network.models))
      results.push_back(doubles(parameters->gradients()));
    return results;
  };
  const std::vector<Doubles> one = all(1);
  CHECK(all(2) == one);
  CHECK(all(3) == one);
}

TEST_CASE("linear layers begin as their names say") {
  constexpr std::int64_t kIn = 40, kOut = 60;
  const auto largest = [](const TensorView& values) {
    double most = 0.0;
    for (const double value : values.values<double>()) most = std::max(most, std::abs(value));
    return most;
  };
  const auto make = [](Init init, std::int64_t fan_in) {
    Making making{.dtype = Dtype::f64, .init = init, .generator = Generator(1)};
    return make_linear(making, kIn, kOut, true, fan_in);
  };
  // The largest of 2400 uniform numbers is within a hundredth of the bound.
  for (const std::int64_t fan_in : {std::int64_t{0}, std::int64_t{100}}) {
    const auto inputs = static_cast<double>(fan_in > 0 ? fan_in : kIn);
    const Linear xavier = make(Init::xavier, fan_in), pytorch = make(Init::pytorch, fan_in);
    const double bound = std::sqrt(6.0 / (inputs + static_cast<double>(kOut)));
    CHECK(largest(xavier.parameters().value("weight")) <= bound);
    CHECK(largest(xavier.parameters().value("weight")) >= 0.99 * bound);
    CHECK(largest(xavier.parameters().value("bias")) == 0.0);
    CHECK(largest(pytorch.parameters().value("weight")) <= 1.0 / std::sqrt(inputs));
    CHECK(largest(pytorch.parameters().value("weight")) >= 0.99 / std::sqrt(inputs));
    CHECK(largest(pytorch.parameters().value("bias")) > 0.0);
  }
}

}  // namespace
}  // namespace packrnn::rrn

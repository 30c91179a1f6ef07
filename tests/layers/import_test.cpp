#include "packrnn/layers/import.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "packrnn/runtime/error.hpp"
#include "tests/catch.hpp"
#include "tests/reference/fill.hpp"
#include "tests/reference/rnn.hpp"

namespace packrnn::tests {
namespace {

using Catch::Contains;
using reference::Cell;
using reference::Config;
using reference::Parameter;

// --- The other systems' layouts, written down here a second time, gate by gate and by name.
// -------

// For each block the other system stores, the letter of its gate; ours are "ifgo" and "rzn".
std::size_t ours(char gate) {
  switch (gate) {
    case 'i':
    case 'r':
    case 'a':  // the only block of an RNN
      return 0;
    case 'f':
    case 'z':
      return 1;
    case 'g':
    case 'n':
      return 2;
    default:
      return 3;  // o
  }
}

const std::vector<double>& value(const std::vector<Parameter>& list, const std::string& name) {
  return std::find_if(list.begin(), list.end(), [&](const Parameter& p) { return p.name == name; })
      ->value;
}

// The rows of PyTorch's [G*H, columns] as blocks in the other order.
std::vector<double> permuted(const std::vector<double>& values, const std::string& order) {
  const std::size_t block = values.size() / order.size();
  std::vector<double> result;
  for (const char gate : order) {
    const auto begin = values.begin() + static_cast<std::ptrdiff_t>(ours(gate) * block);
    result.insert(result.end(), begin, begin + static_cast<std::ptrdiff_t>(block));
  }
  return result;
}

std::vector<double> transposed(const std::vector<double>& values, std::size_t columns) {
  const std::size_t rows = values.size() / columns;
  std::vector<double> result;
  for (std::size_t c = 0; c < columns; ++c)
    for (std::size_t r = 0; r < rows; ++r) result.push_back(values[r * columns + c]);
  return result;
}

void extend(std::vector<double>& all, const std::vector<double>& more) {
  all.insert(all.end(), more.begin(), more.end());
}

struct Onnx {
  Tensor w, r, b;
};

Onnx to_onnx(const std::vector<Parameter>& list, const Config& config, const std::string& order) {
  std::vector<double> w, r, b;
  const std::int64_t D = config.directions();
  for (std::int64_t d = 0; d < D; ++d) {
    const std::string end = d == 0 ? "_l0" : "_l0_reverse";
    extend(w, permuted(value(list, "weight_ih" + end), order));
    extend(r, permuted(value(list, "weight_hh" + end), order));
    if (config.bias) {
      extend(b, permuted(value(list, "bias_ih" + end), order));
      extend(b, permuted(value(list, "bias_hh" + end), order));
    }
  }
  const std::int64_t GH = config.gates() * config.hidden_size;
  Onnx onnx{Tensor::from(w, Shape{D, GH, config.input_size}),
            Tensor::from(r, Shape{D, GH, config.hidden_size}), Tensor{}};
  if (config.bias) onnx.b = Tensor::from(b, Shape{D, 2 * GH});
  return onnx;
}

struct Keras {
  Tensor kernel, recurrent, bias;
};

// With `two` biases [2, G*H], else the input bias alone.
Keras to_keras(const std::vector<Parameter>& list, const Config& config, const std::string& order,
               bool two, const std::string& end = "_l0") {
  const std::int64_t GH = config.gates() * config.hidden_size;
  const auto matrix = [&](const std::string& name, std::int64_t columns) {
    return Tensor::from(
        transposed(permuted(value(list, name + end), order), static_cast<std::size_t>(columns)),
        Shape{columns, GH});
  };
  Keras keras{matrix("weight_ih", config.input_size), matrix("weight_hh", config.hidden_size), {}};
  if (config.bias) {
    std::vector<double> bias = permuted(value(list, "bias_ih" + end), order);
    if (two) extend(bias, permuted(value(list, "bias_hh" + end), order));
    keras.bias = Tensor::from(bias, two ? Shape{2, GH} : Shape{GH});
  }
  return keras;
}

// --- And back.
// -------------------------------------------------------------------------------------

std::vector<Parameter> to_reference(const StateDict& state) {
  std::vector<Parameter> list;
  for (const NamedTensor& item : state) {
    const auto extents = item.tensor.shape().extents();
    const auto values = item.tensor.values<double>();
    list.push_back({item.name, {extents.begin(), extents.end()}, {values.begin(), values.end()}});
  }
  return list;
}

void check_equal(const StateDict& state, const std::vector<Parameter>& expected) {
  const std::vector<Parameter> got = to_reference(state);
  REQUIRE(got.size() == expected.size());
  for (const Parameter& parameter : expected) {
    const auto found = std::find_if(got.begin(), got.end(),
                                    [&](const Parameter& p) { return p.name == parameter.name; });
    INFO(parameter.name);
    REQUIRE(found != got.end());
    CHECK(found->shape == parameter.shape);
    CHECK(found->value == parameter.value);
  }
}

std::vector<double> output(const Config& config, const std::vector<Parameter>& list) {
  return reference::run(config, list, {reference::xin(5, 1, config.input_size), {}, {}}).y;
}

double difference(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double most = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(a[i] - b[i]));
  return most;
}

Config small(Cell cell, bool bidirectional = false, bool bias = true) {
  return {.cell = cell,
          .input_size = 3,
          .hidden_size = 4,
          .bias = bias,
          .bidirectional = bidirectional};
}

void zero(std::vector<Parameter>& list, const std::string& name) {
  for (Parameter& parameter : list)
    if (parameter.name == name) std::fill(parameter.value.begin(), parameter.value.end(), 0.0);
}

// All zero but one block (gate) of one parameter.
std::vector<Parameter> one_block(const Config& config, std::size_t which, std::size_t block) {
  std::vector<Parameter> list = reference::parameters(config);
  std::vector<double>& values = list[which].value;
  const std::size_t size = values.size() / static_cast<std::size_t>(config.gates());
  for (std::size_t j = 0; j < size; ++j) values[block * size + j] = 1.0;
  return list;
}

struct Format {
  Cell cell;
  std::string onnx;
  std::string keras;
};
const std::array<Format, 4> kFormats{{{Cell::lstm, "iofg", "ifgo"},
                                      {Cell::gru, "zrn", "zrn"},
                                      {Cell::gru_reset_before, "zrn", "zrn"},
                                      {Cell::rnn_tanh, "a", "a"}}};

ImportedWeights import_onnx(Cell cell, const Onnx& onnx, std::int64_t layer = 0) {
  OnnxWeights weights{.w = onnx.w, .r = onnx.r, .b = onnx.b};
  weights.linear_before_reset = cell == Cell::gru;
  switch (cell) {
    case Cell::lstm:
      return import_onnx_lstm(weights, layer);
    case Cell::gru:
    case Cell::gru_reset_before:
      return import_onnx_gru(weights, layer);
    default:
      return import_onnx_rnn(weights, layer);
  }
}

ImportedWeights import_keras(Cell cell, const Keras& keras, const ImportPlace& place = {}) {
  KerasWeights weights{
      .kernel = keras.kernel, .recurrent_kernel = keras.recurrent, .bias = keras.bias};
  weights.reset_after = cell == Cell::gru;
  switch (cell) {
    case Cell::lstm:
      return import_keras_lstm(weights, place);
    case Cell::gru:
    case Cell::gru_reset_before:
      return import_keras_gru(weights, place);
    default:
      return import_keras_rnn(weights, place);
  }
}

TEST_CASE("B75: ONNX weights come out in PyTorch's order, one gate block at a time") {
  for (const Format& format : kFormats) {
    const Config config = small(format.cell, true);
    const std::size_t count = reference::parameters(config).size();
    for (std::size_t which = 0; which < count; ++which)
      for (std::size_t block = 0; block < static_cast<std::size_t>(config.gates()); ++block) {
        const std::vector<Parameter> list = one_block(config, which, block);
        INFO("cell " << static_cast<int>(format.cell) << ", " << list[which].name << ", block "
                     << block);
        check_equal(import_onnx(format.cell, to_onnx(list, config, format.onnx)).state, list);
      }
  }
}

TEST_CASE("B75: Keras weights come out in PyTorch's order, one gate block at a time") {
  for (const Format& format : kFormats) {
    const Config config = small(format.cell);
    const bool two = format.cell == Cell::gru;
    for (std::size_t which = 0; which < (two ? 4U : 3U); ++which)  // else bias_hh is zero
      for (std::size_t block = 0; block < static_cast<std::size_t>(config.gates()); ++block) {
        const std::vector<Parameter> list = one_block(config, which, block);
        INFO("cell " << static_cast<int>(format.cell) << ", " << list[which].name << ", block "
                     << block);
        check_equal(import_keras(format.cell, to_keras(list, config, format.keras, two)).state,
                    list);
      }
  }
}

TEST_CASE("B75: imported networks give the outputs of the originals") {
  for (const Format& format : kFormats)
    for (const bool bias : {true, false}) {
      INFO("cell " << static_cast<int>(format.cell) << ", bias " << bias);
      const Config config = small(format.cell, true, bias);
      const std::vector<Parameter> list = reference::filled_parameters(config);
      const ImportedWeights imported = import_onnx(format.cell, to_onnx(list, config, format.onnx));
      check_equal(imported.state, list);
      CHECK(output(config, to_reference(imported.state)) == output(config, list));

      const Config one_way = small(format.cell, false, bias);
      std::vector<Parameter> single = reference::filled_parameters(one_way);
      const bool two = format.cell == Cell::gru;
      if (!two) zero(single, "bias_hh_l0");
      const ImportedWeights from_keras =
          import_keras(format.cell, to_keras(single, one_way, format.keras, two));
      check_equal(from_keras.state, single);
      CHECK(output(one_way, to_reference(from_keras.state)) == output(one_way, single));
    }
}

TEST_CASE("B75: reading ONNX blocks as ours would be far off") {
  // What the importers are for; and a check that the two tests above can fail.
  const Config config = small(Cell::lstm);
  const std::vector<Parameter> list = reference::filled_parameters(config);
  std::vector<Parameter> misread = list;
  for (Parameter& parameter : misread) parameter.value = permuted(parameter.value, "iofg");
  CHECK(difference(output(config, misread), output(config, list)) > 0.05);
}

TEST_CASE("B77: the form of an imported GRU is told, and matters") {
  const Config after = small(Cell::gru);
  const Config before = small(Cell::gru_reset_before);
  const std::vector<Parameter> list = reference::filled_parameters(after);
  const Onnx onnx = to_onnx(list, after, "zrn");
  CHECK_FALSE(
      import_onnx_gru({.w = onnx.w, .r = onnx.r, .b = onnx.b}).reset_after);  // ONNX default
  CHECK(import_onnx(Cell::gru, onnx).reset_after);
  CHECK(difference(output(after, list), output(before, list)) > 0.1);

  const Keras two = to_keras(list, after, "zrn", true);
  const Keras one = to_keras(list, after, "zrn", false);
  CHECK(import_keras(Cell::gru, two).reset_after);
  CHECK_FALSE(import_keras(Cell::gru_reset_before, one).reset_after);
  // A bias of the other form is a contradiction, never guessed at.
  CHECK_THROWS_WITH(import_keras(Cell::gru, one), Contains("bias is [12], expected [2, 12]"));
  CHECK_THROWS_WITH(import_keras(Cell::gru_reset_before, two),
                    Contains("bias is [2, 12], expected [12]"));
}

TEST_CASE("imported names carry the layer and the direction") {
  const Config config = small(Cell::lstm, true);
  const std::vector<Parameter> list = reference::filled_parameters(config);
  const ImportedWeights onnx = import_onnx(Cell::lstm, to_onnx(list, config, "iofg"), 3);
  REQUIRE(onnx.state.size() == 8);
  CHECK(onnx.state[0].name == "weight_ih_l3");
  CHECK(onnx.state[7].name == "bias_hh_l3_reverse");
  const ImportedWeights keras =
      import_keras(Cell::lstm, to_keras(list, config, "ifgo", false, "_l0_reverse"),
                   {.layer = 2, .reverse = true});
  REQUIRE(keras.state.size() == 4);
  CHECK(keras.state[1].name == "weight_hh_l2_reverse");
  CHECK(keras.state[2].tensor.values<double>()[5] == value(list, "bias_ih_l0_reverse")[5]);
}

TEST_CASE("imports keep the dtype") {
  const Config config = small(Cell::gru);
  const Onnx onnx = to_onnx(reference::filled_parameters(config), config, "zrn");
  const StateDict wide = import_onnx(Cell::gru, onnx).state;
  for (const Dtype dtype : {Dtype::f32, Dtype::f16, Dtype::bf16}) {
    const Onnx narrow{convert(onnx.w, dtype), convert(onnx.r, dtype), convert(onnx.b, dtype)};
    const StateDict state = import_onnx(Cell::gru, narrow).state;
    for (std::size_t i = 0; i < state.size(); ++i) {
      INFO(name_of(dtype) << " " << state[i].name);
      REQUIRE(state[i].tensor.dtype() == dtype);
      const Tensor got = convert(state[i].tensor, Dtype::f64);
      const Tensor expected = convert(convert(wide[i].tensor, dtype), Dtype::f64);
      for (std::size_t j = 0; j < got.values<double>().size(); ++j)
        CHECK(got.values<double>()[j] == expected.values<double>()[j]);
    }
  }
}

TEST_CASE("ONNX weights that do not fit are refused") {
  const Config config = small(Cell::lstm, true);
  const Onnx good = to_onnx(reference::filled_parameters(config), config, "iofg");
  const OnnxWeights weights{.w = good.w, .r = good.r, .b = good.b};
  const auto zeros = [](Shape shape, Dtype dtype = Dtype::f64) {
    return Tensor::zeros(shape, dtype);
  };
  const auto refused = [](OnnxWeights bad, const std::string& reason) {
    CHECK_THROWS_AS(import_onnx_lstm(bad), InvalidArgument);
    CHECK_THROWS_WITH(import_onnx_lstm(bad), Contains(reason));
  };
  const Tensor flat = zeros(Shape{16, 4});
  const Tensor three = zeros(Shape{3, 16, 4});
  const Tensor odd = zeros(Shape{2, 15, 4});
  const Tensor other_d = zeros(Shape{1, 16, 3});
  const Tensor other_h = zeros(Shape{2, 12, 3});
  const Tensor no_input = zeros(Shape{2, 16, 0});
  const Tensor floats = zeros(Shape{2, 16, 3}, Dtype::f32);
  const Tensor integers = zeros(Shape{2, 16, 4}, Dtype::i64);
  const Tensor half_bias = zeros(Shape{2, 16});
  refused({.w = good.w, .r = {}}, "r is not defined");
  refused({.w = {}, .r = good.r}, "w is not defined");
  refused({.w = good.w, .r = flat}, "r is [16, 4], expected [any, any, any]");
  refused({.w = good.w, .r = three}, "expected 1 or 2 directions");
  refused({.w = good.w, .r = odd}, "r is [2, 15, 4], expected 4 blocks");
  refused({.w = good.w, .r = integers}, "r is i64");
  refused({.w = other_d, .r = good.r}, "w is [1, 16, 3], expected [2, 16, any]");
  refused({.w = other_h, .r = good.r}, "w is [2, 12, 3]");
  refused({.w = no_input, .r = good.r}, "at least one input");
  refused({.w = floats, .r = good.r}, "w is f32, expected f64");
  refused({.w = good.w, .r = good.r, .b = half_bias}, "b is [2, 16], expected [2, 32]");
  CHECK_THROWS_AS(import_onnx_gru(weights), InvalidArgument);  // an LSTM's weights
  CHECK_THROWS_WITH(import_onnx_lstm(weights, -1), Contains("layer is -1"));

  const Tensor peephole = zeros(Shape{2, 12});
  OnnxWeights with_peephole = weights;
  with_peephole.p = peephole;
  CHECK_THROWS_AS(import_onnx_lstm(with_peephole), Unsupported);
  CHECK_THROWS_WITH(import_onnx_lstm(with_peephole), Contains("peephole") && Contains("[2, 12]"));
}

TEST_CASE("Keras weights that do not fit are refused") {
  const Config config = small(Cell::lstm);
  const std::vector<Parameter> list = reference::filled_parameters(config);
  const Keras good = to_keras(list, config, "ifgo", false);
  const Tensor pytorch = Tensor::zeros(Shape{16, 4}, Dtype::f64);  // not transposed
  const Tensor pytorch_input = Tensor::zeros(Shape{16, 3}, Dtype::f64);
  CHECK_THROWS_WITH(import_keras_lstm({.kernel = good.kernel, .recurrent_kernel = pytorch}),
                    Contains("recurrent_kernel is [16, 4], expected 4 blocks"));
  CHECK_THROWS_WITH(
      import_keras_lstm({.kernel = pytorch_input, .recurrent_kernel = good.recurrent}),
      Contains("kernel is [16, 3], expected [any, 16]"));
  CHECK_THROWS_AS(import_keras_lstm({.kernel = good.kernel, .recurrent_kernel = {}}),
                  InvalidArgument);
  const Keras two = to_keras(list, config, "ifgo", true);
  CHECK_THROWS_WITH(import_keras(Cell::lstm, two), Contains("bias is [2, 16], expected [16]"));
}

// --- cuDNN.
// ----------------------------------------------------------------------------------------

CudnnMode mode_of(Cell cell) {
  return cell == Cell::lstm ? CudnnMode::lstm : cell == Cell::gru ? CudnnMode::gru : CudnnMode::rnn;
}

// Gate matrices of a filled layer, each with memory of its own, by linLayerID.
std::vector<Tensor> pieces(const std::vector<Parameter>& list, const Config& config,
                           const std::string& input, const std::string& recurrent) {
  std::vector<Tensor> result;
  for (const std::string& name : {input, recurrent}) {
    const std::vector<double>& all = value(list, name);
    const std::size_t size = all.size() / static_cast<std::size_t>(config.gates());
    const auto columns = static_cast<std::int64_t>(size) / config.hidden_size;
    for (std::int64_t g = 0; g < config.gates(); ++g) {
      const auto begin = all.begin() + g * static_cast<std::ptrdiff_t>(size);
      const Shape shape = input.starts_with("bias") ? Shape{config.hidden_size}
                                                    : Shape{config.hidden_size, columns};
      result.push_back(Tensor::from(
          std::vector<double>(begin, begin + static_cast<std::ptrdiff_t>(size)), shape));
    }
  }
  return result;
}

TEST_CASE("cuDNN matrices by linLayerID give the layer") {
  for (const Cell cell : {Cell::lstm, Cell::gru, Cell::rnn_relu}) {
    const Config config = small(cell);
    const std::vector<Parameter> list = reference::filled_parameters(config);
    const std::vector<Tensor> matrices = pieces(list, config, "weight_ih_l0", "weight_hh_l0");
    const std::vector<Tensor> biases = pieces(list, config, "bias_ih_l0", "bias_hh_l0");
    CudnnLayer layer{.mode = mode_of(cell),
                     .matrices = {matrices.begin(), matrices.end()},
                     .biases = {biases.begin(), biases.end()}};
    const ImportedWeights imported = import_cudnn_layer(layer);
    CHECK(imported.reset_after);
    check_equal(imported.state, list);
    CHECK(output(config, to_reference(imported.state)) == output(config, list));

    // A single bias: the other half is undefined, and zero.
    const std::size_t half = layer.biases.size() / 2;
    std::fill(layer.biases.begin(), layer.biases.begin() + static_cast<std::ptrdiff_t>(half),
              TensorView{});
    std::vector<Parameter> recurrent_only = list;
    zero(recurrent_only, "bias_ih_l0");
    check_equal(import_cudnn_layer(layer).state, recurrent_only);

    layer.biases.clear();
    const StateDict without = import_cudnn_layer(layer, {.layer = 1, .reverse = true}).state;
    REQUIRE(without.size() == 2);
    CHECK(without[1].name == "weight_hh_l1_reverse");
  }
}

TEST_CASE("a projection is cuDNN's ninth matrix") {
  Config config = small(Cell::lstm, false, false);
  config.proj_size = 2;
  const std::vector<Parameter> list = reference::filled_parameters(config);
  std::vector<Tensor> matrices = pieces(list, config, "weight_ih_l0", "weight_hh_l0");
  matrices.push_back(Tensor::from(value(list, "weight_hr_l0"), Shape{2, 4}));
  const ImportedWeights imported =
      import_cudnn_layer({.matrices = {matrices.begin(), matrices.end()}, .biases = {}});
  check_equal(imported.state, list);
  CHECK(output(config, to_reference(imported.state)) == output(config, list));
}

TEST_CASE("cuDNN matrices that do not fit are refused") {
  const Config config = small(Cell::lstm);
  const std::vector<Parameter> list = reference::filled_parameters(config);
  const std::vector<Tensor> matrices = pieces(list, config, "weight_ih_l0", "weight_hh_l0");
  const std::vector<Tensor> biases = pieces(list, config, "bias_ih_l0", "bias_hh_l0");
  const CudnnLayer good{.matrices = {matrices.begin(), matrices.end()},
                        .biases = {biases.begin(), biases.end()}};
  const auto refused = [&](auto&& spoil, const std::string& reason) {
    CudnnLayer bad = good;
    spoil(bad);
    CHECK_THROWS_AS(import_cudnn_layer(bad), InvalidArgument);
    CHECK_THROWS_WITH(import_cudnn_layer(bad), Contains(reason));
  };
  const Tensor wrong = Tensor::zeros(Shape{4, 5}, Dtype::f64);
  refused([](CudnnLayer& l) { l.matrices.clear(); }, "0 matrices, expected 8 (9 with projection)");
  refused([](CudnnLayer& l) { l.mode = CudnnMode::gru; }, "8 matrices, expected 6");
  refused([](CudnnLayer& l) { l.mode = static_cast<CudnnMode>(9); }, "mode is 9");
  refused([&](CudnnLayer& l) { l.matrices[2] = wrong; }, "matrices[2] is [4, 5], expected [4, 3]");
  refused([&](CudnnLayer& l) { l.matrices[5] = {}; }, "matrices[5] is not defined");
  refused([&](CudnnLayer& l) { l.matrices.push_back(wrong); }, "matrices[8] is [4, 5]");
  refused([](CudnnLayer& l) { l.biases.pop_back(); }, "7 biases, expected 0 or 8");
  refused([](CudnnLayer& l) { l.biases[1] = {}; }, "biases[1] is not defined, expected [4]");
}

TEST_CASE("a cuDNN weight space gives all layers and directions") {
  for (const Cell cell : {Cell::lstm, Cell::gru, Cell::rnn_tanh})
    for (const bool bidirectional : {false, true})
      for (const bool bias : {false, true}) {
        INFO("cell " << static_cast<int>(cell) << ", both ways " << bidirectional << ", bias "
                     << bias);
        Config config = small(cell, bidirectional, bias);
        config.num_layers = 3;
        const std::vector<Parameter> list = reference::filled_parameters(config);
        std::vector<double> flat;
        for (const char* kind : {"weight", "bias"})
          for (const Parameter& parameter : list)  // PyTorch's order: layer, then direction
            if (parameter.name.starts_with(kind)) extend(flat, parameter.value);
        const Tensor all = Tensor::from(flat, Shape{static_cast<std::int64_t>(flat.size())});
        CudnnWeightSpace space{.mode = mode_of(cell),
                               .flat = all,
                               .input_size = 3,
                               .hidden_size = 4,
                               .num_layers = 3,
                               .bidirectional = bidirectional,
                               .bias = bias};
        const ImportedWeights imported = import_cudnn(space);
        check_equal(imported.state, list);
        CHECK(output(config, to_reference(imported.state)) == output(config, list));

        space.bias = !bias;
        CHECK_THROWS_WITH(import_cudnn(space), Contains("flat has " + std::to_string(flat.size())));
        space.bias = bias;
        space.hidden_size = 5;
        CHECK_THROWS_AS(import_cudnn(space), InvalidArgument);
        space.hidden_size = std::int64_t{1} << 62;
        CHECK_THROWS_WITH(import_cudnn(space), Contains("hidden_size is 4611686018427387904"));
        space.hidden_size = 4;
        space.num_layers = 0;
        CHECK_THROWS_WITH(import_cudnn(space), Contains("num_layers is 0"));
      }
}

}  // namespace
}  // namespace packrnn::tests

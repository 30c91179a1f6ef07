// The layers against numbers that PyTorch computed: every layer file of tests/golden.

#include "tests/golden/golden.hpp"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "tests/layers/layer_fixture.hpp"

using namespace packrnn;
using namespace packrnn::tests;
using packrnn::golden::File;

namespace {

const std::string kFolder = PACKRNN_SOURCE_DIR "/tests/golden";

ref::Config config_of(const File& file) {
  static const std::map<std::string, ref::Cell> cells{
      {"lstm", ref::Cell::lstm},
      {"gru", ref::Cell::gru},
      {"gru_reset_before", ref::Cell::gru_reset_before},
      {"rnn_tanh", ref::Cell::rnn_tanh},
      {"rnn_relu", ref::Cell::rnn_relu}};
  return {cells.at(file.text("cell")), file.number("input_size"), file.number("hidden_size"),
          file.number("num_layers"),   file.number("proj_size"),  file.flag("bias"),
          file.flag("bidirectional")};
}

// The file's tensor, with its shape, as a dtype.
Tensor tensor_of(const File& file, const std::string& name, Dtype dtype) {
  const golden::Tensor& tensor = file.at(name);
  return tests::tensor_of(tensor.value, Shape(std::span<const std::int64_t>(tensor.shape)), dtype);
}

// The bound of tolerance.hpp; the magnitude of the sums is what the reference measures.
double allowed(const File& file, const ref::Config& config,
               const std::vector<ref::Parameter>& parameters, Dtype dtype) {
  const Counts lengths = file.lengths();
  const Batch batch = batch_from(config, file.at("input").value, lengths,
                                 file.has("h0") ? file.at("h0").value : Doubles(),
                                 file.has("c0") ? file.at("c0").value : Doubles());
  double magnitude = 0.0;
  for (const ref::Sequence& sequence : batch)
    magnitude = std::max(magnitude, ref::run(config, parameters, sequence).magnitude);
  // In 16 bits these weights and inputs are rounded on their way in.
  const ref::Precision precision =
      size_of(dtype) == 2 ? ref::with_rounded_weights(precision_of(dtype)) : precision_of(dtype);
  return ref::tolerance(precision,
                        ref::work(config, *std::ranges::max_element(lengths), magnitude));
}

// The largest difference; NaN counts as infinite.
double difference(const TensorView& got, const golden::Tensor& expected) {
  REQUIRE(got.shape() == Shape(std::span<const std::int64_t>(expected.shape)));
  const Doubles values = doubles_of(got);
  double worst = 0.0;
  for (std::size_t j = 0; j < values.size(); ++j) {
    const double error = std::abs(values[j] - expected.value[j]);
    worst = std::isnan(error) ? INFINITY : std::max(worst, error);
  }
  return worst;
}

}  // namespace

TEST_CASE("the layers reproduce every file that PyTorch made") {
  const Dtype dtype = GENERATE(from_range(layer_dtypes()));
  Context context;
  const std::vector<File> files = golden::layer_files(kFolder);
  CHECK(files.size() >= 46);
  for (const File& file : files) {
    CAPTURE(file.name, packrnn::name_of(dtype));
    const ref::Config config = config_of(file);
    std::vector<ref::Parameter> parameters = ref::parameters(config);
    Recurrent layer = make_layer(config, {.dtype = dtype});
    REQUIRE(layer.parameters().count() == static_cast<std::int64_t>(parameters.size()));
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      CHECK(layer.parameters().name(static_cast<std::int64_t>(p)) == file.names[p]);
      parameters[p].value = file.at(parameters[p].name).value;
    }
    set_parameters(layer, parameters);

    // The padding of "input" is NaN, so this also sees whether padding is read.
    const Tensor input = tensor_of(file, "input", dtype);
    const PackedSequence packed = host::pack_padded_sequence(context, input, file.lengths());
    // One expected row order only where no two lengths are equal.
    CHECK(same_bits(packed.data(), tensor_of(file, "input_packed", dtype)));

    State state;
    if (file.has("h0")) state.h = tensor_of(file, "h0", dtype);
    if (file.has("c0")) state.c = tensor_of(file, "c0", cell_dtype(dtype));
    const double bound = allowed(file, config, parameters, dtype);
    const PackedOutput result = host::forward(context, layer, packed, {.state = state});
    CHECK(difference(result.output.data(), file.at("output_packed")) <= bound);
    CHECK(difference(result.state.h, file.at("h_n")) <= bound);
    if (config.cell == ref::Cell::lstm)
      CHECK(difference(result.state.c, file.at("c_n")) <= bound);
    else
      CHECK_FALSE(result.state.c.defined());
    CHECK(difference(host::pad_packed_sequence(context, result.output), file.at("output")) <=
          bound);
  }
}

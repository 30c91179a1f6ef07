// The reference against PyTorch: every golden file, to 1e-12.

#include "tests/golden/golden.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/catch.hpp"
#include "tests/reference/rnn.hpp"

namespace {

using packrnn::golden::File;
using packrnn::golden::Tensor;
using packrnn::reference::Cell;
using packrnn::reference::column;
using packrnn::reference::Config;
using packrnn::reference::Parameter;
using packrnn::reference::Result;
using packrnn::reference::Sequence;

const std::string kFolder = PACKRNN_SOURCE_DIR "/tests/golden";

Cell cell_named(const std::string& name) {
  const std::map<std::string, Cell> cells{{"lstm", Cell::lstm},
                                          {"gru", Cell::gru},
                                          {"gru_reset_before", Cell::gru_reset_before},
                                          {"rnn_tanh", Cell::rnn_tanh},
                                          {"rnn_relu", Cell::rnn_relu}};
  return cells.at(name);
}

Config config_of(const File& file) {
  return {cell_named(file.text("cell")), file.number("input_size"), file.number("hidden_size"),
          file.number("num_layers"),     file.number("proj_size"),  file.flag("bias"),
          file.flag("bidirectional")};
}

double difference(const std::vector<double>& got, const std::vector<double>& expected) {
  REQUIRE(got.size() == expected.size());
  double worst = 0.0;
  for (std::size_t j = 0; j < got.size(); ++j) {
    REQUIRE(std::isfinite(got[j]));
    const double scale = std::max(1.0, std::abs(expected[j]));
    worst = std::max(worst, std::abs(got[j] - expected[j]) / scale);
  }
  return worst;
}

std::int64_t whole(double value) { return static_cast<std::int64_t>(value); }

}  // namespace

TEST_CASE("the reference reproduces every layer file") {
  const std::vector<File> files = packrnn::golden::layer_files(kFolder);
  CHECK(files.size() == 46);
  double worst = 0.0;
  for (const File& file : files) {
    INFO(file.name);
    const Config config = config_of(file);
    std::vector<Parameter> parameters = packrnn::reference::parameters(config);
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      CHECK(file.names[p] == parameters[p].name);  // PyTorch's order
      CHECK(file.at(parameters[p].name).shape == parameters[p].shape);
      parameters[p].value = file.at(parameters[p].name).value;
    }

    const std::vector<std::int64_t> lengths = file.lengths();
    const auto N = static_cast<std::int64_t>(lengths.size());
    const std::int64_t T = *std::max_element(lengths.begin(), lengths.end());
    const std::int64_t rows = config.num_layers * config.directions();
    const std::int64_t P = config.state_size();
    const std::int64_t H = config.hidden_size;
    const std::int64_t F = config.directions() * P;
    const bool lstm = config.cell == Cell::lstm;
    REQUIRE(file.at("output").shape == std::vector<std::int64_t>{T, N, F});
    REQUIRE(file.at("h_n").shape == std::vector<std::int64_t>{rows, N, P});

    std::vector<Result> results;
    for (std::int64_t n = 0; n < N; ++n) {
      INFO("sequence " << n);
      const std::int64_t length = lengths[static_cast<std::size_t>(n)];
      Sequence sequence;
      sequence.x = column(file.at("input").value, N, config.input_size, n, length);
      if (file.has("h0")) {
        sequence.h0 = column(file.at("h0").value, N, P, n, rows);
      }
      if (file.has("c0")) {
        sequence.c0 = column(file.at("c0").value, N, H, n, rows);
      }
      const Result result = run(config, parameters, sequence);

      // The whole column, so that the file's own padding is seen to be zero too.
      std::vector<double> padded = result.y;
      padded.resize(static_cast<std::size_t>(T * F), 0.0);
      worst = std::max(worst, difference(padded, column(file.at("output").value, N, F, n, T)));
      worst = std::max(worst, difference(result.h_n, column(file.at("h_n").value, N, P, n, rows)));
      if (lstm) {
        worst =
            std::max(worst, difference(result.c_n, column(file.at("c_n").value, N, H, n, rows)));
      }
      CHECK(worst <= 1e-12);
      results.push_back(result);
    }

    // Packed rows: step t holds sequence sorted_indices[s] in its row s.
    const std::vector<double>& sorted = file.at("sorted_indices").value;
    const std::vector<double>& batch_sizes = file.at("batch_sizes").value;
    std::vector<double> packed;
    for (std::size_t t = 0; t < batch_sizes.size(); ++t) {
      for (std::int64_t s = 0; s < whole(batch_sizes[t]); ++s) {
        const auto n = static_cast<std::size_t>(sorted[static_cast<std::size_t>(s)]);
        const auto row = results[n].y.begin() + static_cast<std::ptrdiff_t>(t) * F;
        packed.insert(packed.end(), row, row + F);
      }
    }
    CHECK(difference(packed, file.at("output_packed").value) <= 1e-12);
  }
  CHECK(worst > 0.0);  // two programs that agree to the last bit everywhere would be one program
}

TEST_CASE("the reference reproduces every gradient file") {
  double worst = 0.0;
  const std::vector<File> files = packrnn::golden::gradient_files(kFolder);
  CHECK(files.size() == 20);
  for (const File& expected : files) {
    INFO(expected.name);
    const File file = packrnn::golden::read(
        std::filesystem::path(kFolder) /
        (expected.name.substr(std::string("gradients_").size()) + ".safetensors"));
    const Config config = config_of(file);
    std::vector<Parameter> parameters = packrnn::reference::parameters(config), sums = parameters;
    for (Parameter& parameter : parameters) parameter.value = file.at(parameter.name).value;
    const std::vector<std::int64_t> lengths = file.lengths();
    const auto N = static_cast<std::int64_t>(lengths.size());
    const std::int64_t T = *std::max_element(lengths.begin(), lengths.end());
    const std::int64_t rows = config.num_layers * config.directions();
    const std::int64_t P = config.state_size(), H = config.hidden_size, I = config.input_size;
    const bool lstm = config.cell == Cell::lstm;
    const auto of = [&](const File& from, const char* name, std::int64_t width, std::int64_t n,
                        std::int64_t count) {
      return column(from.at(name).value, N, width, n, count);
    };
    for (std::int64_t n = 0; n < N; ++n) {
      const std::int64_t length = lengths[static_cast<std::size_t>(n)];
      const Sequence sequence{of(file, "input", I, n, length), of(file, "h0", P, n, rows),
                              lstm ? of(file, "c0", H, n, rows) : std::vector<double>{}};
      const packrnn::reference::Gradients got =
          gradients(config, parameters, sequence,
                    {of(expected, "by.output", config.directions() * P, n, length),
                     of(expected, "by.h_n", P, n, rows),
                     lstm ? of(expected, "by.c_n", H, n, rows) : std::vector<double>{}});
      std::vector<double> x = got.x;
      x.resize(static_cast<std::size_t>(T * I), 0.0);  // no gradient of padding
      worst = std::max(worst, difference(x, of(expected, "input", I, n, T)));
      worst = std::max(worst, difference(got.h0, of(expected, "h0", P, n, rows)));
      if (lstm) worst = std::max(worst, difference(got.c0, of(expected, "c0", H, n, rows)));
      for (std::size_t p = 0; p < sums.size(); ++p)
        for (std::size_t j = 0; j < sums[p].value.size(); ++j)
          sums[p].value[j] += got.parameters[p].value[j];
    }
    for (const Parameter& sum : sums)
      worst = std::max(worst, difference(sum.value, expected.at(sum.name).value));
    CHECK(worst <= 1e-12);
  }
  CHECK(worst > 0.0);
}

TEST_CASE("the golden inputs are exact in f32, and NaN where they are padding") {
  for (const File& file : packrnn::golden::layer_files(kFolder)) {
    INFO(file.name);
    for (const std::string& name : file.names) {
      if (name.starts_with("weight") || name.starts_with("bias") || name == "h0" || name == "c0" ||
          name == "input_packed") {
        for (double value : file.at(name).value) {
          REQUIRE(static_cast<double>(static_cast<float>(value)) == value);
        }
      }
    }
    const Tensor& input = file.at("input");
    const std::vector<std::int64_t> lengths = file.lengths();
    for (std::size_t j = 0; j < input.value.size(); ++j) {
      const auto row = static_cast<std::int64_t>(j) / input.shape[2];
      const std::int64_t t = row / input.shape[1];
      const auto n = static_cast<std::size_t>(row % input.shape[1]);
      REQUIRE(std::isnan(input.value[j]) == (t >= lengths[n]));
    }
  }
}

TEST_CASE("the packing files say what packing means") {
  const std::vector<File> files = packrnn::golden::pack_files(kFolder);
  CHECK(files.size() == 7);
  for (const File& file : files) {
    INFO(file.name);
    const Tensor& input = file.at("input");
    const Tensor& padded = file.at("padded");
    const std::vector<std::int64_t> lengths = file.lengths();
    const bool batch_first = file.flag("batch_first");
    const auto N = static_cast<std::int64_t>(lengths.size());
    const std::int64_t T = *std::max_element(lengths.begin(), lengths.end());
    const std::int64_t total = std::max(T, file.number("total_length"));
    const double padding = std::stod(file.text("padding_value"));
    const std::int64_t width = static_cast<std::int64_t>(input.value.size()) / (N * T);
    const auto element = [&](std::int64_t t, std::int64_t n, std::int64_t k, std::int64_t steps) {
      return static_cast<std::size_t>((batch_first ? n * steps + t : t * N + n) * width + k);
    };

    std::vector<double> order;
    if (file.flag("enforce_sorted")) {
      for (std::int64_t n = 0; n < N; ++n) {
        order.push_back(static_cast<double>(n));
      }
    } else {
      order = file.at("sorted_indices").value;
    }
    std::vector<double> data;
    std::vector<double> batch_sizes;
    for (std::int64_t t = 0; t < T; ++t) {
      double live = 0.0;
      for (double index : order) {
        if (t < lengths[static_cast<std::size_t>(index)]) {
          live += 1.0;
          for (std::int64_t k = 0; k < width; ++k) {
            data.push_back(input.value[element(t, whole(index), k, T)]);
          }
        }
      }
      batch_sizes.push_back(live);
    }
    CHECK(data == file.at("data").value);
    CHECK(batch_sizes == file.at("batch_sizes").value);

    std::vector<double> expected(static_cast<std::size_t>(total * N * width), padding);
    for (std::int64_t n = 0; n < N; ++n) {
      for (std::int64_t t = 0; t < lengths[static_cast<std::size_t>(n)]; ++t) {
        for (std::int64_t k = 0; k < width; ++k) {
          expected[element(t, n, k, total)] = input.value[element(t, n, k, T)];
        }
      }
    }
    CHECK(padded.value == expected);
  }
}

#include "tests/layers/layer_fixture.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

namespace packrnn::tests {
namespace {

// The distributions of <random> differ between standard libraries; this does not.
double uniform(std::mt19937& generator, double low, double high) {
  const double unit = static_cast<double>(generator() >> 8) * 0x1p-24;
  return static_cast<double>(static_cast<float>(low + (high - low) * unit));
}

// The nearest numbers that `dtype` holds.
void round_to(Dtype dtype, Doubles& values) {
  if (dtype == Dtype::f32 || dtype == Dtype::f64 || values.empty()) return;  // exact already
  values = doubles_of(
      convert(TensorView(values.data(), {static_cast<std::int64_t>(values.size())}), dtype));
}

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

std::int64_t state_rows(const ref::Config& config) {
  return config.num_layers * config.directions();
}

void append_row(std::vector<std::byte>& bytes, const TensorView& rows, std::int64_t row) {
  const TensorView one = rows.rows(row, row + 1);
  const auto* data = static_cast<const std::byte*>(one.raw());
  bytes.insert(bytes.end(), data, data + one.bytes());
}

// Row n of every [N, .] slab of a [L*D, N, .] tensor.
std::vector<std::byte> state_bytes(const Tensor& state, std::int64_t n) {
  std::vector<std::byte> bytes;
  if (!state.defined()) return bytes;
  const std::int64_t slabs = state.size(0), N = state.size(1);
  const TensorView flat = state.view().reshape({slabs * N, state.size(2)});
  for (std::int64_t slab = 0; slab < slabs; ++slab) append_row(bytes, flat, slab * N + n);
  return bytes;
}

// Remembers the worst element of a comparison. NaN counts as infinitely wrong.
struct Worst {
  double difference = 0.0, got = 0.0, expected = 0.0;
  std::string where = "nowhere";

  void note(double value, double wanted, const char* what, std::int64_t n, std::int64_t row,
            std::int64_t column) {
    double error = std::abs(value - wanted);
    if (std::isnan(error)) error = INFINITY;
    if (error <= difference) return;
    difference = error;
    got = value;
    expected = wanted;
    where = std::string(what) + " of sequence " + std::to_string(n) + ", row " +
            std::to_string(row) + ", column " + std::to_string(column);
  }
};

void report(const Worst& worst, const ref::Config& config, Dtype dtype, std::int64_t steps,
            double magnitude, std::optional<ref::Precision> held_to = {}) {
  const double allowed =
      ref::tolerance(held_to.value_or(precision_of(dtype)), ref::work(config, steps, magnitude));
  CAPTURE(describe(config), packrnn::name_of(dtype), worst.where, worst.got, worst.expected);
  CHECK(worst.difference <= allowed);
}

}  // namespace

std::vector<int> teams(std::initializer_list<int> sizes) {
  return std::vector<int>(sizes.begin(), on_device() ? sizes.begin() + 1 : sizes.end());
}

std::span<const Dtype> layer_dtypes() {
  static constexpr std::array kAll{Dtype::f32, Dtype::f64, Dtype::bf16, Dtype::f16};
  return std::span(kAll).first(on_device() ? 4 : 2);
}

ref::Precision precision_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::f64:
      return ref::kF64;
    case Dtype::f16:
      return ref::kF16;
    case Dtype::bf16:
      return ref::kBf16;
    default:
      return ref::kF32;
  }
}

Dtype cell_dtype(Dtype dtype) { return dtype == Dtype::f64 ? Dtype::f64 : Dtype::f32; }

std::string name_of(Kind kind) {
  static const std::array<std::string, 6> names{"lstm",     "lstm_proj", "gru", "gru_reset_before",
                                                "rnn_tanh", "rnn_relu"};
  return names.at(static_cast<std::size_t>(kind));
}

ref::Config config_of(Kind kind, std::int64_t input_size, std::int64_t hidden_size,
                      std::int64_t num_layers, bool bidirectional, bool bias) {
  ref::Config config;
  switch (kind) {
    case Kind::lstm:
    case Kind::lstm_proj:
      config.cell = ref::Cell::lstm;
      break;
    case Kind::gru:
      config.cell = ref::Cell::gru;
      break;
    case Kind::gru_reset_before:
      config.cell = ref::Cell::gru_reset_before;
      break;
    case Kind::rnn_tanh:
      config.cell = ref::Cell::rnn_tanh;
      break;
    case Kind::rnn_relu:
      config.cell = ref::Cell::rnn_relu;
      break;
  }
  config.input_size = input_size;
  config.hidden_size = hidden_size;
  config.num_layers = num_layers;
  config.proj_size = kind == Kind::lstm_proj && hidden_size > 1 ? (hidden_size + 1) / 2 : 0;
  config.bidirectional = bidirectional;
  config.bias = bias;
  return config;
}

std::string describe(const ref::Config& config) {
  static const std::array<std::string, 5> cells{"lstm", "gru", "gru_reset_before", "rnn_tanh",
                                                "rnn_relu"};
  return cells.at(static_cast<std::size_t>(config.cell)) +
         " I=" + std::to_string(config.input_size) + " H=" + std::to_string(config.hidden_size) +
         " L=" + std::to_string(config.num_layers) + " P=" + std::to_string(config.proj_size) +
         (config.bidirectional ? " bi" : " uni") + (config.bias ? " bias" : " nobias");
}

Recurrent make_layer(const ref::Config& config, const LayerOptions& options) {
  if (config.cell == ref::Cell::lstm)
    return Lstm({.input_size = config.input_size,
                 .hidden_size = config.hidden_size,
                 .num_layers = config.num_layers,
                 .bias = config.bias,
                 .batch_first = options.batch_first,
                 .dropout = options.dropout,
                 .bidirectional = config.bidirectional,
                 .proj_size = config.proj_size,
                 .dtype = options.dtype,
                 .weight_storage = options.weight_storage,
                 .seed = options.seed});
  if (config.cell == ref::Cell::gru || config.cell == ref::Cell::gru_reset_before)
    return Gru({.input_size = config.input_size,
                .hidden_size = config.hidden_size,
                .num_layers = config.num_layers,
                .bias = config.bias,
                .batch_first = options.batch_first,
                .dropout = options.dropout,
                .bidirectional = config.bidirectional,
                .reset_after = config.cell == ref::Cell::gru,
                .dtype = options.dtype,
                .weight_storage = options.weight_storage,
                .seed = options.seed});
  return Rnn(
      {.input_size = config.input_size,
       .hidden_size = config.hidden_size,
       .num_layers = config.num_layers,
       .nonlinearity = config.cell == ref::Cell::rnn_relu ? Nonlinearity::relu : Nonlinearity::tanh,
       .bias = config.bias,
       .batch_first = options.batch_first,
       .dropout = options.dropout,
       .bidirectional = config.bidirectional,
       .dtype = options.dtype,
       .weight_storage = options.weight_storage,
       .seed = options.seed});
}

Recurrent make_layer(const ref::Config& config, std::span<const ref::Parameter> parameters,
                     const LayerOptions& options) {
  Recurrent layer = make_layer(config, options);
  set_parameters(layer, parameters);
  return layer;
}

void set_parameters(Recurrent& layer, std::span<const ref::Parameter> parameters) {
  REQUIRE(layer.parameters().count() == static_cast<std::int64_t>(parameters.size()));
  for (const ref::Parameter& parameter : parameters)
    layer.parameters().set(
        parameter.name,
        TensorView(parameter.value.data(), Shape(std::span<const std::int64_t>(parameter.shape))));
}

std::vector<ref::Parameter> random_parameters(const ref::Config& config, unsigned seed,
                                              Dtype dtype) {
  std::mt19937 generator(seed);
  const double bound = 1.0 / std::sqrt(static_cast<double>(config.hidden_size));
  std::vector<ref::Parameter> list = ref::parameters(config);
  for (ref::Parameter& parameter : list) {
    for (double& value : parameter.value) value = uniform(generator, -bound, bound);
    round_to(dtype, parameter.value);
  }
  return list;
}

std::vector<ref::Parameter> constant_parameters(const ref::Config& config, double value) {
  std::vector<ref::Parameter> list = ref::parameters(config);
  for (ref::Parameter& parameter : list) std::ranges::fill(parameter.value, value);
  return list;
}

Batch random_batch(const ref::Config& config, const Counts& lengths, unsigned seed, bool states,
                   Dtype dtype) {
  Batch batch;
  for (std::size_t n = 0; n < lengths.size(); ++n) {
    std::mt19937 generator(seed * 100003U + static_cast<unsigned>(n));
    const auto draw = [&](std::int64_t count) {
      Doubles values(index(count));
      for (double& value : values) value = uniform(generator, -1.0, 1.0);
      return values;
    };
    ref::Sequence sequence;
    if (states) {
      sequence.h0 = draw(state_rows(config) * config.state_size());
      if (config.cell == ref::Cell::lstm)
        sequence.c0 = draw(state_rows(config) * config.hidden_size);
    }
    sequence.x = draw(lengths[n] * config.input_size);
    round_to(dtype, sequence.h0);
    round_to(cell_dtype(dtype), sequence.c0);
    round_to(dtype, sequence.x);
    batch.push_back(std::move(sequence));
  }
  return batch;
}

Batch batch_from(const ref::Config& config, const Doubles& x, const Counts& lengths,
                 const Doubles& h_0, const Doubles& c_0) {
  const auto N = static_cast<std::int64_t>(lengths.size());
  Batch batch;
  for (std::int64_t n = 0; n < N; ++n) {
    ref::Sequence sequence;
    sequence.x = ref::column(x, N, config.input_size, n, lengths[index(n)]);
    if (!h_0.empty()) sequence.h0 = ref::column(h_0, N, config.state_size(), n, state_rows(config));
    if (!c_0.empty()) sequence.c0 = ref::column(c_0, N, config.hidden_size, n, state_rows(config));
    batch.push_back(std::move(sequence));
  }
  return batch;
}

Batch pick(const Batch& batch, std::span<const std::int64_t> order) {
  Batch picked;
  for (std::int64_t n : order) picked.push_back(batch.at(index(n)));
  return picked;
}

ref::Sequence steps_of(const ref::Config& config, const ref::Sequence& sequence, std::int64_t begin,
                       std::int64_t end) {
  const std::int64_t width = config.input_size;
  const std::int64_t length = static_cast<std::int64_t>(sequence.x.size()) / width;
  begin = std::min(begin, length);
  end = std::min(end, length);
  ref::Sequence part = sequence;
  part.x.assign(sequence.x.begin() + begin * width, sequence.x.begin() + end * width);
  return part;
}

Counts lengths_of(const ref::Config& config, const Batch& batch) {
  Counts lengths;
  for (const ref::Sequence& sequence : batch)
    lengths.push_back(static_cast<std::int64_t>(sequence.x.size()) / config.input_size);
  return lengths;
}

Counts random_lengths(std::mt19937& generator, std::int64_t count, std::int64_t low,
                      std::int64_t high) {
  Counts lengths(index(count));
  for (std::int64_t& length : lengths)
    length = low + static_cast<std::int64_t>(generator() % static_cast<unsigned>(high - low + 1));
  return lengths;
}

Counts lengths_with_batch_sizes(const Counts& batch_sizes) {
  Counts lengths(index(batch_sizes.front()), 0);
  for (std::int64_t size : batch_sizes)
    for (std::int64_t n = 0; n < size; ++n) ++lengths[index(n)];
  return lengths;
}

Tensor tensor_of(const Doubles& values, const Shape& shape, Dtype dtype) {
  return convert(Tensor::from(values, shape), dtype);
}

Doubles doubles_of(const TensorView& tensor) {
  const Tensor wide = convert(tensor, Dtype::f64);
  const std::span<const double> values = wide.values<double>();
  return {values.begin(), values.end()};
}

PackedSequence packed_of(const ref::Config& config, const Batch& batch, Dtype dtype,
                         const Counts& sequence_ids) {
  const PackedLayoutPtr layout =
      PackedLayout::make(lengths_of(config, batch), {.sequence_ids = sequence_ids});
  const std::int64_t I = config.input_size;
  Doubles rows(index(layout->total() * I));
  for (std::int64_t n = 0; n < layout->batch(); ++n)
    for (std::int64_t t = 0; t < layout->lengths()[index(n)]; ++t)
      std::copy_n(batch[index(n)].x.begin() + t * I, I, rows.begin() + layout->row(n, t) * I);
  return {tensor_of(rows, {layout->total(), I}, dtype), layout};
}

Tensor padded_of(const ref::Config& config, const Batch& batch, Dtype dtype, std::int64_t steps,
                 bool batch_first, double padding) {
  const auto N = static_cast<std::int64_t>(batch.size());
  const std::int64_t I = config.input_size;
  Doubles values(index(steps * N * I), padding);
  const Counts lengths = lengths_of(config, batch);
  for (std::int64_t n = 0; n < N; ++n)
    for (std::int64_t t = 0; t < lengths[index(n)]; ++t)
      std::copy_n(batch[index(n)].x.begin() + t * I, I,
                  values.begin() + (batch_first ? n * steps + t : t * N + n) * I);
  return tensor_of(values, batch_first ? Shape{N, steps, I} : Shape{steps, N, I}, dtype);
}

State state_of(const ref::Config& config, const Batch& batch, Dtype dtype, bool batch_first) {
  const auto gather = [&](Doubles ref::Sequence::*member, std::int64_t width, Dtype type) {
    if (batch.empty() || (batch.front().*member).empty()) return Tensor();
    const auto N = static_cast<std::int64_t>(batch.size());
    const std::int64_t slabs = state_rows(config);
    Doubles values(index(slabs * N * width));
    for (std::int64_t n = 0; n < N; ++n)
      for (std::int64_t slab = 0; slab < slabs; ++slab)
        std::copy_n((batch[index(n)].*member).begin() + slab * width, width,
                    values.begin() + (batch_first ? n * slabs + slab : slab * N + n) * width);
    return tensor_of(values, batch_first ? Shape{N, slabs, width} : Shape{slabs, N, width}, type);
  };
  State state;
  state.h = gather(&ref::Sequence::h0, config.state_size(), dtype);
  if (config.cell == ref::Cell::lstm)
    state.c = gather(&ref::Sequence::c0, config.hidden_size, cell_dtype(dtype));
  return state;
}

Run run(Context& context, const Recurrent& layer, const ref::Config& config, const Batch& batch,
        const RunOptions& options) {
  const Dtype dtype = layer.config().dtype;
  const PackedSequence input = packed_of(config, batch, dtype, options.sequence_ids);
  const State state = state_of(config, batch, dtype);
  Run result;
  ForwardOptions forward{.state = state, .training = options.training};
  if (config.cell == ref::Cell::lstm) forward.cells = &result.cells;
  PackedOutput output = host::forward(context, layer, input, forward);
  result.output = std::move(output.output);
  result.state = std::move(output.state);
  return result;
}

void check_run(const ref::Config& config, std::span<const ref::Parameter> parameters,
               const Batch& batch, const Run& run, std::optional<ref::Precision> held_to) {
  const std::int64_t D = config.directions(), S = config.state_size(), H = config.hidden_size;
  const std::int64_t slabs = state_rows(config);
  const bool lstm = config.cell == ref::Cell::lstm;
  const auto N = static_cast<std::int64_t>(batch.size());
  const PackedLayout& layout = run.output.layout();
  REQUIRE(layout.batch() == N);
  REQUIRE(run.output.data().shape() == Shape{layout.total(), D * S});
  REQUIRE(run.state.h.shape() == Shape{slabs, N, S});
  REQUIRE(run.state.c.defined() == lstm);
  REQUIRE(run.cells.size() == (lstm ? index(config.num_layers) : 0));
  const Doubles y = doubles_of(run.output.data());
  const Doubles h = doubles_of(run.state.h);
  Doubles c;
  std::vector<Doubles> cells;
  if (lstm) {
    REQUIRE(run.state.c.shape() == Shape{slabs, N, H});
    c = doubles_of(run.state.c);
    for (const Tensor& layer : run.cells) {
      REQUIRE(layer.shape() == Shape{layout.total(), D * H});
      cells.push_back(doubles_of(layer));
    }
  }

  Worst worst;
  double magnitude = 0.0;
  for (std::int64_t n = 0; n < N; ++n) {
    const ref::Result expected = ref::run(config, parameters, batch[index(n)]);
    magnitude = std::max(magnitude, expected.magnitude);
    const std::int64_t length = layout.lengths()[index(n)];
    for (std::int64_t t = 0; t < length; ++t) {
      const std::int64_t row = layout.row(n, t);
      for (std::int64_t j = 0; j < D * S; ++j)
        worst.note(y[index(row * D * S + j)], expected.y[index(t * D * S + j)], "output", n, t, j);
      for (std::size_t l = 0; l < cells.size(); ++l)
        for (std::int64_t j = 0; j < D * H; ++j)
          worst.note(cells[l][index(row * D * H + j)],
                     expected.cells[(l * index(length) + index(t)) * index(D * H) + index(j)],
                     "cell state", n, t, j);
    }
    for (std::int64_t slab = 0; slab < slabs; ++slab) {
      for (std::int64_t j = 0; j < S; ++j)
        worst.note(h[index((slab * N + n) * S + j)], expected.h_n[index(slab * S + j)], "h_n", n,
                   slab, j);
      for (std::int64_t j = 0; lstm && j < H; ++j)
        worst.note(c[index((slab * N + n) * H + j)], expected.c_n[index(slab * H + j)], "c_n", n,
                   slab, j);
    }
  }
  report(worst, config, run.output.data().dtype(), layout.steps(), magnitude, held_to);
}

void check_dense(const ref::Config& config, std::span<const ref::Parameter> parameters,
                 const Batch& batch, const DenseOutput& result, bool batch_first,
                 bool state_batch_first) {
  const std::int64_t S = config.state_size(), H = config.hidden_size, slabs = state_rows(config);
  const std::int64_t F = config.directions() * S;
  const bool lstm = config.cell == ref::Cell::lstm;
  const auto N = static_cast<std::int64_t>(batch.size());
  const Counts lengths = lengths_of(config, batch);
  REQUIRE(result.output.shape().rank() == 3);
  const std::int64_t T = result.output.size(batch_first ? 1 : 0);
  REQUIRE(result.output.shape() == (batch_first ? Shape{N, T, F} : Shape{T, N, F}));
  const auto state_shape = [&](std::int64_t width) {
    return state_batch_first ? Shape{N, slabs, width} : Shape{slabs, N, width};
  };
  REQUIRE(result.state.h.shape() == state_shape(S));
  REQUIRE(result.state.c.defined() == lstm);
  if (lstm) REQUIRE(result.state.c.shape() == state_shape(H));
  const Doubles y = doubles_of(result.output), h = doubles_of(result.state.h);
  const Doubles c = lstm ? doubles_of(result.state.c) : Doubles();

  Worst worst;
  double magnitude = 0.0;
  std::int64_t nonzero_padding = 0;
  for (std::int64_t n = 0; n < N; ++n) {
    const ref::Result expected = ref::run(config, parameters, batch[index(n)]);
    magnitude = std::max(magnitude, expected.magnitude);
    for (std::int64_t t = 0; t < T; ++t)
      for (std::int64_t j = 0; j < F; ++j) {
        const double got = y[index((batch_first ? n * T + t : t * N + n) * F + j)];
        if (t < lengths[index(n)])
          worst.note(got, expected.y[index(t * F + j)], "output", n, t, j);
        else if (got != 0.0)
          ++nonzero_padding;
      }
    for (std::int64_t slab = 0; slab < slabs; ++slab) {
      const std::int64_t row = state_batch_first ? n * slabs + slab : slab * N + n;
      for (std::int64_t j = 0; j < S; ++j)
        worst.note(h[index(row * S + j)], expected.h_n[index(slab * S + j)], "h_n", n, slab, j);
      for (std::int64_t j = 0; lstm && j < H; ++j)
        worst.note(c[index(row * H + j)], expected.c_n[index(slab * H + j)], "c_n", n, slab, j);
    }
  }
  CHECK(nonzero_padding == 0);
  report(worst, config, result.output.dtype(), T, magnitude);
}

SequenceBits bits_of(const Run& run, std::int64_t sequence) {
  SequenceBits bits;
  const PackedLayout& layout = run.output.layout();
  for (std::int64_t t = 0; t < layout.lengths()[index(sequence)]; ++t) {
    append_row(bits.output, run.output.data(), layout.row(sequence, t));
    for (const Tensor& layer : run.cells)
      append_row(bits.cells, layer.view(), layout.row(sequence, t));
  }
  bits.h = state_bytes(run.state.h, sequence);
  bits.c = state_bytes(run.state.c, sequence);
  return bits;
}

std::vector<SequenceBits> all_bits(const Run& run) {
  std::vector<SequenceBits> list;
  for (std::int64_t n = 0; n < run.output.layout().batch(); ++n) list.push_back(bits_of(run, n));
  return list;
}

std::int64_t first_difference(std::span<const SequenceBits> got,
                              std::span<const SequenceBits> expected) {
  REQUIRE(got.size() == expected.size());
  for (std::size_t n = 0; n < got.size(); ++n)
    if (!(got[n] == expected[n])) return static_cast<std::int64_t>(n);
  return -1;
}

bool same_bits(const TensorView& a, const TensorView& b) {
  if (a.defined() != b.defined()) return false;
  if (!a.defined()) return true;
  return a.shape() == b.shape() && a.dtype() == b.dtype() &&
         (a.bytes() == 0 || std::memcmp(a.raw(), b.raw(), a.bytes()) == 0);
}

bool same_bits(const State& a, const State& b) {
  return same_bits(a.h, b.h) && same_bits(a.c, b.c);
}

std::vector<std::byte> parameter_bits(const Recurrent& layer) {
  std::vector<std::byte> bytes;
  for (std::int64_t i = 0; i < layer.parameters().count(); ++i) {
    const TensorView value = layer.parameters().value(i);
    const auto* data = static_cast<const std::byte*>(value.raw());
    bytes.insert(bytes.end(), data, data + value.bytes());
  }
  return bytes;
}

}  // namespace packrnn::tests

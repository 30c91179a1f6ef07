// What the tests of the recurrent layers share: a layer of any cell, batches of sequences with
// states, one call of the layer on any device, and the two ways to judge it: against the
// double-precision reference within a computed tolerance, and bit for bit against another call.
// Everything here is in host memory; run() and host_calls.hpp go to the device and back.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "packrnn/layers/gru.hpp"
#include "packrnn/layers/lstm.hpp"
#include "packrnn/layers/packing.hpp"
#include "packrnn/layers/rnn.hpp"
#include "packrnn/runtime/error.hpp"
#include "tests/catch.hpp"
#include "tests/layers/host_calls.hpp"
#include "tests/reference/fill.hpp"
#include "tests/reference/rnn.hpp"
#include "tests/reference/tolerance.hpp"
#include "tests/shapes.hpp"

namespace packrnn::tests {

namespace ref = packrnn::reference;
using Doubles = std::vector<double>;
using Counts = std::vector<std::int64_t>;

/// Team sizes worth trying: only the CPU engine has teams, so one of them on a GPU.
std::vector<int> teams(std::initializer_list<int> sizes);
/// The first of two values on the CPU, the second on a GPU.
template <class T>
T on_cpu_or_device(T cpu, T device) {
  return on_device() ? std::move(device) : std::move(cpu);
}
/// The dtypes that layers compute in on Device::best().
std::span<const Dtype> layer_dtypes();
/// What an engine that computes in `dtype` rounds.
ref::Precision precision_of(Dtype dtype);
/// Of cell states: f32 for the 16-bit dtypes, else `dtype`.
Dtype cell_dtype(Dtype dtype);

/// The six recurrences that a layer can be.
enum class Kind { lstm, lstm_proj, gru, gru_reset_before, rnn_tanh, rnn_relu };
inline constexpr std::array kKinds{
    Kind::lstm, Kind::lstm_proj, Kind::gru, Kind::gru_reset_before, Kind::rnn_tanh, Kind::rnn_relu};
std::string name_of(Kind kind);

/// lstm_proj projects to (H + 1) / 2, and to nothing when H is 1, which cannot be projected.
ref::Config config_of(Kind kind, std::int64_t input_size, std::int64_t hidden_size,
                      std::int64_t num_layers = 1, bool bidirectional = false, bool bias = true);
/// "lstm I=3 H=5 L=2 P=0 bi bias"
std::string describe(const ref::Config& config);

struct LayerOptions {
  Dtype dtype = Dtype::f32;
  WeightStorage weight_storage = WeightStorage::full;
  bool batch_first = false;
  double dropout = 0.0;
  std::uint64_t seed = 0;
};

Recurrent make_layer(const ref::Config& config, const LayerOptions& options = {});
Recurrent make_layer(const ref::Config& config, std::span<const ref::Parameter> parameters,
                     const LayerOptions& options = {});
void set_parameters(Recurrent& layer, std::span<const ref::Parameter> parameters);

/// U(-1/sqrt(H), 1/sqrt(H)), exact in f32 and in `dtype`.
std::vector<ref::Parameter> random_parameters(const ref::Config& config, unsigned seed = 1,
                                              Dtype dtype = Dtype::f32);
std::vector<ref::Parameter> constant_parameters(const ref::Config& config, double value);

/// Sequences in the caller's order, each with its own initial states.
using Batch = std::vector<ref::Sequence>;

/// Inputs and states U(-1, 1), exact in f32 and in `dtype`. Sequence n's numbers depend on
/// (seed, n, dtype) only.
Batch random_batch(const ref::Config& config, const Counts& lengths, unsigned seed = 1,
                   bool states = true, Dtype dtype = Dtype::f32);
/// The first lengths[n] steps of each column of x [T, N, I], T = x.size() / (N I). States are
/// [L*D, N, .] or empty.
Batch batch_from(const ref::Config& config, const Doubles& x, const Counts& lengths,
                 const Doubles& h_0 = {}, const Doubles& c_0 = {});
Batch pick(const Batch& batch, std::span<const std::int64_t> order);
/// Steps [begin, end) of a sequence, cut to what it has; keeps its states.
ref::Sequence steps_of(const ref::Config& config, const ref::Sequence& sequence, std::int64_t begin,
                       std::int64_t end);
Counts lengths_of(const ref::Config& config, const Batch& batch);
/// N random lengths of low .. high.
Counts random_lengths(std::mt19937& generator, std::int64_t count, std::int64_t low,
                      std::int64_t high);
/// Lengths whose packed form has these batch sizes.
Counts lengths_with_batch_sizes(const Counts& batch_sizes);

Tensor tensor_of(const Doubles& values, const Shape& shape, Dtype dtype);
Doubles doubles_of(const TensorView& tensor);

/// The batch as rows in packed order, put there one by one (no code of pack_padded_sequence).
PackedSequence packed_of(const ref::Config& config, const Batch& batch, Dtype dtype,
                         const Counts& sequence_ids = {});
/// [T, N, I] or [N, T, I] with `padding` wherever there is no data.
Tensor padded_of(const ref::Config& config, const Batch& batch, Dtype dtype, std::int64_t steps,
                 bool batch_first, double padding);
/// [L*D, N, .], or [N, L*D, .] when batch_first; undefined when the sequences have no states.
State state_of(const ref::Config& config, const Batch& batch, Dtype dtype,
               bool batch_first = false);

struct Run {
  PackedSequence output;
  State state;
  std::vector<Tensor> cells;  // of an LSTM
};

struct RunOptions {
  bool training = false;
  Counts sequence_ids = {};
};

/// One packed call of the layer, cell states included; brings the results to the host.
Run run(Context& context, const Recurrent& layer, const ref::Config& config, const Batch& batch,
        const RunOptions& options = {});

/// CHECKs output, final states and cell states of every sequence against the reference run alone,
/// by what the output's dtype promises unless told otherwise.
void check_run(const ref::Config& config, std::span<const ref::Parameter> parameters,
               const Batch& batch, const Run& run, std::optional<ref::Precision> held_to = {});
/// The same for a dense or padded result with its states; output rows past an end must be zero.
void check_dense(const ref::Config& config, std::span<const ref::Parameter> parameters,
                 const Batch& batch, const DenseOutput& result, bool batch_first = false,
                 bool state_batch_first = false);

/// All that a sequence gets from a call, as bytes.
struct SequenceBits {
  std::vector<std::byte> output, h, c, cells;

  friend bool operator==(const SequenceBits&, const SequenceBits&) = default;
};
SequenceBits bits_of(const Run& run, std::int64_t sequence);
std::vector<SequenceBits> all_bits(const Run& run);
/// The first sequence whose bits differ, or -1.
std::int64_t first_difference(std::span<const SequenceBits> got,
                              std::span<const SequenceBits> expected);

/// Equal shape, dtype and bytes.
bool same_bits(const TensorView& a, const TensorView& b);
bool same_bits(const State& a, const State& b);

/// All parameters, one after the other.
std::vector<std::byte> parameter_bits(const Recurrent& layer);

/// Runs `call`, which must throw InvalidArgument with all of `parts` in its message.
template <class Call>
void check_refused(const char* what, Call&& call, const std::vector<std::string>& parts) {
  INFO(what);
  std::string message;
  try {
    call();
  } catch (const InvalidArgument& error) {
    message = error.what();
  }
  CAPTURE(message);
  CHECK_FALSE(message.empty());
  for (const std::string& part : parts) {
    INFO("expected in the message: " << part);
    CHECK(message.find(part) != std::string::npos);
  }
}

/// What published numbers with ten decimals allow; the engine's own f64 error is far below.
inline constexpr double kTenDecimals = 1e-10;

inline double sum(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

}  // namespace packrnn::tests

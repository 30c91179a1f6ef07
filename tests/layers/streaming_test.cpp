// Contract C1 for streams: a sequence fed in pieces, with its state carried along, gets the bits of
// one call, wherever it is cut.

#include <algorithm>
#include <map>
#include <random>
#include <utility>

#include "tests/layers/layer_fixture.hpp"

using namespace packrnn;
using namespace packrnn::tests;

namespace {

void append(std::vector<std::byte>& to, const std::vector<std::byte>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

// Feeds `batch` in calls; ends(call)[n] is where sequence n is cut after that call. The state
// tensors of one call go into the next one as they are.
template <class Ends>
std::vector<SequenceBits> in_pieces(Context& context, const Recurrent& layer,
                                    const ref::Config& config, const Batch& batch, Ends&& ends) {
  const Counts lengths = lengths_of(config, batch);
  const Dtype dtype = layer.config().dtype;
  Counts done(batch.size(), 0);
  std::vector<SequenceBits> bits(batch.size());
  State state = state_of(config, batch, dtype);
  for (int call = 0; done != lengths; ++call) {
    const Counts wanted = ends(call);
    Batch pieces;
    for (std::size_t n = 0; n < batch.size(); ++n) {
      const std::int64_t end = std::clamp(wanted[n], done[n], lengths[n]);
      pieces.push_back(steps_of(config, batch[n], done[n], end));
      done[n] = end;
    }
    Run piece;
    ForwardOptions options{.state = state};
    if (config.cell == ref::Cell::lstm) options.cells = &piece.cells;
    PackedOutput output = host::forward(context, layer, packed_of(config, pieces, dtype), options);
    piece.output = std::move(output.output);
    piece.state = std::move(output.state);
    for (std::size_t n = 0; n < batch.size(); ++n) {
      const SequenceBits part = bits_of(piece, static_cast<std::int64_t>(n));
      append(bits[n].output, part.output);
      append(bits[n].cells, part.cells);
      bits[n].h = part.h;
      bits[n].c = part.c;
    }
    state = std::move(piece.state);
  }
  return bits;
}

// Cuts all sequences every `steps` steps.
auto every(std::int64_t steps, std::size_t count) {
  return [=](int call) { return Counts(count, (call + 1) * steps); };
}

}  // namespace

TEST_CASE("C1 a stream cut anywhere has the bits of one call") {
  const Kind kind = GENERATE(from_range(kKinds));
  const Dtype dtype = GENERATE(from_range(layer_dtypes()));
  const int threads = GENERATE(from_range(teams({1, 2})));
  PACKRNN_ONE_IN(5);
  const ref::Config config = config_of(kind, 5, 33, 2);
  const Recurrent layer = make_layer(config, random_parameters(config), {.dtype = dtype});
  const Batch batch = random_batch(
      config, on_cpu_or_device<Counts>({200, 131, 1, 64, 0, 63, 65, 7, 128}, {20, 13, 1, 6, 0}));
  Context context(Device::best(), {.threads = threads});
  const std::vector<SequenceBits> whole = all_bits(run(context, layer, config, batch));

  for (const std::int64_t steps : on_cpu_or_device<Counts>({1, 17, 63, 64, 65, 199}, {1, 7, 19})) {
    CAPTURE(steps);
    CHECK(first_difference(in_pieces(context, layer, config, batch, every(steps, batch.size())),
                           whole) == -1);
  }

  // Every sequence cut at its own places; some get nothing in a call.
  std::mt19937 generator(11);
  for (int repeat = 0; repeat < on_cpu_or_device(3, 1); ++repeat) {
    Counts at(batch.size(), 0);
    const auto random_cuts = [&](int) {
      for (std::int64_t& end : at)
        if (generator() % 3 != 0) end += generator() % on_cpu_or_device(40U, 10U);
      return at;
    };
    CHECK(first_difference(in_pieces(context, layer, config, batch, random_cuts), whole) == -1);
  }
}

TEST_CASE("B81: chunks with carried state equal the full run") {
  const Kind kind = GENERATE(from_range(kKinds));
  const Dtype dtype = GENERATE(Dtype::f32, Dtype::f64);
  PACKRNN_ONE_IN(5);
  const ref::Config config = config_of(kind, 2, 3, 2);
  std::vector<ref::Parameter> parameters = ref::filled_parameters(config);
  ref::round_to_float(parameters);
  const Recurrent layer = make_layer(config, parameters, {.dtype = dtype});
  Doubles x = ref::xin(12, 2, 2);
  ref::round_to_float(x);
  const Batch batch = batch_from(config, x, {12, 12});
  Context context;
  const Run full = run(context, layer, config, batch);
  check_run(config, parameters, batch, full);
  const std::vector<SequenceBits> whole = all_bits(full);
  const Counts ends{1, 6, 7, 12};
  const auto uneven = [&](int call) { return Counts(2, ends[static_cast<std::size_t>(call)]); };
  CHECK(first_difference(in_pieces(context, layer, config, batch, uneven), whole) == -1);
  CHECK(first_difference(in_pieces(context, layer, config, batch, every(1, 2)), whole) == -1);
}

TEST_CASE("C1 dense chunks equal packed chunks") {
  const Kind kind = GENERATE(from_range(kKinds));
  const ref::Config config = config_of(kind, 4, 12);
  const Recurrent layer = make_layer(config, random_parameters(config));
  const Batch batch = random_batch(config, {30, 30, 30});
  Context context;
  const Run whole = run(context, layer, config, batch);
  const Tensor x = padded_of(config, batch, Dtype::f32, 30, false, 0.0);
  const Tensor expected = host::pad_packed_sequence(context, whole.output);
  State state = state_of(config, batch, Dtype::f32);
  for (std::int64_t t = 0; t < 30;) {
    const std::int64_t end = std::min<std::int64_t>(30, t + 1 + t % 7);
    DenseOutput piece = host::forward(context, layer, x.view().rows(t, end), {.state = state});
    CHECK(same_bits(piece.output, expected.view().rows(t, end)));
    state = std::move(piece.state);
    t = end;
  }
  CHECK(same_bits(state, whole.state));
}

TEST_CASE("B83: nothing is left over between utterances") {
  const Kind kind = GENERATE(from_range(kKinds));
  const ref::Config config = config_of(kind, 3, 10, 2);
  const Recurrent layer = make_layer(config, random_parameters(config));
  const Batch a = random_batch(config, {50}, 1), b = random_batch(config, {50}, 2);
  const Batch no_state = random_batch(config, {50}, 2, false);
  Context context, other;
  const std::vector<SequenceBits> b_alone = all_bits(run(other, layer, config, b));

  // Stream A in ten chunks, then stream B: as B alone.
  (void)in_pieces(context, layer, config, a, every(5, 1));
  CHECK(first_difference(in_pieces(context, layer, config, b, every(5, 1)), b_alone) == -1);

  // Absent states are zeros every time, also after a call that had some.
  const std::vector<SequenceBits> zeros = all_bits(run(other, layer, config, no_state));
  (void)run(context, layer, config, a);
  CHECK(first_difference(all_bits(run(context, layer, config, no_state)), zeros) == -1);
  Batch explicit_zeros = no_state;
  const auto slabs = static_cast<std::size_t>(config.num_layers * config.directions());
  explicit_zeros[0].h0.assign(slabs * static_cast<std::size_t>(config.state_size()), 0.0);
  if (config.cell == ref::Cell::lstm)
    explicit_zeros[0].c0.assign(slabs * static_cast<std::size_t>(config.hidden_size), 0.0);
  CHECK(first_difference(all_bits(run(context, layer, config, explicit_zeros)), zeros) == -1);
}

TEST_CASE("B83: two streams may take turns on one model") {
  const Kind kind = GENERATE(from_range(kKinds));
  const ref::Config config = config_of(kind, 3, 10, 2);
  const Recurrent layer = make_layer(config, random_parameters(config));
  Context context;
  std::map<int, Batch> streams{{0, random_batch(config, {40}, 1)},
                               {1, random_batch(config, {40}, 2)}};
  std::map<int, std::vector<std::byte>> outputs;
  std::map<int, State> states;
  for (int k = 0; k < 2; ++k) states[k] = state_of(config, streams[k], Dtype::f32);
  for (std::int64_t t = 0; t < 40; t += 4)
    for (int k = 0; k < 2; ++k) {
      const Batch piece{steps_of(config, streams[k][0], t, t + 4)};
      PackedOutput got =
          host::forward(context, layer, packed_of(config, piece, Dtype::f32), {.state = states[k]});
      append(outputs[k], bits_of({std::move(got.output), {}, {}}, 0).output);
      states[k] = std::move(got.state);
    }
  for (int k = 0; k < 2; ++k) {
    const Run whole = run(context, layer, config, streams[k]);
    CHECK((outputs[k] == bits_of(whole, 0).output));
    CHECK(same_bits(states[k], whole.state));
  }
}

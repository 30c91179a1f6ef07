// Dense, padded and unbatched input: the same numbers as packed input, in other layouts.

#include <cmath>
#include <cstring>
#include <limits>

#include "tests/layers/layer_fixture.hpp"

using namespace packrnn;
using namespace packrnn::tests;

namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// [A, B, ...] as [B, A, ...].
Tensor swapped(const TensorView& tensor) {
  const std::int64_t A = tensor.size(0), B = tensor.size(1);
  const std::size_t row =
      tensor.elements() == 0 ? 0 : tensor.bytes() / static_cast<std::size_t>(A * B);
  Shape rest = tensor.shape().from(2);
  Tensor result = Tensor::empty(rest.prepend(A).prepend(B), tensor.dtype());
  const auto* from = static_cast<const std::byte*>(tensor.raw());
  auto* to = static_cast<std::byte*>(result.span().raw());
  for (std::int64_t a = 0; a < A; ++a)
    for (std::int64_t b = 0; b < B; ++b)
      std::memcpy(to + static_cast<std::size_t>(b * A + a) * row,
                  from + static_cast<std::size_t>(a * B + b) * row, row);
  return result;
}

}  // namespace

TEST_CASE("dense input equals packed input of equal lengths, bit for bit") {
  const Kind kind = GENERATE(from_range(kKinds));
  const Dtype dtype = GENERATE(Dtype::f32, Dtype::f64);
  const bool batch_first = GENERATE(false, true);
  const bool states = GENERATE(false, true);
  PACKRNN_ONE_IN(5);
  const ref::Config config = config_of(kind, 3, 9, 2, true);
  const std::vector<ref::Parameter> parameters = random_parameters(config);
  const Recurrent layer =
      make_layer(config, parameters, {.dtype = dtype, .batch_first = batch_first});
  Context context;
  for (const Counts& lengths : {Counts{6, 6, 6}, Counts{1}, Counts{7}, Counts{1, 1, 1, 1}}) {
    CAPTURE(lengths);
    const Batch batch = random_batch(config, lengths, 3, states);
    const Run packed = run(context, layer, config, batch);
    const Tensor x = padded_of(config, batch, dtype, lengths.front(), batch_first, kNaN);
    const State state = state_of(config, batch, dtype);
    std::vector<Tensor> cells;
    ForwardOptions options{.state = state};
    if (config.cell == ref::Cell::lstm) options.cells = &cells;
    const DenseOutput dense = host::forward(context, layer, x, options);
    check_dense(config, parameters, batch, dense, batch_first);
    CHECK(same_bits(dense.state, packed.state));
    CHECK(same_bits(dense.output, host::pad_packed_sequence(context, packed.output,
                                                            {.batch_first = batch_first})));
    REQUIRE(cells.size() == packed.cells.size());
    for (std::size_t l = 0; l < cells.size(); ++l) CHECK(same_bits(cells[l], packed.cells[l]));
  }
}

TEST_CASE("states may have the batch in front, in and out") {
  const Kind kind = GENERATE(from_range(kKinds));
  const bool batch_first = GENERATE(false, true);
  PACKRNN_ONE_IN(5);
  const ref::Config config = config_of(kind, 3, 5, 2, true);
  const std::vector<ref::Parameter> parameters = random_parameters(config);
  const Recurrent layer = make_layer(config, parameters, {.batch_first = batch_first});
  const Batch batch = random_batch(config, {5, 5, 5});
  Context context;
  const Tensor x = padded_of(config, batch, Dtype::f32, 5, batch_first, kNaN);
  const State usual = state_of(config, batch, Dtype::f32);
  const State in_front = state_of(config, batch, Dtype::f32, true);
  const DenseOutput a = host::forward(context, layer, x, {.state = usual});
  const DenseOutput b =
      host::forward(context, layer, x, {.state = in_front, .state_batch_first = true});
  check_dense(config, parameters, batch, b, batch_first, true);
  CHECK(same_bits(a.output, b.output));
  CHECK(same_bits(swapped(a.state.h), b.state.h));
  if (config.cell == ref::Cell::lstm) CHECK(same_bits(swapped(a.state.c), b.state.c));

  // Packed, unsorted, and with absent states.
  const Batch uneven = random_batch(config, {2, 5, 0, 3});
  const PackedSequence packed = packed_of(config, uneven, Dtype::f32);
  for (const bool given : {true, false}) {
    const State first = given ? state_of(config, uneven, Dtype::f32) : State();
    const State second = given ? state_of(config, uneven, Dtype::f32, true) : State();
    const PackedOutput p = host::forward(context, layer, packed, {.state = first});
    const PackedOutput q =
        host::forward(context, layer, packed, {.state = second, .state_batch_first = true});
    CHECK(same_bits(p.output.data(), q.output.data()));
    CHECK(same_bits(swapped(p.state.h), q.state.h));
    if (config.cell == ref::Cell::lstm) CHECK(same_bits(swapped(p.state.c), q.state.c));
  }
}

TEST_CASE("unbatched input equals a batch of one") {
  const Kind kind = GENERATE(from_range(kKinds));
  const bool batch_first = GENERATE(false, true);  // has no meaning without a batch
  const bool states = GENERATE(false, true);
  PACKRNN_ONE_IN(5);
  const ref::Config config = config_of(kind, 4, 7, 2, true);
  const std::vector<ref::Parameter> parameters = random_parameters(config);
  const Recurrent layer = make_layer(config, parameters, {.batch_first = batch_first});
  const Batch batch = random_batch(config, {6}, 4, states);
  Context context;
  const Run packed = run(context, layer, config, batch);
  State state = state_of(config, batch, Dtype::f32);
  if (state.h.defined()) state.h = std::move(state.h).reshape({4, config.state_size()});
  if (state.c.defined()) state.c = std::move(state.c).reshape({4, config.hidden_size});
  const Tensor x = tensor_of(batch[0].x, {6, 4}, Dtype::f32);
  const DenseOutput got = host::forward(context, layer, x, {.state = state});
  REQUIRE(got.output.shape() == Shape{6, 2 * config.state_size()});
  CHECK(same_bits(got.output.view(), packed.output.data()));
  REQUIRE(got.state.h.shape() == Shape{4, config.state_size()});
  CHECK(same_bits(got.state.h.view().reshape({4, 1, config.state_size()}), packed.state.h));
  REQUIRE(got.state.c.defined() == (config.cell == ref::Cell::lstm));
  if (got.state.c.defined()) {
    REQUIRE(got.state.c.shape() == Shape{4, config.hidden_size});
    CHECK(same_bits(got.state.c.view().reshape({4, 1, config.hidden_size}), packed.state.c));
  }
}

TEST_CASE("forward with lengths is pack, forward and pad in one") {
  const Kind kind = GENERATE(from_range(kKinds));
  const bool batch_first = GENERATE(false, true);
  const bool bidirectional = GENERATE(false, true);
  PACKRNN_ONE_IN(5);
  const ref::Config config = config_of(kind, 3, 6, 2, bidirectional);
  const std::vector<ref::Parameter> parameters = random_parameters(config);
  const Recurrent layer = make_layer(config, parameters, {.batch_first = batch_first});
  Context context;
  const std::int64_t T = 8;  // longer than any sequence
  for (const Counts& lengths : {Counts{3, 6, 1}, Counts{0, 5, 2, 0}, Counts{0, 0}, Counts{8, 8}}) {
    CAPTURE(lengths);
    const Batch batch = random_batch(config, lengths);
    const Tensor x = padded_of(config, batch, Dtype::f32, T, batch_first, kNaN);
    const State state = state_of(config, batch, Dtype::f32);
    const DenseOutput got = host::forward_padded(context, layer, x, lengths, {.state = state});
    check_dense(config, parameters, batch, got, batch_first);

    const PackedSequence packed =
        host::pack_padded_sequence(context, x, lengths, {.batch_first = batch_first});
    const PackedOutput by_hand = host::forward(context, layer, packed, {.state = state});
    CHECK(same_bits(got.state, by_hand.state));
    CHECK(same_bits(got.output, host::pad_packed_sequence(context, by_hand.output,
                                                          {.batch_first = batch_first})));
  }
}

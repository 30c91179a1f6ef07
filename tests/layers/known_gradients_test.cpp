// What docs/known-failures.md tells of backward passes elsewhere, beside training_test.cpp.
#include <limits>
#include <string>
#include <vector>

#include "packrnn/layers/functions.hpp"
#include "tests/layers/gradient_check.hpp"
#include "tests/layers/training_fixture.hpp"

using namespace packrnn;
using namespace packrnn::tests;

namespace {

constexpr Dtype kF64 = Dtype::f64;

}  // namespace

TEST_CASE("B46: data one element off an aligned address has the same gradients") {
  const ref::Config config = config_of(Kind::lstm, 3, 5, 1, true);
  const Counts lengths{4, 2, 2};
  const Batch batch = random_batch(config, lengths, 1, false);
  const auto by = random_upstream(config, lengths);
  Recurrent layer = make_layer(config, random_parameters(config), {});
  Context context = test_context();
  const AllGradients right = tape_gradients(context, layer, config, batch, by, LossOf::y_only);

  const PackedSequence x = packed_of(config, batch, Dtype::f32);
  const PackedSequence dy = upstream_of(config, by, Dtype::f32).y;
  // Both of them from the second element of a longer tensor on.
  const auto shifted = [&](const TensorView& rows) {
    Tensor longer = Tensor::zeros({rows.elements() + 1}, Dtype::f32);
    convert_into(rows.reshape({rows.elements()}), longer.span().rows(1, rows.elements() + 1));
    return context.to_device(longer);
  };
  const auto tail = [](const Tensor& longer, const Shape& shape) {
    auto* const data = static_cast<float*>(const_cast<void*>(longer.view().raw()));
    return Tensor::share(longer.storage(), data + 1, shape, Dtype::f32);
  };
  const Tensor x_memory = shifted(x.data()), dy_memory = shifted(dy.data());
  layer.parameters().zero_gradients();
  Tape tape(context);
  const PackedVariable input{tape.input(tail(x_memory, x.data().shape())),
                             host::up(context, x).layout_ptr()};
  const PackedOutputVariable out = layer.forward(tape, input);
  const Tensor upstream = tail(dy_memory, dy.data().shape());
  tape.backward({{out.output.data, upstream}});
  CHECK(down(context, input.data.gradient()) == right.x);
  for (std::int64_t i = 0; i < layer.parameters().count(); ++i)
    CHECK(down(context, layer.parameters().gradient(i)) ==
          right.parameters[static_cast<std::size_t>(i)]);
}

TEST_CASE("B47: a state for all sequences is refused, or gathered and gets their sum") {
  const ref::Config config = config_of(Kind::gru, 3, 4);
  const Counts lengths{3, 1, 2};
  Batch batch = random_batch(config, lengths);
  for (ref::Sequence& sequence : batch) sequence.h0 = batch[0].h0;
  const auto by = random_upstream(config, lengths);
  const std::vector<ref::Parameter> parameters = random_parameters(config);
  Recurrent layer = make_layer(config, parameters, {.dtype = kF64});
  Context context = test_context();
  layer.parameters().to(context);
  const AllGradients right = reference_gradients(config, parameters, batch, by, LossOf::y_only);
  const PackedSequence x = host::up(context, packed_of(config, batch, kF64));
  const PackedSequence dy = host::up(context, upstream_of(config, by, kF64).y);

  // Without a state first, with one then: the second call's gradient has the shape of its state.
  Tape without(context);
  (void)layer.forward(without, without.constant(host::up(context, packed_of(config, batch, kF64))));
  Tape tape(context);
  const Variable learned = tape.input(context.to_device(tensor_of(batch[0].h0, {1, 4}, kF64)));
  check_refused("one row for three sequences",
                [&] {
                  (void)layer.forward(tape, tape.constant(host::up(context, x)),
                                      {reshape(tape, learned, {1, 1, 4}), {}});
                },
                {"h_0", "[1, 3, 4]"});
  const Tensor zeros = context.zeros({3}, Dtype::i64);
  const Variable h_0 = reshape(tape, gather_rows(tape, learned, zeros), {1, 3, 4});
  const PackedOutputVariable out =
      layer.forward(tape, tape.constant(to_device(context, x)), {h_0, {}});
  tape.backward({{out.output.data, dy.data()}});
  Doubles sum(4, 0.0);
  for (std::size_t j = 0; j < right.h_0.size(); ++j) sum[j % 4] += right.h_0[j];
  CHECK(learned.gradient().shape() == Shape{1, 4});
  CHECK(difference(down(context, learned.gradient()), sum) <= 1e-12);
}

TEST_CASE("B50: each step's own mask on the way back") {
  const Kind kind = GENERATE(from_range(kKinds));
  const std::int64_t T = GENERATE(1, 2, 3, 7);
  PACKRNN_ONE_IN(4);
  const ref::Config config = config_of(kind, 2, 3, 2);
  const Counts lengths{T, std::max<std::int64_t>(1, T / 2)};
  const Batch batch = random_batch(config, lengths, 1, false);
  const auto by = random_upstream(config, lengths);
  Recurrent layer = make_layer(config, random_parameters(config), {.dtype = kF64, .dropout = 0.5});
  Context context = test_context();
  const auto loss = [&](const Doubles& values, AllGradients* gradients) {
    context.random().reseed(5);
    Batch moved = batch;
    std::size_t at = 0;
    for (ref::Sequence& sequence : moved)
      for (double& x : sequence.x) x = values[at++];
    if (gradients) *gradients = tape_gradients(context, layer, config, moved, by, LossOf::y_only);
    context.random().reseed(5);
    const PackedOutput out = layer.forward(
        context, host::up(context, packed_of(config, moved, kF64)), {.training = true});
    const Doubles y = down(context, out.output.data());
    const Doubles dy = doubles_of(upstream_of(config, by, kF64).y.data());
    double total = 0.0;
    for (std::size_t i = 0; i < y.size(); ++i) total += y[i] * dy[i];
    return total;
  };
  Doubles values;
  for (const ref::Sequence& sequence : batch)
    values.insert(values.end(), sequence.x.begin(), sequence.x.end());
  AllGradients gradients;
  loss(values, &gradients);
  // The gradient of x in packed order, along a random direction.
  Batch along = random_batch(config, lengths, 3, false);
  const Doubles packed_along = doubles_of(packed_of(config, along, kF64).data());
  double slope = 0.0;
  for (std::size_t i = 0; i < packed_along.size(); ++i) slope += packed_along[i] * gradients.x[i];
  const auto moved_by = [&](double step) {
    Doubles moved = values;
    std::size_t at = 0;
    for (const ref::Sequence& sequence : along)
      for (const double x : sequence.x) moved[at++] += step * x;
    return loss(moved, nullptr);
  };
  constexpr double kStep = 1e-5;
  CHECK(slope ==
        Approx((moved_by(kStep) - moved_by(-kStep)) / (2 * kStep)).epsilon(1e-6).margin(1e-8));
}

TEST_CASE("B51: widths around the sizes of blocks and vectors") {
  const std::int64_t H = GENERATE(1, 2, 31, 32, 33, 127, 128, 129, 257);
  const Kind kind = GENERATE(Kind::lstm, Kind::gru);
  if (on_device() && H > 40) return;
  const ref::Config config = config_of(kind, 3, H);
  CAPTURE(describe(config));
  const Counts lengths{3, 1};
  const Batch batch = random_batch(config, lengths);
  const auto by = random_upstream(config, lengths);
  const std::vector<ref::Parameter> parameters = random_parameters(config);
  Recurrent layer = make_layer(config, parameters, {});
  Context context = test_context();
  CHECK(difference(tape_gradients(context, layer, config, batch, by),
                   reference_gradients(config, parameters, batch, by)) <=
        allowed(config, Dtype::f32, lengths));
}

TEST_CASE("B74: step by step, the weights' gradients are within the bound of those at once") {
  const Kind kind = GENERATE(Kind::lstm, Kind::gru);
  const ref::Config config = config_of(kind, 3, 8);
  const Counts lengths{6, 5, 3, 1};
  const Batch batch = random_batch(config, lengths, 1, false);
  const auto by = random_upstream(config, lengths);
  const std::vector<ref::Parameter> parameters = random_parameters(config);
  Recurrent layer = make_layer(config, parameters, {});
  Context context = test_context();
  const auto bound = allowed(config, Dtype::f32, lengths);
  const AllGradients right = reference_gradients(config, parameters, batch, by, LossOf::y_only);
  CHECK(difference(tape_gradients(context, layer, config, batch, by, LossOf::y_only).parameters[0],
                   right.parameters[0]) <= bound);

  // One call a step, each with the sequences that are still there; states by gather.
  const auto by_steps = [&] {
    layer.parameters().zero_gradients();
    Tape tape(context);
    StateVariable state;
    std::vector<Tensor> upstream;
    std::vector<Tape::Start> starts;
    for (std::int64_t t = 0; t < 6; ++t) {
      Batch step;
      std::vector<ref::OutputGradients> step_by;
      for (std::size_t n = 0; n < batch.size() && lengths[n] > t; ++n) {
        step.push_back(steps_of(config, batch[n], t, t + 1));
        const auto from = by[n].y.begin() + t * 8;
        step_by.push_back({Doubles(from, from + 8), {}, {}});
      }
      const auto alive = static_cast<std::int64_t>(step.size());
      if (t > 0) {
        Tensor rows = Tensor::empty({alive}, Dtype::i64);
        for (std::int64_t n = 0; n < alive; ++n) rows.span().values<std::int64_t>()[n] = n;
        const Tensor on = context.to_device(rows);
        const auto still = [&](const Variable& all) {
          const Variable flat = reshape(tape, all, {all.size(1), 8});
          return reshape(tape, gather_rows(tape, flat, on), {1, alive, 8});
        };
        state = {still(state.h), state.c.defined() ? still(state.c) : Variable()};
      }
      const PackedOutputVariable out = layer.forward(
          tape, tape.constant(host::up(context, packed_of(config, step, Dtype::f32))), state);
      state = out.state;
      upstream.push_back(context.to_device(upstream_of(config, step_by, Dtype::f32).y.data()));
      starts.push_back({out.output.data, {}});
    }
    for (std::size_t t = 0; t < starts.size(); ++t) starts[t].gradient = upstream[t];
    tape.backward(starts);
    std::vector<Doubles> result;
    for (std::int64_t i = 0; i < layer.parameters().count(); ++i)
      result.push_back(down(context, layer.parameters().gradient(i)));
    return result;
  };
  const std::vector<Doubles> got = by_steps();
  for (std::size_t p = 0; p < got.size(); ++p)
    CHECK(difference(got[p], right.parameters[p]) <= bound);
  CHECK(by_steps() == got);
}

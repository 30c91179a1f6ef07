#include "bench/device/inputs.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <packrnn/layers/gru.hpp>
#include <packrnn/layers/lstm.hpp>
#include <packrnn/layers/rnn.hpp>
#include <packrnn/runtime/random.hpp>
#include <utility>

namespace packrnn::bench {
namespace {

Tensor repeated_values(Shape shape, Dtype dtype, std::uint64_t seed) {
  constexpr std::int64_t kPeriod = 65537;
  Tensor period = Tensor::empty({kPeriod}, Dtype::f32);
  Generator generator(seed);
  fill_uniform(generator, period, -1.0, 1.0);
  period = convert(period, dtype);
  Tensor values = Tensor::empty(shape, dtype);
  auto* target = static_cast<std::byte*>(values.span().raw());
  for (std::size_t left = values.view().bytes(); left > 0;) {
    const std::size_t part = std::min(left, period.view().bytes());
    std::memcpy(target, period.view().raw(), part);
    target += part;
    left -= part;
  }
  return values;
}

}  // namespace

Recurrent make_layer(const Problem& problem, std::uint64_t seed) {
  const auto with = [&](auto layer) {
    layer.input_size = problem.input;
    layer.hidden_size = problem.hidden;
    layer.dtype = problem.mode.dtype;
    layer.seed = seed;
    return layer;
  };
  if (problem.cell == "gru") return Gru(with(GruOptions{}));
  if (problem.cell == "rnn") return Rnn(with(RnnOptions{}));
  return Lstm(with(LstmOptions{}));
}

ProblemInput::ProblemInput(Context& context, const Problem& problem, std::uint64_t seed) {
  PackedLayoutPtr layout = PackedLayout::make(problem.lengths);
  const Tensor host = repeated_values({layout->total(), problem.input}, problem.mode.dtype, seed);
  packed_ = PackedSequence(context.to_device(host), std::move(layout));
  seq_major_ = pad_packed_sequence(context, packed_);
  batch_major_ = pad_packed_sequence(context, packed_, {.batch_first = true});
  context.synchronize();  // other contexts may use it from here on
}

DeviceInput ProblemInput::view() const {
  return {&packed_.layout(), packed_.data(), seq_major_.view(), batch_major_.view()};
}

std::string ProblemInput::check_packing(Context& context) const {
  const PackedSequence again =
      pack_padded_sequence(context, seq_major_, Lengths(packed_.lengths()));
  const Tensor expected = context.to_host(packed_.data()), got = context.to_host(again.data());
  const bool equal = expected.shape() == got.shape() &&
                     std::memcmp(expected.view().raw(), got.view().raw(), got.view().bytes()) == 0;
  return equal ? "" : "WRONG: padding and packing again gives other values";
}

std::vector<float> host_values(Context& context, const TensorView& view) {
  const Tensor host = context.to_host(view);
  const Tensor values = host.dtype() == Dtype::f32 ? Tensor{} : convert(host, Dtype::f32);
  const auto span = (values.defined() ? values : host).view().values<float>();
  return {span.begin(), span.end()};
}

}  // namespace packrnn::bench

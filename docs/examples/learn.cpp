// Learns to say of a sequence whether its first number was positive, on whatever device is there.
// Ends with something else than 0 if it does not learn it.
#include <cstdio>
#include <packrnn/packrnn.hpp>
#include <utility>
#include <vector>

using namespace packrnn;

namespace {

struct Batch {
  PackedSequence numbers;  // [total, 1]
  Tensor answers;          // i64 [N]
};

Batch make_batch(Context& context, Generator& generator) {
  const std::vector<std::int64_t> lengths{6, 1, 4, 3, 5, 2, 6, 4};
  const auto N = static_cast<std::int64_t>(lengths.size());
  Tensor padded = Tensor::empty({N, 6, 1}, Dtype::f32), answers = Tensor::empty({N}, Dtype::i64);
  fill_uniform(generator, padded, -1.0, 1.0);
  for (std::int64_t n = 0; n < N; ++n)
    answers.span().data<std::int64_t>()[n] = padded.view().data<float>()[n * 6] > 0.0F ? 1 : 0;
  return {pack_padded_sequence(context, context.to_device(padded), lengths, {.batch_first = true}),
          context.to_device(answers)};
}

}  // namespace

int main() {
  // [learn]
  Context context;
  Lstm lstm({.input_size = 1, .hidden_size = 8});
  Linear head({.in_features = 8, .out_features = 2});
  lstm.parameters().to(context);  // where they learn; nothing to do on the CPU
  head.parameters().to(context);
  Adam adam({&lstm.parameters(), &head.parameters()}, {.learning_rate = 0.05});

  Generator generator(1);
  double first = 0.0, last = 0.0;
  constexpr int kSteps = 40;
  for (int step = 0; step < kSteps; ++step) {
    Batch batch = make_batch(context, generator);
    adam.zero_gradients();
    Tape tape(context);
    const PackedOutputVariable out = lstm.forward(tape, std::move(batch.numbers));
    const Variable scores = head.forward(tape, reshape(tape, out.state.h, {8, 8}));
    const Variable loss = cross_entropy(tape, scores, batch.answers);
    tape.backward(loss);
    adam.step(context, {.max_norm = 1.0});
    if (step > 0 && step + 1 < kSteps) continue;
    last = context.to_host(loss.value()).values<float>()[0];
    if (step == 0) first = last;
  }
  // [/learn]
  std::printf("on %s: loss %.3f at first, %.3f after %d steps\n", context.device().name().c_str(),
              first, last, kSteps);
  return last < first / 2 ? 0 : 1;
}

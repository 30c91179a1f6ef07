// Streams: a model is fed in pieces, each sequence with its own state, and gives the bits of one
// call over the whole.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <packrnn/packrnn.hpp>
#include <vector>

namespace {

using namespace packrnn;

constexpr std::int64_t kInput = 3, kSteps = 20;

// Steps [begin, begin + steps) of every sequence of a batch [N, T, I].
Tensor cut(const Tensor& batch, std::int64_t begin, std::int64_t steps) {
  Tensor piece = Tensor::empty({batch.size(0), steps, kInput}, Dtype::f32);
  for (std::int64_t n = 0; n < batch.size(0); ++n)
    std::copy_n(batch.values<float>().data() + (n * kSteps + begin) * kInput, steps * kInput,
                piece.values<float>().data() + n * steps * kInput);
  return piece;
}

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() &&
         std::memcmp(a.view().raw(), b.view().raw(), a.view().bytes()) == 0;
}

}  // namespace

int main() {
  Context context;
  const Lstm lstm({.input_size = kInput, .hidden_size = 32, .num_layers = 2, .batch_first = true});
  const std::vector<std::int64_t> lengths = {20, 7, 13};
  Tensor batch = Tensor::empty({3, kSteps, kInput}, Dtype::f32);
  Generator random(5);
  fill_uniform(random, batch, -1.0, 1.0);

  const DenseOutput whole = lstm.forward_padded(context, context.to_device(batch), lengths);

  // [stream]
  // Pieces of 6 steps. A sequence that has ended takes part with length zero: it costs nothing, and
  // its state stays what it was.
  State state;
  for (std::int64_t begin = 0; begin < kSteps; begin += 6) {
    const std::int64_t steps = std::min<std::int64_t>(6, kSteps - begin);
    std::vector<std::int64_t> left;
    for (const std::int64_t length : lengths)
      left.push_back(std::clamp<std::int64_t>(length - begin, 0, steps));
    const Tensor x = context.to_device(cut(batch, begin, steps));
    DenseOutput piece = lstm.forward_padded(context, x, left, {.state = state});
    state = std::move(piece.state);  // stays on the device
  }
  // [/stream]

  const State last = to_host(context, state), expected = to_host(context, whole.state);
  const bool same = same_bits(last.h, expected.h) && same_bits(last.c, expected.c);
  std::printf("h %s and c after pieces of 6 steps: %s as after one call\n",
              state.h.shape().str().c_str(), same ? "the same bits" : "OTHER BITS");
  return same ? 0 : 1;
}

// The example of README.md: uneven sequences in, through a bidirectional LSTM, and out again.

// [quickstart]
#include <cmath>
#include <cstdio>
#include <packrnn/packrnn.hpp>

int main() {
  packrnn::Context context;  // device (a GPU, if there is one), threads, scratch: no globals
  const packrnn::Lstm lstm({.input_size = 1, .hidden_size = 2, .bidirectional = true});

  const auto batch = packrnn::Tensor::from<float>({0.1F, 0.2F, NAN, NAN,    // 2 valid steps
                                                   0.3F, 0.4F, 0.5F, 0.6F,  // 4
                                                   0.7F, NAN, NAN, NAN},    // 1
                                                  {3, 4, 1});               // [N, T, I]
  const auto x = packrnn::pack_padded_sequence(context, context.to_device(batch), {2, 4, 1},
                                               {.batch_first = true});
  const auto [y, state] = lstm.forward(context, x);  // works on 7 rows, not on 12
  const auto padded = packrnn::pad_packed_sequence(context, y, {.batch_first = true});
  const auto out = context.to_host(padded);  // the first call that waits for a GPU

  std::printf("output %s, final h %s\n", out.shape().str().c_str(), state.h.shape().str().c_str());
  for (int n = 0; n < 3; ++n) {
    const float* first_unit = out.values<float>().data() + n * 4 * 4;
    for (int t = 0; t < 4; ++t) std::printf("%8.4f", first_unit[t * 4]);
    std::printf("\n");
  }
}
// [/quickstart]

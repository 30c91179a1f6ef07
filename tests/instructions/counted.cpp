// Two small calls whose instructions instructions.py counts; first prints the instruction set.
//
//   ragged   LSTM, I = 24, H = 64, five sequences of 1 to 20 steps
//   stream   GRU, I = H = 32, 50 steps of one sequence, one call each
#include <cstdio>
#include <cstring>

#include "packrnn/kernels/cpu_target.hpp"
#include "packrnn/layers/gru.hpp"
#include "packrnn/layers/lstm.hpp"
#include "packrnn/layers/packing.hpp"

using namespace packrnn;

// What is counted is what happens inside functions of this name.
extern "C" {
[[gnu::noinline]] void counted_ragged(Context& context, const Lstm& layer,
                                      const PackedSequence& input) {
  (void)layer.forward(context, input);
}
[[gnu::noinline]] void counted_stream(Context& context, const Gru& layer, const Tensor& x) {
  State state;
  for (int step = 0; step < 50; ++step)
    state = layer.forward(context, x.view(), {.state = state}).state;
}
}

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  std::puts(kernels::cpu_target().c_str());
  Context context(Device::cpu(), {.threads = 1});
  // The first call packs the weights and takes scratch memory.
  if (std::strcmp(argv[1], "ragged") == 0) {
    const Lstm layer({.input_size = 24, .hidden_size = 64});
    const Lengths lengths{20, 13, 7, 7, 1};
    const PackedSequence input =
        pack_padded_sequence(context, Tensor::zeros({20, 5, 24}, Dtype::f32), lengths);
    (void)layer.forward(context, input);
    counted_ragged(context, layer, input);
  } else {
    const Gru layer({.input_size = 32, .hidden_size = 32});
    const Tensor x = Tensor::zeros({1, 1, 32}, Dtype::f32);
    (void)layer.forward(context, x.view());
    counted_stream(context, layer, x);
  }
}

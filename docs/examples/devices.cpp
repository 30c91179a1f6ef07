// One program for the CPU and for GPUs: tensors go to the context's device and back, lengths may be
// on the device, and a loop of equal shapes becomes a graph. Everything here runs on the CPU too,
// except the graph.
#include <cstdio>
#include <cstring>
#include <packrnn/packrnn.hpp>

namespace {

using namespace packrnn;

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() &&
         std::memcmp(a.view().raw(), b.view().raw(), a.view().bytes()) == 0;
}

}  // namespace

int main() {
  const Lstm lstm({.input_size = 3, .hidden_size = 32, .num_layers = 2});
  Tensor batch = Tensor::empty({9, 4, 3}, Dtype::f32);  // [T, N, I]
  Generator random(5);
  fill_uniform(random, batch, -1.0, 1.0);

  // [move]
  Context context;  // of cuda:0, or the CPU where there is none; PACKRNN_DEVICE says otherwise
  const Tensor x = context.to_device(batch);
  const DenseOutput y = lstm.forward_padded(context, x, Lengths{9, 2, 5, 7});
  const DenseOutput result = to_host(context, y);  // waits; nothing before it did
  // [/move]

  // [cpu]
  // The same layer on the CPU, at the same time if you like. In f32, the results have the same
  // bits.
  Context cpu(Device::cpu());
  const DenseOutput expected = lstm.forward_padded(cpu, batch, Lengths{9, 2, 5, 7});
  // [/cpu]
  const bool same = same_bits(result.output, expected.output);

  // [lengths]
  // Lengths that a GPU computed stay there: the host does not wait for them.
  const Tensor lengths = context.to_device(Tensor::from<std::int64_t>({9, 2, 5, 7}, {4}));
  const DenseOutput z = lstm.forward_padded(context, x, DeviceLengths{lengths});
  // [/lengths]
  const bool equal = same_bits(to_host(context, z).output, expected.output);

  bool replayed = true;
  if (context.device() != Device::cpu()) {
    // [graph]
    // What is captured runs again as one launch, on what x and lengths hold then.
    Tensor input = context.zeros({9, 4, 3}, Dtype::f32), count = context.zeros({4}, Dtype::i64);
    DenseOutput out;
    Graph graph =
        capture(context, [&] { out = lstm.forward_padded(context, input, DeviceLengths{count}); });
    for (int i = 0; i < 3; ++i) {
      context.copy(batch, input);
      context.copy(lengths, count);
      graph.launch(context);
    }
    // [/graph]
    replayed = same_bits(to_host(context, out).output, expected.output);
  }

  // [second]
  // Two contexts of one GPU are two streams. What one makes and the other uses is ordered by you.
  Context other(context.device());
  other.wait_for(context);  // on the device: x is there when the next call needs it
  const DenseOutput w = lstm.forward_padded(other, x, Lengths{9, 2, 5, 7});
  const DenseOutput home = to_host(other, w);
  context.wait_for(other);  // before x returns its memory
  // [/second]
  const bool shared = same_bits(home.output, expected.output);

  std::printf("%s and cpu: %s; lengths on the device: %s; graph: %s; second stream: %s\n",
              context.device().name().c_str(), same ? "same bits" : "OTHER BITS",
              equal ? "same bits" : "OTHER BITS", replayed ? "same bits" : "OTHER BITS",
              shared ? "same bits" : "OTHER BITS");
  return same && equal && replayed && shared ? 0 : 1;
}

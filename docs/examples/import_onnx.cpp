// Weights of an ONNX model: other gate orders, and a GRU that resets before the product.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <packrnn/packrnn.hpp>
#include <vector>

namespace {

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

}  // namespace

int main() {
  using namespace packrnn;
  Context context(Device::cpu());

  // [lstm]
  // ONNX stacks the gates of an LSTM as i o f c. With one unit, each number below is one gate.
  const Tensor w = Tensor::from<float>({1, 2, 3, 4}, {1, 4, 1});              // [D, 4*H, I]
  const Tensor r = Tensor::from<float>({0.1F, 0.2F, 0.3F, 0.4F}, {1, 4, 1});  // [D, 4*H, H]
  const ImportedWeights lstm = import_onnx_lstm({.w = w, .r = r});
  Lstm layer({.input_size = 1, .hidden_size = 1, .bias = false});
  layer.load(lstm.state);
  // [/lstm]
  std::printf("ONNX i o f c = 1 2 3 4 is here i f g o =");
  const auto gates = layer.parameters().value("weight_ih_l0").values<float>();
  for (const float gate : gates) std::printf(" %g", static_cast<double>(gate));
  std::printf("\n");
  const bool order = std::ranges::equal(gates, std::vector<float>{1, 3, 4, 2});

  // [gru]
  // A GRU says in an attribute where it resets. Carry it over: a layer of the other form takes the
  // same weights without complaint, and is a little wrong everywhere.
  const Tensor gru_w = Tensor::from<float>({0.5F, -0.5F, 1.0F}, {1, 3, 1});  // z r h
  const Tensor gru_r = Tensor::from<float>({0.2F, 0.4F, 0.8F}, {1, 3, 1});
  const Tensor gru_b = Tensor::from<float>({0, 0, 0, 0.1F, 0.2F, 0.3F}, {1, 6});
  const ImportedWeights gru =
      import_onnx_gru({.w = gru_w, .r = gru_r, .b = gru_b, .linear_before_reset = false});
  Gru imported({.input_size = 1, .hidden_size = 1, .reset_after = gru.reset_after});
  imported.load(gru.state);
  // [/gru]

  // One step by hand: x = 1 from h = 0.5.
  const double h = 0.5, z = sigmoid(0.5 + 0.2 * h + 0.1), reset = sigmoid(-0.5 + 0.4 * h + 0.2);
  const double n = std::tanh(1.0 + 0.8 * (reset * h) + 0.3), expected = (1.0 - z) * n + z * h;
  const Tensor x = Tensor::from<float>({1}, {1, 1}), h_0 = Tensor::from<float>({0.5F}, {1, 1});
  const Tensor h_n = imported.forward(context, x, ForwardOptions{.state = {h_0}}).state.h;
  const auto found = static_cast<double>(h_n.values<float>()[0]);
  std::printf("GRU, reset before: h' = %.6f, by hand %.6f\n", found, expected);
  return order && std::abs(found - expected) < 1e-6 ? 0 : 1;
}

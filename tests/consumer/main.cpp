// What a stranger's program does with packrnn, touching every library of it: the same text must
// come out whichever way the library was found.

#include <iostream>
#include <packrnn/packrnn.hpp>
#include <vector>

int main() {
  packrnn::Context context(packrnn::Device::cpu());
  const packrnn::Lstm lstm({.input_size = 2, .hidden_size = 3, .bidirectional = true, .seed = 1});

  const std::vector<float> numbers = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  const auto batch = packrnn::Tensor::from(numbers, {2, 3, 2});
  const std::vector<int> lengths = {1, 3};
  const auto packed = packrnn::pack_padded_sequence(context, batch, lengths, {.batch_first = true});
  const auto [output, state] = lstm.forward(context, packed);

  std::cout << "packed " << packed.data().shape().str() << " output " << output.data().shape().str()
            << " state " << state.h.shape().str() << '\n';
  for (const float value : output.data().values<float>()) {
    std::cout << value << ' ';
  }
  std::cout << '\n';

  try {
    packrnn::pack_padded_sequence(context, batch, std::vector<int>{1, 4}, {.batch_first = true});
  } catch (const packrnn::InvalidArgument& error) {
    std::cout << "refused: " << error.what() << '\n';
    return 0;
  }
  return 1;
}

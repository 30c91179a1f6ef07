#include "packrnn/layers/import.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "packrnn/runtime/expects.hpp"

namespace packrnn {
namespace {

// order[k] is the PyTorch block (LSTM i f g o, GRU r z n) that the other system stores as block k.
using Order = std::span<const std::size_t>;
constexpr std::array<std::size_t, 4> kOnnxLstm{0, 3, 1, 2};
constexpr std::array<std::size_t, 4> kSameLstm{0, 1, 2, 3};
constexpr std::array<std::size_t, 3> kUpdateFirstGru{1, 0, 2};  // ONNX and Keras
constexpr std::array<std::size_t, 1> kRnn{0};

constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();

// A direction's tensors in PyTorch's layout, before they have names.
struct Cell {
  Tensor weight_ih;
  Tensor weight_hh;
  Tensor bias_ih;  // undefined without bias, like bias_hh
  Tensor bias_hh;
  Tensor weight_hr;  // undefined without projection
};

void append(StateDict& state, Cell cell, const ImportPlace& place) {
  const auto add = [&](std::string_view kind, Tensor& tensor) {
    if (tensor.defined())
      state.push_back({fmt::format("{}_l{}{}", kind, place.layer, place.reverse ? "_reverse" : ""),
                       std::move(tensor)});
  };
  add("weight_ih", cell.weight_ih);
  add("weight_hh", cell.weight_hh);
  add("bias_ih", cell.bias_ih);
  add("bias_hh", cell.bias_hh);
  add("weight_hr", cell.weight_hr);
}

void check_layer(std::int64_t layer) { expects(layer >= 0, "layer is {}, expected >= 0", layer); }

// `like` gives the dtype; a negative extent is free.
void check_tensor(std::string_view name, const TensorView& tensor, const TensorView& like,
                  std::initializer_list<std::int64_t> extents) {
  std::string expected;
  for (const std::int64_t extent : extents)
    expected += (expected.empty() ? "" : ", ") + (extent < 0 ? "any" : std::to_string(extent));
  expects(tensor.defined(), "{} is not defined, expected [{}]", name, expected);
  bool fits = tensor.shape().rank() == static_cast<int>(extents.size());
  for (int i = 0; fits && i < tensor.shape().rank(); ++i)
    fits = extents.begin()[i] < 0 || extents.begin()[i] == tensor.size(i);
  expects(fits, "{} is {}, expected [{}]", name, tensor.shape().str(), expected);
  expects(is_floating(tensor.dtype()) && tensor.dtype() == like.dtype(), "{} is {}, expected {}",
          name, name_of(tensor.dtype()),
          is_floating(like.dtype()) ? name_of(like.dtype()) : "a floating dtype");
  expects(tensor.device() == Device::cpu(), "{} lies on {}, expected cpu", name,
          tensor.device().name());
}

// H from the matrix [.., G*H, H] or its transpose, given both extents.
std::int64_t hidden_size(std::string_view name, const TensorView& recurrent, std::int64_t gates_h,
                         std::int64_t H, std::int64_t G) {
  expects(H > 0 && H <= kMax / G && gates_h == G * H,
          "{} is {}, expected {} blocks (gates) of a square matrix", name, recurrent.shape().str(),
          G);
  return H;
}

const std::byte* bytes_of(const TensorView& view) {
  return static_cast<const std::byte*>(view.raw());
}
std::byte* bytes_of(Tensor& tensor) { return static_cast<std::byte*>(tensor.span().raw()); }

// The blocks of the first dimension, put in PyTorch's order; under another shape of equal size.
Tensor reorder(const TensorView& source, Order order, const Shape& shape) {
  Tensor result = Tensor::empty(shape, source.dtype());
  const std::size_t block = source.bytes() / order.size();
  for (std::size_t k = 0; k < order.size() && block > 0; ++k)
    std::memcpy(bytes_of(result) + order[k] * block, bytes_of(source) + k * block, block);
  return result;
}

// [columns, G*H] to [G*H, columns], with the same change of order.
Tensor transpose_and_reorder(const TensorView& source, Order order) {
  const std::int64_t columns = source.size(0);
  const std::int64_t rows = source.size(1);
  const std::size_t unit = size_of(source.dtype());
  Tensor transposed = Tensor::empty(Shape{rows, columns}, source.dtype());
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < columns; ++c)
      std::memcpy(bytes_of(transposed) + static_cast<std::size_t>(r * columns + c) * unit,
                  bytes_of(source) + static_cast<std::size_t>(c * rows + r) * unit, unit);
  return reorder(transposed, order, Shape{rows, columns});
}

ImportedWeights import_onnx(const OnnxWeights& weights, Order order, std::int64_t layer) {
  check_layer(layer);
  const auto G = static_cast<std::int64_t>(order.size());
  const TensorView& w = weights.w;
  const TensorView& r = weights.r;
  if (weights.p.defined())
    throw Unsupported(
        fmt::format("p {}: peephole connections are not supported", weights.p.shape().str()));
  check_tensor("r", r, r, {-1, -1, -1});
  const std::int64_t D = r.size(0);
  expects(D == 1 || D == 2, "r is {}, expected 1 or 2 directions first", r.shape().str());
  const std::int64_t H = hidden_size("r", r, r.size(1), r.size(2), G);
  check_tensor("w", w, r, {D, G * H, -1});
  expects(w.size(2) > 0, "w is {}, expected at least one input", w.shape().str());
  if (weights.b.defined()) check_tensor("b", weights.b, r, {D, 2 * G * H});

  ImportedWeights result;
  for (std::int64_t d = 0; d < D; ++d) {
    const auto direction = [d](const TensorView& all) {
      return all.rows(d, d + 1).reshape(all.shape().from(1));
    };
    Cell cell;
    cell.weight_ih = reorder(direction(w), order, w.shape().from(1));
    cell.weight_hh = reorder(direction(r), order, r.shape().from(1));
    if (weights.b.defined()) {
      const TensorView b = direction(weights.b);
      cell.bias_ih = reorder(b.rows(0, G * H), order, Shape{G * H});
      cell.bias_hh = reorder(b.rows(G * H, 2 * G * H), order, Shape{G * H});
    }
    append(result.state, std::move(cell), {layer, d == 1});
  }
  return result;
}

// `two_biases`: the bias is [2, G*H] instead of [G*H].
ImportedWeights import_keras(const KerasWeights& weights, Order order, bool two_biases,
                             const ImportPlace& place) {
  check_layer(place.layer);
  const auto G = static_cast<std::int64_t>(order.size());
  const TensorView& recurrent = weights.recurrent_kernel;
  check_tensor("recurrent_kernel", recurrent, recurrent, {-1, -1});
  const std::int64_t H =
      hidden_size("recurrent_kernel", recurrent, recurrent.size(1), recurrent.size(0), G);
  check_tensor("kernel", weights.kernel, recurrent, {-1, G * H});
  expects(weights.kernel.size(0) > 0, "kernel is {}, expected at least one input",
          weights.kernel.shape().str());

  Cell cell;
  if (weights.bias.defined()) {
    const TensorView& bias = weights.bias;
    if (two_biases) {
      check_tensor("bias", bias, recurrent, {2, G * H});
      cell.bias_ih = reorder(bias.rows(0, 1).reshape(Shape{G * H}), order, Shape{G * H});
      cell.bias_hh = reorder(bias.rows(1, 2).reshape(Shape{G * H}), order, Shape{G * H});
    } else {
      check_tensor("bias", bias, recurrent, {G * H});
      cell.bias_ih = reorder(bias, order, Shape{G * H});
      cell.bias_hh = Tensor::zeros(Shape{G * H}, bias.dtype());
    }
  }
  cell.weight_ih = transpose_and_reorder(weights.kernel, order);
  cell.weight_hh = transpose_and_reorder(recurrent, order);
  ImportedWeights result;
  append(result.state, std::move(cell), place);
  return result;
}

std::int64_t gates(CudnnMode mode) {
  switch (mode) {
    case CudnnMode::lstm:
      return 4;
    case CudnnMode::gru:
      return 3;
    case CudnnMode::rnn:
      return 1;
  }
  throw InvalidArgument(fmt::format("mode is {}, not a CudnnMode", static_cast<int>(mode)));
}

// Equal pieces one below the other: [rows, ...] each gives [count * rows, ...].
Tensor stack(std::span<const TensorView> pieces) {
  const Shape& piece = pieces.front().shape();
  Tensor result =
      Tensor::empty(piece.from(1).prepend(static_cast<std::int64_t>(pieces.size()) * piece[0]),
                    pieces.front().dtype());
  const std::size_t bytes = pieces.front().bytes();
  for (std::size_t k = 0; k < pieces.size(); ++k)
    std::memcpy(bytes_of(result) + k * bytes, bytes_of(pieces[k]), bytes);
  return result;
}

}  // namespace

ImportedWeights import_onnx_lstm(const OnnxWeights& weights, std::int64_t layer) {
  return import_onnx(weights, kOnnxLstm, layer);
}

ImportedWeights import_onnx_gru(const OnnxWeights& weights, std::int64_t layer) {
  ImportedWeights result = import_onnx(weights, kUpdateFirstGru, layer);
  result.reset_after = weights.linear_before_reset;
  return result;
}

ImportedWeights import_onnx_rnn(const OnnxWeights& weights, std::int64_t layer) {
  return import_onnx(weights, kRnn, layer);
}

ImportedWeights import_keras_lstm(const KerasWeights& weights, const ImportPlace& place) {
  return import_keras(weights, kSameLstm, false, place);
}

ImportedWeights import_keras_gru(const KerasWeights& weights, const ImportPlace& place) {
  ImportedWeights result = import_keras(weights, kUpdateFirstGru, weights.reset_after, place);
  result.reset_after = weights.reset_after;
  return result;
}

ImportedWeights import_keras_rnn(const KerasWeights& weights, const ImportPlace& place) {
  return import_keras(weights, kRnn, false, place);
}

ImportedWeights import_cudnn_layer(const CudnnLayer& weights, const ImportPlace& place) {
  check_layer(place.layer);
  const std::int64_t G = gates(weights.mode);
  const auto count = static_cast<std::size_t>(2 * G);
  const bool projection = weights.mode == CudnnMode::lstm && weights.matrices.size() == count + 1;
  expects(weights.matrices.size() == count || projection, "{} matrices, expected {}{}",
          weights.matrices.size(), count,
          weights.mode == CudnnMode::lstm ? " (9 with projection)" : "");
  expects(weights.biases.empty() || weights.biases.size() == count, "{} biases, expected 0 or {}",
          weights.biases.size(), count);

  const TensorView& first = weights.matrices.front();
  check_tensor("matrices[0]", first, first, {-1, -1});
  const std::int64_t H = first.size(0);
  const std::int64_t I = first.size(1);
  expects(H > 0 && I > 0 && H <= kMax / G, "matrices[0] is {}, expected [H, I]",
          first.shape().str());
  std::int64_t P = H;
  if (projection) {
    const TensorView& last = weights.matrices.back();
    check_tensor(fmt::format("matrices[{}]", count), last, first, {-1, H});
    P = last.size(0);
    expects(P > 0 && P < H, "matrices[{}] is {}, expected a projection to less than {}", count,
            last.shape().str(), H);
  }
  const auto half = static_cast<std::size_t>(G);
  for (std::size_t k = 0; k < count; ++k)
    check_tensor(fmt::format("matrices[{}]", k), weights.matrices[k], first, {H, k < half ? I : P});

  const std::span<const TensorView> matrices(weights.matrices);
  const std::span<const TensorView> biases(weights.biases);
  Cell cell;
  cell.weight_ih = stack(matrices.subspan(0, half));
  cell.weight_hh = stack(matrices.subspan(half, half));
  if (projection) cell.weight_hr = Tensor::copy_of(matrices.back());

  const auto bias = [&](std::size_t begin) {
    for (std::size_t k = begin; k < begin + half; ++k)
      check_tensor(fmt::format("biases[{}]", k), biases[k], first, {H});
    return stack(biases.subspan(begin, half));
  };
  const auto any = [&](std::size_t begin) {
    const auto part = biases.subspan(begin, half);
    return std::any_of(part.begin(), part.end(), [](const TensorView& b) { return b.defined(); });
  };
  if (!biases.empty() && (any(0) || any(half))) {
    cell.bias_ih = any(0) ? bias(0) : Tensor::zeros(Shape{G * H}, first.dtype());
    cell.bias_hh = any(half) ? bias(half) : Tensor::zeros(Shape{G * H}, first.dtype());
  }
  ImportedWeights result;
  append(result.state, std::move(cell), place);
  return result;
}

ImportedWeights import_cudnn(const CudnnWeightSpace& weights) {
  const std::int64_t G = gates(weights.mode);
  const std::int64_t I = weights.input_size;
  const std::int64_t H = weights.hidden_size;
  const std::int64_t L = weights.num_layers;
  const std::int64_t D = weights.bidirectional ? 2 : 1;
  check_tensor("flat", weights.flat, weights.flat, {-1});
  // With sizes below this bound nothing that is computed here can overflow.
  constexpr std::int64_t kLargest = std::int64_t{1} << 24;
  const auto sensible = [](std::string_view name, std::int64_t value, std::int64_t largest) {
    expects(value > 0 && value <= largest, "{} is {}, expected 1..{}", name, value, largest);
  };
  sensible("input_size", I, kLargest);
  sensible("hidden_size", H, kLargest);
  sensible("num_layers", L, 1024);
  const auto matrices = [&](std::int64_t layer) { return G * H * ((layer == 0 ? I : D * H) + H); };
  const std::int64_t all_matrices = D * (matrices(0) + (L - 1) * matrices(1));
  const std::int64_t all_biases = weights.bias ? L * D * 2 * G * H : 0;
  expects(weights.flat.elements() == all_matrices + all_biases,
          "flat has {} elements, expected {} (input_size {}, hidden_size {}, num_layers {}, {} "
          "direction(s), {} bias)",
          weights.flat.elements(), all_matrices + all_biases, I, H, L, D,
          weights.bias ? "with" : "without");

  std::int64_t position = 0;
  std::int64_t bias_position = all_matrices;
  const auto take = [&](std::int64_t& from, const Shape& shape) {
    const std::int64_t begin = std::exchange(from, from + shape.elements());
    return Tensor::copy_of(weights.flat.rows(begin, from).reshape(shape));
  };
  ImportedWeights result;
  for (std::int64_t layer = 0; layer < L; ++layer)
    for (std::int64_t d = 0; d < D; ++d) {
      Cell cell;
      cell.weight_ih = take(position, Shape{G * H, layer == 0 ? I : D * H});
      cell.weight_hh = take(position, Shape{G * H, H});
      if (weights.bias) {
        cell.bias_ih = take(bias_position, Shape{G * H});
        cell.bias_hh = take(bias_position, Shape{G * H});
      }
      append(result.state, std::move(cell), {layer, d == 1});
    }
  return result;
}

}  // namespace packrnn

#include "packrnn/layers/initialize.hpp"

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "packrnn/kernels/recurrent.hpp"
#include "packrnn/runtime/expects.hpp"

namespace packrnn {
namespace {

struct Fans {
  std::int64_t out, in;
};

Fans fans(std::string_view initializer, const TensorView& target) {
  expects(target.shape().rank() >= 2, "{}: shape {}, expected two dimensions or more", initializer,
          target.shape());
  return {target.size(0), target.shape().from(1).elements()};
}

double xavier_deviation(std::string_view name, double gain, const TensorView& target) {
  const auto [out, in] = fans(name, target);
  return gain * std::sqrt(2.0 / static_cast<double>(std::max<std::int64_t>(out + in, 1)));
}

double dot(std::span<const double> a, std::span<const double> b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

/// Modified Gram-Schmidt of vectors in rows, each passed over twice: once leaves an error that
/// grows with the condition of the vectors, twice one of rounding.
void orthonormalize(const TensorSpan& vectors) {
  const auto row = [&](std::int64_t i) {
    return vectors.rows(i, i + 1).reshape({vectors.size(1)}).values<double>();
  };
  for (std::int64_t i = 0; i < vectors.size(0); ++i) {
    const std::span<double> v = row(i);
    for (int pass = 0; pass < 2; ++pass)
      for (std::int64_t before = 0; before < i; ++before) {
        const std::span<const double> u = row(before);
        const double along = dot(u, v);
        for (std::size_t j = 0; j < v.size(); ++j) v[j] -= along * u[j];
      }
    const double length = std::sqrt(dot(v, v));
    for (double& x : v) x /= length;
  }
}

bool is_bias(std::string_view name) { return name.starts_with("bias"); }

}  // namespace

Initializer constant(double value) {
  return [value](Generator&, const TensorSpan& target) {
    std::ranges::fill(target.values<double>(), value);
  };
}

Initializer xavier_uniform(double gain) {
  return [gain](Generator& generator, const TensorSpan& target) {
    const double bound = std::sqrt(3.0) * xavier_deviation("xavier_uniform", gain, target);
    fill_uniform(generator, target, -bound, bound);
  };
}

Initializer xavier_normal(double gain) {
  return [gain](Generator& generator, const TensorSpan& target) {
    fill_normal(generator, target, 0.0, xavier_deviation("xavier_normal", gain, target));
  };
}

Initializer orthogonal(double gain) {
  return [gain](Generator& generator, const TensorSpan& target) {
    const auto [out, in] = fans("orthogonal", target);
    const std::int64_t count = std::min(out, in), length = std::max(out, in);
    Tensor vectors = Tensor::empty({count, length}, Dtype::f64);
    fill_normal(generator, vectors);
    orthonormalize(vectors);
    const std::span<const double> from = std::as_const(vectors).values<double>();
    const std::span<double> to = target.values<double>();
    for (std::int64_t i = 0; i < out; ++i)
      for (std::int64_t j = 0; j < in; ++j)
        to[static_cast<std::size_t>(i * in + j)] =
            gain * from[static_cast<std::size_t>(out <= in ? i * length + j : j * length + i)];
  };
}

Initializer per_block(Initializer each, std::int64_t blocks) {
  expects(blocks >= 1, "blocks is {}, expected 1 or more", blocks);
  return [each = std::move(each), blocks](Generator& generator, const TensorSpan& target) {
    expects(target.shape().rank() >= 1 && target.size(0) % blocks == 0,
            "per_block: shape {} has no {} equal groups of rows", target.shape(), blocks);
    const std::int64_t rows = target.size(0) / blocks;
    for (std::int64_t block = 0; block < blocks; ++block)
      each(generator, target.rows(block * rows, (block + 1) * rows));
  };
}

void initialize(Parameters& parameters, std::string_view name, const Initializer& initializer,
                Generator& generator) {
  Tensor values = Tensor::zeros(parameters.value(name).shape(), Dtype::f64);
  initializer(generator, values);
  parameters.set(name, values);
}

void initialize(Linear& layer, const Initializer& weight, Generator& generator) {
  initialize(layer.parameters(), "weight", weight, generator);
  if (layer.options().bias) initialize(layer.parameters(), "bias", constant(0.0), generator);
}

void initialize(Recurrent& layer, const RecurrentInitializers& initializers, Generator& generator) {
  const std::int64_t gates = initializers.per_gate ? kernels::gates(layer.config().cell) : 1;
  const Initializer zero = constant(0.0), input = per_block(initializers.input, gates),
                    recurrent = per_block(initializers.recurrent, gates);
  Parameters& parameters = layer.parameters();
  for (std::int64_t i = 0; i < parameters.count(); ++i) {
    const std::string& name = parameters.name(i);
    initialize(parameters, name,
               is_bias(name)                   ? zero
               : name.starts_with("weight_ih") ? input
               : name.starts_with("weight_hh") ? recurrent
                                               : initializers.projection,
               generator);
  }
}

void set_forget_bias(Lstm& layer, double value) {
  expects(layer.config().bias, "the forget bias {} is for a layer with bias", value);
  const std::int64_t H = layer.config().hidden_size;
  StateDict state = layer.state_dict();
  for (NamedTensor& item : state) {
    if (!is_bias(item.name)) continue;
    const double share = item.name.starts_with("bias_ih") ? value : 0.0;
    const std::vector<double> block(static_cast<std::size_t>(H), share);
    convert_into(TensorView(block.data(), {H}), item.tensor.span().rows(H, 2 * H));
  }
  layer.load(state);
}

}  // namespace packrnn

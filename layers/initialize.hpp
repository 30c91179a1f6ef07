// Initial values other than a layer's own (PyTorch's defaults), drawn from a Generator.
//
//   initialize(head, xavier_uniform(), generator);                       // and a bias of zeros
//   initialize(lstm, {.recurrent = orthogonal(), .per_gate = true}, generator);
//   set_forget_bias(lstm, 1.0);
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "packrnn/layers/linear.hpp"
#include "packrnn/layers/lstm.hpp"
#include "packrnn/layers/parameters.hpp"
#include "packrnn/layers/recurrent.hpp"
#include "packrnn/runtime/random.hpp"

namespace packrnn {

/// Assigns a f64 tensor of a parameter's shape; the parameter takes the values, rounded to its
/// dtype. A matrix is [fan-out, fan-in], further dimensions belonging to the second.
using Initializer = std::function<void(Generator& generator, const TensorSpan& target)>;

/// Every element.
Initializer constant(double value);
/// Glorot, Bengio: "Understanding the difficulty of training deep feedforward neural networks",
/// AISTATS 2010: U(-a, a), a = gain sqrt(6 / (fan-in + fan-out)), and
/// N(0, 2 gain^2 / (fan-in + fan-out)). Of two dimensions or more (InvalidArgument).
Initializer xavier_uniform(double gain = 1.0);
Initializer xavier_normal(double gain = 1.0);
/// Saxe, McClelland, Ganguli: "Exact solutions to the nonlinear dynamics of learning in deep linear
/// neural networks", ICLR 2014: gain times a matrix whose rows or columns, whichever are fewer, are
/// orthonormal, uniform among those. Of two dimensions or more (InvalidArgument).
Initializer orthogonal(double gain = 1.0);
/// Each of `blocks` equal groups of rows by itself; InvalidArgument for rows that do not divide so.
Initializer per_block(Initializer each, std::int64_t blocks);

/// One parameter. Throws InvalidArgument for a name that is not there.
void initialize(Parameters& parameters, std::string_view name, const Initializer& initializer,
                Generator& generator);
/// The weight; the bias becomes zero.
void initialize(Linear& layer, const Initializer& weight, Generator& generator);

struct RecurrentInitializers {
  Initializer input = xavier_uniform();       // weight_ih of every layer and direction
  Initializer recurrent = orthogonal();       // weight_hh
  Initializer projection = xavier_uniform();  // weight_hr
  /// Every gate's block [H, .] of weight_ih and weight_hh by itself, not [G*H, .] as one matrix.
  bool per_gate = false;
};
/// All weights in the order of parameters(); biases become zero.
void initialize(Recurrent& layer, const RecurrentInitializers& initializers, Generator& generator);

/// Sets the bias of all forget gates, which is the sum of two, to `value`: bias_ih to value,
/// bias_hh to 0; other gates keep theirs. Throws InvalidArgument for a layer without bias.
void set_forget_bias(Lstm& layer, double value);

}  // namespace packrnn

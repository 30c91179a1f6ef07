// Gradients of operations on a tape, on the device under test: against central differences in f64,
// of f32 against f64, and bit for bit on teams of threads. What goes in and comes out is on the
// host.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include "packrnn/layers/tape.hpp"
#include "tests/catch.hpp"
#include "tests/packing_cases.hpp"

namespace packrnn::tests {

/// U(-1, 1), exact in f32.
inline Tensor random_tensor(const Shape& shape, std::uint64_t seed, Dtype dtype = Dtype::f64) {
  Tensor tensor = Tensor::empty(shape, Dtype::f32);
  Random random(seed);
  for (float& value : tensor.values<float>()) value = static_cast<float>(random.number());
  return convert(tensor, dtype);
}

/// The result of a function of tape inputs and, for a fixed random upstream gradient, theirs.
using TapeFunction = std::function<Variable(Tape&, const std::vector<Variable>&)>;
struct Gradients {
  Tensor result;
  std::vector<Tensor> inputs;  // zeros where the result does not depend on it
};
inline Gradients gradients_of(const TapeFunction& function, const std::vector<Tensor>& inputs,
                              int threads = 1) {
  Context context(Device::best(), {.threads = threads});
  Tape tape(context);
  std::vector<Variable> variables;
  for (const Tensor& input : inputs) variables.push_back(tape.input(context.to_device(input)));
  const Variable y = function(tape, variables);
  tape.backward({{y, context.to_device(random_tensor(y.shape(), 4711, y.dtype()))}});
  Gradients result{context.to_host(y.value()), {}};
  for (const Variable& variable : variables)
    result.inputs.push_back(variable.gradient().defined()
                                ? context.to_host(variable.gradient())
                                : Tensor::zeros(variable.shape(), variable.dtype()));
  return result;
}

/// What gradients_of() contracts with its upstream.
inline double contracted(const TapeFunction& function, const std::vector<Tensor>& inputs) {
  Context context;
  Tape tape(context);
  std::vector<Variable> variables;
  for (const Tensor& input : inputs) variables.push_back(tape.constant(context.to_device(input)));
  const Tensor y = context.to_host(function(tape, variables).value());
  const Tensor upstream = random_tensor(y.shape(), 4711);
  double sum = 0.0;
  for (std::size_t i = 0; i < upstream.values<double>().size(); ++i)
    sum += upstream.values<double>()[i] * y.values<double>()[i];
  return sum;
}

/// Checks the gradients of f64 inputs. The error of a central difference of step h is h^2 / 6 times
/// the third derivative, and the rounding of the sum divided by h: with h = 1e-5 both are below
/// 1e-9 for sums of the order of 1 to 10, as those of a test are. Narrower dtypes may be off by
/// their rounding in a sum of `terms` terms of order 1.
inline void check_gradients(const TapeFunction& function, std::vector<Tensor> inputs,
                            std::int64_t terms = 16) {
  constexpr double kStep = 1e-5, kAllowed = 1e-8;
  const Gradients exact = gradients_of(function, inputs);
  for (std::size_t k = 0; k < inputs.size(); ++k) {
    const auto values = inputs[k].values<double>();
    for (std::size_t i = 0; i < values.size(); ++i) {
      CAPTURE(k, i);
      const double here = std::exchange(values[i], values[i] + kStep);
      const double above = contracted(function, inputs);
      values[i] = here - kStep;
      const double below = contracted(function, inputs);
      values[i] = here;
      const double expected = (above - below) / (2.0 * kStep);
      REQUIRE(std::abs(exact.inputs[k].values<double>()[i] - expected) <=
              kAllowed * std::max(1.0, std::abs(expected)));
    }
  }
  // In narrower dtypes, from what the inputs are there; a GPU has those of 16 bits too.
  std::vector<Dtype> narrower = {Dtype::f32};
  if (Device::best() != Device::cpu()) narrower.insert(narrower.end(), {Dtype::f16, Dtype::bf16});
  for (const Dtype dtype : narrower) {
    CAPTURE(dtype);
    std::vector<Tensor> narrow, same;
    for (const Tensor& input : inputs) {
      narrow.push_back(convert(input, dtype));
      same.push_back(convert(narrow.back(), Dtype::f64));
    }
    const Gradients got = gradients_of(function, narrow), expected = gradients_of(function, same);
    const double unit = dtype == Dtype::f32 ? 0x1p-23 : dtype == Dtype::f16 ? 0x1p-10 : 0x1p-7;
    for (std::size_t k = 0; k < inputs.size(); ++k) {
      const Tensor wide = convert(got.inputs[k], Dtype::f64);
      for (std::size_t i = 0; i < wide.values<double>().size(); ++i) {
        CAPTURE(k, i);
        const double want = expected.inputs[k].values<double>()[i];
        REQUIRE(std::abs(wide.values<double>()[i] - want) <=
                static_cast<double>(terms) * unit * std::max(1.0, std::abs(want)));
      }
    }
  }
}

/// CHECKs that results and gradients have the same bits on 1, 2 and 3 threads of the CPU.
inline void check_threads(const TapeFunction& function, const std::vector<Tensor>& inputs) {
  if (Device::best() != Device::cpu()) return;
  const Gradients one = gradients_of(function, inputs);
  for (const int threads : {2, 3}) {
    const Gradients more = gradients_of(function, inputs, threads);
    CHECK(difference(bytes_of(more.result), bytes_of(one.result)) == "");
    for (std::size_t k = 0; k < inputs.size(); ++k)
      CHECK(difference(bytes_of(more.inputs[k]), bytes_of(one.inputs[k])) == "");
  }
}

}  // namespace packrnn::tests

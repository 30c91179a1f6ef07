#include "packrnn/layers/functions.hpp"

#include <memory>
#include <utility>
#include <vector>

#include "packrnn/kernels/activation.hpp"
#include "packrnn/kernels/dropout.hpp"
#include "packrnn/kernels/elementwise.hpp"
#include "packrnn/kernels/pack.hpp"
#include "packrnn/kernels/scatter.hpp"
#include "packrnn/layers/arguments.hpp"
#include "packrnn/runtime/expects.hpp"

namespace packrnn {
namespace {

Tensor like(Context& context, const TensorView& tensor) {
  return context.empty(tensor.shape(), tensor.dtype());
}

Tensor scaled(Context& context, const TensorView& tensor, double factor) {
  Tensor result = like(context, tensor);
  kernels::scale(context, tensor, factor, result);
  return result;
}

Tensor product(Context& context, const TensorView& a, const TensorView& b) {
  Tensor result = like(context, a);
  kernels::multiply(context, a, b, result);
  return result;
}

// a + factor * b, for a factor of 1 or -1.
Variable sum(Tape& tape, const Variable& a, const Variable& b, double factor) {
  expects(a.defined() && b.defined(), "an argument is not defined");
  Tensor value = like(tape.context(), a.value());
  kernels::add_scaled(tape.context(), a.value(), factor, b.value(), value);
  Variable y = tape.result(std::move(value), a.needs_gradient() || b.needs_gradient());
  tape.record(
      y, [factor, da = a.gradient_ptr(), db = b.gradient_ptr()](Context& context, Tensor upstream) {
        if (db) db->add(context, scaled(context, upstream, factor));
        if (da) da->add(context, std::move(upstream));
      });
  return y;
}

Variable activation(Tape& tape, kernels::Activation kind, const Variable& a) {
  expects(a.defined(), "the argument is not defined");
  Tensor value = like(tape.context(), a.value());
  kernels::activate(tape.context(), kind, a.value(), value);
  Variable y = tape.result(std::move(value), a.needs_gradient());
  tape.record(
      y, [kind, da = a.gradient_ptr(), result = y.value_ptr()](Context& context, Tensor gradient) {
        kernels::activate_backward(context, kind, *result, gradient, gradient);
        da->add(context, std::move(gradient));
      });
  return y;
}

// A copy of rows [layout.total(), ...] with dropout.
Tensor dropped(Context& context, const PackedLayout& layout, const kernels::DropoutKey& key,
               double p, const TensorView& a) {
  Tensor result = like(context, a);
  context.copy(a, result);
  if (a.elements() > 0)
    kernels::dropout(context, layout, key, p,
                     result.span().reshape({layout.total(), a.elements() / layout.total()}));
  return result;
}

Variable dropout_rows(Tape& tape, const Variable& a, double p, const PackedLayoutPtr& layout) {
  Context& context = tape.context();
  const kernels::DropoutKey key{context.random().seed(), context.random().draw(), 0};
  Variable y = tape.result(dropped(context, *layout, key, p, a.value()), a.needs_gradient());
  tape.record(y, [=, da = a.gradient_ptr()](Context& c, const Tensor& upstream) {
    da->add(c, dropped(c, *layout, key, p, upstream));
  });
  return y;
}

void expects_probability(double p) { expects(p >= 0.0 && p <= 1.0, "p is {}, expected 0 to 1", p); }

}  // namespace

Variable add(Tape& tape, const Variable& a, const Variable& b) { return sum(tape, a, b, 1.0); }
Variable subtract(Tape& tape, const Variable& a, const Variable& b) {
  return sum(tape, a, b, -1.0);
}

Variable multiply(Tape& tape, const Variable& a, const Variable& b) {
  expects(a.defined() && b.defined(), "an argument is not defined");
  Variable y = tape.result(product(tape.context(), a.value(), b.value()),
                           a.needs_gradient() || b.needs_gradient());
  tape.record(y, [da = a.gradient_ptr(), db = b.gradient_ptr(),
                  first = b.needs_gradient() ? a.value_ptr() : nullptr,
                  second = a.needs_gradient() ? b.value_ptr() : nullptr](Context& context,
                                                                         const Tensor& upstream) {
    if (da) da->add(context, product(context, upstream, *second));
    if (db) db->add(context, product(context, upstream, *first));
  });
  return y;
}

Variable scale(Tape& tape, const Variable& a, double factor) {
  expects(a.defined(), "the argument is not defined");
  Variable y = tape.result(scaled(tape.context(), a.value(), factor), a.needs_gradient());
  tape.record(y, [factor, da = a.gradient_ptr()](Context& context, const Tensor& upstream) {
    da->add(context, scaled(context, upstream, factor));
  });
  return y;
}

Variable relu(Tape& tape, const Variable& a) {
  return activation(tape, kernels::Activation::relu, a);
}
Variable tanh(Tape& tape, const Variable& a) {
  return activation(tape, kernels::Activation::tanh, a);
}
Variable sigmoid(Tape& tape, const Variable& a) {
  return activation(tape, kernels::Activation::sigmoid, a);
}

Variable concat(Tape& tape, std::span<const Variable> inputs) {
  struct Part {
    std::shared_ptr<Gradient> gradient;
    std::int64_t first;
  };
  expects(!inputs.empty(), "inputs is empty, expected one or more");
  std::vector<TensorView> views;
  std::vector<Part> parts;  // that need a gradient
  std::int64_t features = 0;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    expects(inputs[i].defined(), "inputs[{}] is not defined", i);
    expects(inputs[i].shape().rank() >= 1, "inputs[{}] is a scalar: there is nothing to join", i);
    views.push_back(inputs[i].value());
    if (inputs[i].needs_gradient()) parts.push_back({inputs[i].gradient_ptr(), features});
    features += inputs[i].size(-1);
  }
  auto extents = std::vector(views[0].shape().extents().begin(), views[0].shape().extents().end());
  extents.back() = features;
  Tensor value = tape.context().empty(Shape(extents), views[0].dtype());
  kernels::concat_features(tape.context(), views, value);
  Variable y = tape.result(std::move(value), !parts.empty());
  tape.record(y, [parts = std::move(parts)](Context& context, const Tensor& upstream) {
    for (const Part& part : parts) {
      Tensor own = context.empty(part.gradient->shape(), upstream.dtype());
      kernels::copy_columns(context, upstream, part.first, own, 0, own.size(-1));
      part.gradient->add(context, std::move(own));
    }
  });
  return y;
}

Variable columns(Tape& tape, const Variable& a, std::int64_t begin, std::int64_t end) {
  expects(a.defined() && a.shape().rank() >= 1, "the argument has no columns");
  expects(begin >= 0 && begin <= end && end <= a.size(-1),
          "columns [{}, {}) of shape {}: expected a part of 0 to {}", begin, end, a.shape(),
          a.size(-1));
  auto extents = std::vector(a.shape().extents().begin(), a.shape().extents().end());
  extents.back() = end - begin;
  Tensor value = tape.context().empty(Shape(extents), a.dtype());
  kernels::copy_columns(tape.context(), a.value(), begin, value, 0, end - begin);
  Variable y = tape.result(std::move(value), a.needs_gradient());
  tape.record(y, [=, da = a.gradient_ptr()](Context& context, const Tensor& upstream) {
    Tensor whole = context.zeros(da->shape(), upstream.dtype());
    kernels::copy_columns(context, upstream, 0, whole, begin, end - begin);
    da->add(context, std::move(whole));
  });
  return y;
}

Variable reshape(Tape& tape, const Variable& a, const Shape& shape) {
  expects(a.defined(), "the argument is not defined");
  expects(shape.elements() == a.shape().elements(), "shape {} does not have the {} elements of {}",
          shape, a.shape().elements(), a.shape());
  // Values of variables never change, so two of them can share memory.
  Variable y = tape.result(
      Tensor::share(a.value_ptr()->storage(), const_cast<void*>(a.value().raw()), shape, a.dtype()),
      a.needs_gradient());
  tape.record(y, [da = a.gradient_ptr()](Context& context, Tensor upstream) {
    da->add(context, std::move(upstream).reshape(da->shape()));
  });
  return y;
}

Variable gather_rows(Tape& tape, const Variable& table, const TensorView& indices) {
  Context& context = tape.context();
  expects(table.defined() && table.shape().rank() >= 1, "table has no rows");
  expects(indices.defined() && indices.shape().rank() == 1, "indices has shape {}, expected [M]",
          indices.shape());
  expects_on_device("indices", indices, context);
  Tensor value = context.empty(table.shape().from(1).prepend(indices.size(0)), table.dtype());
  kernels::gather_rows(context, table.value(), indices, value, 0.0);
  Variable y = tape.result(std::move(value), table.needs_gradient());
  if (!y.needs_gradient()) return y;
  tape.record(y, [kept = copy_on_device(context, indices), dtable = table.gradient_ptr()](
                     Context& c, const Tensor& upstream) {
    Tensor sums = c.zeros(dtable->shape(), upstream.dtype());
    kernels::scatter_add_rows(c, upstream, *kept, sums);
    dtable->add(c, std::move(sums));
  });
  return y;
}

Variable segment_sum(Tape& tape, const Variable& rows, const TensorView& segments,
                     std::int64_t count) {
  Context& context = tape.context();
  expects(rows.defined() && rows.shape().rank() >= 1, "rows has no rows");
  expects(segments.defined() && segments.shape() == Shape{rows.size(0)},
          "segments has shape {}, expected [{}]", segments.shape(), rows.size(0));
  expects_on_device("segments", segments, context);
  expects(count >= 0, "count is {}, expected 0 or more", count);
  Tensor value = context.zeros(rows.shape().from(1).prepend(count), rows.dtype());
  kernels::scatter_add_rows(context, rows.value(), segments, value);
  Variable y = tape.result(std::move(value), rows.needs_gradient());
  if (!y.needs_gradient()) return y;
  tape.record(y, [kept = copy_on_device(context, segments), drows = rows.gradient_ptr()](
                     Context& c, const Tensor& upstream) {
    Tensor own = c.empty(drows->shape(), upstream.dtype());
    kernels::gather_rows(c, upstream, *kept, own, 0.0);
    drows->add(c, std::move(own));
  });
  return y;
}

Variable dropout(Tape& tape, const Variable& a, double p) {
  expects(a.defined() && a.shape().rank() >= 1, "the argument has no features");
  expects_probability(p);
  if (!tape.options().training || p == 0.0) return a;
  // Each row is a sequence of one step.
  const std::int64_t features = a.size(-1);
  const std::int64_t rows = features == 0 ? 0 : a.shape().elements() / features;
  return dropout_rows(
      tape, a, p, PackedLayout::make(std::vector<std::int64_t>(static_cast<std::size_t>(rows), 1)));
}

PackedVariable dropout(Tape& tape, const PackedVariable& a, double p) {
  expects(a.defined(), "the argument is not defined");
  expects_probability(p);
  if (!tape.options().training || p == 0.0) return a;
  return {dropout_rows(tape, a.data, p, a.layout), a.layout};
}

}  // namespace packrnn

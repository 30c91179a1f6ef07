#include "bench/race/training.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <packrnn/layers/safetensors.hpp>
#include <packrnn/layers/tape.hpp>
#include <utility>

#include "bench/device/agreement.hpp"
#include "bench/race/memory.hpp"

namespace packrnn::bench {
namespace {

double largest_of(std::span<const float> values) {
  double largest = 0;
  for (const float value : values) largest = std::max<double>(largest, std::abs(value));
  return largest;
}

std::span<const float> values_of(const Tensor& tensor) { return tensor.view().values<float>(); }

}  // namespace

TrainingBatch::TrainingBatch(Context& context, const RaceWorkload& workload,
                             const std::string& cell)
    : context_(context), workload_(workload), cell_(cell), layer_(make_layer(workload, cell)) {
  const std::int64_t T = workload.steps(), N = std::ssize(workload.lengths);
  x_ = Tensor::empty({T, N, workload.input}, Dtype::f32);
  dy_ = Tensor::empty({T, N, workload.directions() * workload.hidden}, Dtype::f32);
  Generator generator(2);
  fill_uniform(generator, x_, -1.0, 1.0);
  fill_uniform(generator, dy_, -1.0, 1.0);
  const Lengths lengths(workload.lengths);
  dy_ = pad_packed_sequence(context, pack_padded_sequence(context, dy_, lengths));
  packed_ = data(lengths);
  padded_ = data(Lengths(std::vector<std::int64_t>(workload.lengths.size(), T)));

  dx_ = step(context, layer_, packed_);
  Parameters& parameters = layer_.parameters();
  for (std::int64_t i = 0; i < parameters.count(); ++i)
    gradients_.push_back({parameters.name(i), Tensor::copy_of(parameters.gradient(i))});
}

TrainingBatch::Data TrainingBatch::data(const Lengths& lengths) const {
  PackedSequence x = pack_padded_sequence(context_, x_, lengths);
  PackedLayoutPtr layout = x.layout_ptr();
  return {std::move(layout), std::make_shared<const Tensor>(std::move(x).take_data()),
          pack_padded_sequence(context_, dy_, lengths).take_data()};
}

std::shared_ptr<const Gradient> TrainingBatch::step(Context& context, Recurrent& layer,
                                                    const Data& data) {
  Parameters& parameters = layer.parameters();
  parameters.change_values();
  parameters.zero_gradients();
  Tape tape(context);
  // What Tape::input() makes, without a copy of the data.
  const auto gradient = std::make_shared<Gradient>(data.x->shape(), data.x->dtype(), true);
  const PackedVariable x{Variable(data.x, gradient), data.layout};
  tape.backward({{layer.forward(tape, x).output.data, data.dy.view()}});
  return gradient;
}

void TrainingBatch::save(const std::filesystem::path& file) const {
  StateDict state = layer_.state_dict();
  state.push_back({"x", x_.clone()});
  state.push_back({"dy", dy_.clone()});
  state.push_back({"lengths", Tensor::from(std::span<const std::int64_t>(workload_.lengths),
                                           {std::ssize(workload_.lengths)})});
  save_safetensors(file, state);
}

std::int64_t TrainingBatch::memory() const {
  // A context and a layer that have kept nothing from an earlier step.
  Context context(Device::cpu(), {.threads = context_.threads()});
  Recurrent layer = make_layer(workload_, cell_);
  return peak_of([&] { step(context, layer, packed_); });
}

std::vector<Contestant> TrainingBatch::ours() {
  const auto steps = [this](const Data& data) {
    return
        [this, &data](int passes) { return timed(passes, [&] { step(context_, layer_, data); }); };
  };
  return {{"packrnn", "packed", steps(packed_), "reference", memory()},
          {"packrnn", "padded", steps(padded_), "-"}};
}

std::string TrainingBatch::agreement(const std::filesystem::path& output) const {
  std::int64_t count = x_.shape().elements();
  for (const NamedTensor& gradient : gradients_) count += gradient.tensor.shape().elements();
  return compared(read_floats(output, static_cast<std::size_t>(count)), RowOrder::seq_major);
}

std::string TrainingBatch::compared(std::span<const float> got, RowOrder order) const {
  const auto take = [&](std::int64_t count) {
    const auto head = got.first(static_cast<std::size_t>(count));
    got = got.subspan(static_cast<std::size_t>(count));
    return head;
  };
  bool bits = true;
  double largest = 0;
  std::string where;
  const auto count = [&](const std::string& name, const Agreement& agreement,
                         std::span<const float> expected) {
    if (agreement.bits) return;
    bits = false;
    const double part = agreement.largest / largest_of(expected);
    if (part > largest) largest = part, where = name;
  };
  const std::int64_t rows =
      order == RowOrder::packed ? packed_.layout->total() : x_.size(0) * x_.size(1);
  const std::span<const float> dx = values_of(dx_->sum());
  count("x", compare(*packed_.layout, workload_.input, dx, take(rows * workload_.input), order),
        dx);
  const PackedLayoutPtr flat = PackedLayout::make({1});  // the whole tensor is one row
  for (const NamedTensor& gradient : gradients_) {
    const std::span<const float> expected = values_of(gradient.tensor);
    const std::int64_t width = std::ssize(expected);
    count(gradient.name, compare(*flat, width, expected, take(width), RowOrder::packed), expected);
  }
  if (bits) return "bits";
  if (largest <= kAllowed) return fmt::format("{:.1e}", largest);
  return fmt::format("WRONG: {:.1e} of the largest gradient of {}", largest, where);
}

}  // namespace packrnn::bench

#include "bench/race/batch.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <fstream>
#include <packrnn/layers/safetensors.hpp>
#include <packrnn/runtime/error.hpp>

#include "bench/device/agreement.hpp"

namespace packrnn::bench {
namespace {

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

Seconds timed(int passes, const std::function<void()>& pass) {
  pass();
  const double cpu = cpu_seconds(), wall = wall_seconds();
  for (int i = 0; i < passes; ++i) pass();
  return {wall_seconds() - wall, cpu_seconds() - cpu};
}

std::vector<float> read_floats(const std::string& file, std::size_t count) {
  std::vector<float> values(count);
  std::ifstream in(file, std::ios::binary);
  in.read(reinterpret_cast<char*>(values.data()),
          static_cast<std::streamsize>(count * sizeof(float)));
  if (static_cast<std::size_t>(in.gcount()) != count * sizeof(float) || in.peek() != EOF)
    throw FileError(fmt::format("{} does not hold {} numbers", file, count));
  return values;
}

ForwardBatch::ForwardBatch(Context& context, const RaceWorkload& workload, const std::string& cell)
    : context_(context),
      layer_(make_layer(workload, cell)),
      stored_(make_layer(workload, cell, WeightStorage::bf16)) {
  const Lengths lengths(workload.lengths);
  padded_ =
      Tensor::empty({workload.steps(), std::ssize(workload.lengths), workload.input}, Dtype::f32);
  Generator generator(2);
  fill_uniform(generator, padded_, -1.0, 1.0);
  packed_ = pack_padded_sequence(context, padded_, lengths);
  expected_ = context.to_host(layer_.forward(context, packed_).output.data());
}

void ForwardBatch::save(const std::filesystem::path& file) const {
  StateDict state = layer_.state_dict();
  state.push_back({"x", padded_.clone()});
  const auto lengths = packed_.lengths();
  state.push_back({"lengths", Tensor::from(lengths, {std::ssize(lengths)})});
  save_safetensors(file, state);
}

std::vector<Contestant> ForwardBatch::ours() {
  const auto packed = [this](int passes) {
    return timed(passes, [this] { layer_.forward(context_, packed_); });
  };
  const auto padded = [this](int passes) {
    return timed(passes, [this] { layer_.forward(context_, padded_.view()); });
  };
  const auto stored = [this](int passes) {
    return timed(passes, [this] { stored_.forward(context_, packed_); });
  };
  const Tensor y = context_.to_host(stored_.forward(context_, packed_).output.data());
  double largest = 0;
  for (std::int64_t i = 0; i < y.shape().elements(); ++i)
    largest = std::max<double>(
        largest, std::abs(y.view().data<float>()[i] - expected_.view().data<float>()[i]));
  return {{"packrnn", "packed", packed, "reference"},
          {"packrnn", "padded", padded, "-"},
          {"packrnn", kStored, stored, fmt::format("{:.1e}", largest)}};
}

std::string ForwardBatch::agreement(const std::filesystem::path& output) const {
  const PackedLayout& layout = packed_.layout();
  const std::int64_t width = expected_.size(1);
  const auto count = static_cast<std::size_t>(layout.steps() * layout.batch() * width);
  return compare(layout, width, expected_.view().values<float>(), read_floats(output, count),
                 RowOrder::seq_major)
      .text(kAllowed);
}

}  // namespace packrnn::bench

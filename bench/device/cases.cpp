#include "bench/device/cases.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <packrnn/runtime/error.hpp>

namespace packrnn::bench {
namespace {

struct Size2 {
  std::int64_t hidden, batch;
};

constexpr const char* kUniform = "uniform";

/// Lengths from 1 to `steps`, every one as likely: the hardest common mix.
Mix uniform_mix(std::int64_t steps) {
  std::vector<std::int64_t> lengths(static_cast<std::size_t>(steps));
  std::iota(lengths.begin(), lengths.end(), 1);
  return mix_of(kUniform, std::move(lengths), 0, 0);
}

F32Math math_of(const std::string& name) {
  for (const F32Math math : {F32Math::exact, F32Math::tf32x3, F32Math::tf32})
    if (name == name_of(math)) return math;
  throw InvalidArgument(fmt::format("math '{}', expected exact, tf32x3 or tf32", name));
}

Dtype dtype_of(const std::string& name) {
  for (const Dtype dtype : {Dtype::f32, Dtype::f64, Dtype::f16, Dtype::bf16})
    if (name == name_of(dtype)) return dtype;
  throw InvalidArgument(fmt::format("dtype '{}', expected f32, f64, f16 or bf16", name));
}

std::vector<Mode> chosen_modes(const Options& options) {
  std::vector<Mode> modes;
  for (const std::string& dtype : options.dtypes) {
    if (dtype != "f32") {
      modes.push_back({dtype_of(dtype), F32Math::exact});
      continue;
    }
    for (const std::string& math : options.maths) modes.push_back({Dtype::f32, math_of(math)});
  }
  return modes;
}

std::vector<std::string> chosen_cells(const Options& options) {
  if (options.chose_cell) return {options.cell};
  return {"lstm", "gru"};
}

std::vector<Size2> chosen_sizes(const Options& options, bool tiny) {
  if (tiny) return {{32, 3}};
  std::vector<Size2> sizes{{512, 64}, {1024, 32}, {256, 64}, {512, 8}, {512, 256}};
  if (options.quick) sizes.resize(2);
  if (!options.chose_hidden && !options.chose_batch) return sizes;
  if (options.chose_hidden && options.chose_batch) return {{options.hidden, options.batch}};
  std::vector<Size2> changed;
  for (const std::int64_t choice : {std::int64_t{256}, std::int64_t{512}, std::int64_t{1024}})
    changed.push_back(options.chose_hidden ? Size2{options.hidden, choice / 8}
                                           : Size2{choice, options.batch});
  return changed;
}

std::vector<Mix> chosen_mixes(const Options& options, bool tiny) {
  if (!options.lengths_file.empty())
    return {mix_of("your lengths", read_lengths(options.lengths_file), 0, options.batch)};
  if (tiny) return {mix_of(kUniform, {4, 1, 2}, 0, 3)};
  std::vector<Mix> chosen;
  const auto wanted = [&](const std::string& name) {
    const auto& names = options.mixes;
    if (!names.empty()) return std::find(names.begin(), names.end(), name) != names.end();
    return name == "libri100" || name == "ptb";
  };
  if (options.mixes.empty()) chosen.push_back(uniform_mix(1000));
  for (Mix& mix : mixes())
    if (wanted(mix.name)) chosen.push_back(std::move(mix));
  return chosen;
}

}  // namespace

std::string Mode::name() const {
  return dtype == Dtype::f32 ? fmt::format("f32 {}", name_of(math)) : std::string(name_of(dtype));
}

std::int64_t Problem::steps() const { return *std::max_element(lengths.begin(), lengths.end()); }

std::int64_t Problem::tokens() const {
  return std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
}

bool Problem::equal_lengths() const {
  return *std::min_element(lengths.begin(), lengths.end()) == steps();
}

std::string Problem::name() const {
  return fmt::format("{}, {}, H {}, B {}, {}", cell, mix, hidden, batch(), mode.name());
}

std::vector<Problem> device_problems(const Options& options, bool tiny) {
  const std::vector<Mode> modes = chosen_modes(options);
  const std::vector<std::string> cells = chosen_cells(options);
  const auto width = [&](std::int64_t hidden) {
    return options.features > 0 ? options.features : tiny ? std::int64_t{16} : hidden;
  };
  std::vector<Problem> problems;
  const bool all = options.mixes.empty() && options.lengths_file.empty();
  if (all && !options.chose_hidden && !options.chose_batch) {
    const std::int64_t hidden = tiny ? 32 : 768, batch = tiny ? 2 : 16, steps = tiny ? 3 : 1024;
    const BatchLengths lengths(static_cast<std::size_t>(batch), steps);
    for (const std::string& cell : cells)
      for (const Mode& mode : modes)
        problems.push_back({cell, kEqual, width(hidden), hidden, lengths, mode});
  }
  const bool defaults = all && !options.chose_hidden && !options.chose_batch;
  const std::vector<Size2> sizes = chosen_sizes(options, tiny);
  for (std::size_t i = 0; i < sizes.size(); ++i)
    for (const Mix& mix : chosen_mixes(options, tiny)) {
      // Further sizes show how size matters; the first two, how lengths do.
      if (defaults && i >= 2 && mix.name != kUniform) continue;
      const Size2& size = sizes[i];
      const BatchLengths lengths = draw(mix, size.batch, 1, options.seed).front();
      if (*std::max_element(lengths.begin(), lengths.end()) == 0)
        throw InvalidArgument(
            fmt::format("all lengths of {} are 0: there is nothing to run", mix.name));
      for (const std::string& cell : cells)
        for (const Mode& mode : modes) {
          // Half precision is what the target of equal lengths was set in; for mixes, on request.
          if (mode.dtype == Dtype::f16 && all && !options.chose_dtype) continue;
          problems.push_back({cell, mix.name, width(size.hidden), size.hidden, lengths, mode});
        }
    }
  return problems;
}

}  // namespace packrnn::bench

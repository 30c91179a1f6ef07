// A run of training in one .safetensors file, so that it goes on with the same bits.
//
//   TrainingRun run{.models = {{"lstm.", &lstm.parameters()}, {"head.", &head.parameters()}},
//                   .optimizer = &optimizer,
//                   .generator = &context.random(),
//                   .integers = {{"epoch", 0}}};
//   if (std::filesystem::exists(path)) load_checkpoint(path, run);
//   for (std::int64_t& epoch = run.integers["epoch"]; epoch < 10; ++epoch) {
//     ...
//     save_checkpoint(path, run);   // with epoch + 1 in integers, if the epoch is over
//   }
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "packrnn/layers/optimizers.hpp"
#include "packrnn/layers/parameters.hpp"
#include "packrnn/runtime/random.hpp"

namespace packrnn {

/// Borrows everything but the numbers.
struct TrainingRun {
  struct Model {
    std::string prefix;  // of its names in the file, each model another one: "encoder."
    Parameters* parameters = nullptr;
  };
  std::vector<Model> models;
  Optimizer* optimizer = nullptr;  // null: none
  Generator* generator = nullptr;  // null: none
  /// The caller's own: epoch, step, best loss, LossScaler::scale()...
  std::map<std::string, std::int64_t> integers = {};
  std::map<std::string, double> reals = {};
};

/// Writes `model.<prefix><name>`, `optimizer.<name>` (Optimizer::state_dict), `generator` [2] (seed
/// and position), `integers.<name>` and `reals.<name>`, as save_safetensors() writes: `path` has
/// the whole of it or what it had before. For use without training:
/// lstm.load(SafeTensors::open(path), "model.lstm.").
/// Throws FileError; InvalidArgument for a null model or two models that have a name in common.
void save_checkpoint(const std::filesystem::path& path, const TrainingRun& run);

/// Takes everything from such a file; `integers` and `reals` become those of the file. Throws
/// FileError, or InvalidArgument naming what does not fit this run (also what the file has and the
/// run has not), and then nothing has changed.
void load_checkpoint(const std::filesystem::path& path, TrainingRun& run);

}  // namespace packrnn

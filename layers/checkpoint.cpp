#include "packrnn/layers/checkpoint.hpp"

#include <bit>
#include <optional>
#include <string_view>
#include <utility>

#include "packrnn/layers/safetensors.hpp"
#include "packrnn/runtime/expects.hpp"

namespace packrnn {
namespace {

constexpr std::string_view kModel = "model.", kOptimizer = "optimizer.", kGenerator = "generator",
                           kIntegers = "integers.", kReals = "reals.";

void check_models(const TrainingRun& run) {
  for (const TrainingRun::Model& model : run.models)
    expects(model.parameters != nullptr, "the model \"{}\" is null", model.prefix);
}

template <class T>
void put(StateDict& state, std::string_view prefix, const std::map<std::string, T>& numbers) {
  for (const auto& [name, value] : numbers)
    state.push_back({std::string(prefix) + name, Tensor::from({value}, Shape{})});
}

template <class T>
std::map<std::string, T> take(const StateDict& numbers) {
  std::map<std::string, T> result;
  for (const auto& [name, value] : numbers) {
    expects(value.dtype() == kDtypeOf<T> && value.elements() == 1,
            "the number {} is {} {}, expected one {}", name, value.dtype(), value.shape(),
            kDtypeOf<T>);
    result.emplace(name, value.template values<T>()[0]);
  }
  return result;
}

/// What of `all` has a name of the model's, without prefix. The same names with a longer prefix are
/// another model's.
StateDict of_model(const SafeTensors& file, const std::string& prefix, const Parameters& model) {
  StateDict state;
  for (std::int64_t i = 0; i < model.count(); ++i)
    if (const std::string name = prefix + model.name(i); file.contains(name))
      state.push_back({model.name(i), file.tensor(name)});
  return state;
}

/// Throws what loading into the model would throw.
void try_load(const StateDict& state, const std::string& prefix, const Parameters& model) {
  std::vector<Parameters::Declaration> list;
  for (std::int64_t i = 0; i < model.count(); ++i)
    list.push_back({model.name(i), model.value(i).shape()});
  try {
    Parameters(std::move(list), model.dtype()).load(state);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("model \"{}\": {}", prefix, error.what()));
  }
}

Generator generator_of(const SafeTensors& file) {
  expects(file.contains(kGenerator), "the file has no {}, the run has one", kGenerator);
  const Tensor numbers = file.tensor(kGenerator);
  expects(numbers.dtype() == Dtype::i64 && numbers.shape() == Shape{2},
          "{} is {} {}, expected i64 [2]", kGenerator, numbers.dtype(), numbers.shape());
  const auto values = numbers.values<std::int64_t>();
  Generator generator;
  generator.reseed(std::bit_cast<std::uint64_t>(values[0]),
                   std::bit_cast<std::uint64_t>(values[1]));
  return generator;
}

/// Every name of the file belongs to something of the run.
void check_names(const SafeTensors& file, const TrainingRun& run) {
  const auto known = [&run](std::string_view name) {
    if (name == kGenerator) return run.generator != nullptr;
    if (name.starts_with(kOptimizer)) return run.optimizer != nullptr;
    if (!name.starts_with(kModel)) return name.starts_with(kIntegers) || name.starts_with(kReals);
    name.remove_prefix(kModel.size());
    for (const TrainingRun::Model& model : run.models)
      if (name.starts_with(model.prefix) &&
          model.parameters->contains(name.substr(model.prefix.size())))
        return true;
    return false;
  };
  for (const std::string& name : file.names())
    expects(known(name), "the file has {}, which the run has no place for", name);
}

}  // namespace

void save_checkpoint(const std::filesystem::path& path, const TrainingRun& run) {
  check_models(run);
  StateDict state;
  const auto append = [&state](std::string_view prefix, StateDict part) {
    for (NamedTensor& item : part)
      state.push_back({std::string(prefix) + item.name, std::move(item.tensor)});
  };
  for (const TrainingRun::Model& model : run.models)
    append(kModel, model.parameters->state_dict(model.prefix));
  if (run.optimizer != nullptr) append(kOptimizer, run.optimizer->state_dict());
  if (run.generator != nullptr)
    state.push_back({std::string(kGenerator),
                     Tensor::from({std::bit_cast<std::int64_t>(run.generator->seed()),
                                   std::bit_cast<std::int64_t>(run.generator->position())},
                                  Shape{2})});
  put(state, kIntegers, run.integers);
  put(state, kReals, run.reals);
  save_safetensors(path, state);
}

void load_checkpoint(const std::filesystem::path& path, TrainingRun& run) {
  check_models(run);
  const SafeTensors file = SafeTensors::open(path);
  check_names(file, run);
  std::vector<StateDict> models;
  for (const auto& [prefix, parameters] : run.models) {
    models.push_back(of_model(file, std::string(kModel) + prefix, *parameters));
    try_load(models.back(), prefix, *parameters);
  }
  std::optional<Generator> generator;
  if (run.generator != nullptr) generator = generator_of(file);
  auto integers = take<std::int64_t>(file.state_dict(kIntegers));
  auto reals = take<double>(file.state_dict(kReals));

  // The last that can refuse; it takes everything or nothing.
  if (run.optimizer != nullptr) run.optimizer->load(file.state_dict(kOptimizer));
  for (std::size_t i = 0; i < models.size(); ++i) run.models[i].parameters->load(models[i]);
  if (generator) *run.generator = *generator;
  run.integers = std::move(integers);
  run.reals = std::move(reals);
}

}  // namespace packrnn

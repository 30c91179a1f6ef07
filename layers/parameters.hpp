// The named parameters of a layer, in one flat buffer, and their exchange with state dicts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "packrnn/runtime/context.hpp"
#include "packrnn/runtime/random.hpp"
#include "packrnn/runtime/tensor.hpp"

namespace packrnn {

struct NamedTensor {
  std::string name;
  Tensor tensor;
};
/// Names and values in a layer's own order; owns its tensors.
using StateDict = std::vector<NamedTensor>;

struct LoadOptions {
  /// Only entries whose name starts with `prefix` are looked at, with the prefix taken off.
  std::string prefix = "";
  /// Refuse missing and unexpected names. When false they are left alone and reported; a wrong
  /// shape, a name twice, or no name in common never are.
  bool strict = true;
};

/// What a load left alone, in full names (prefix included). Empty after a strict load.
struct LoadReport {
  std::vector<std::string> missing;     // parameters that kept their values
  std::vector<std::string> unexpected;  // entries of the source that no parameter took
};

/// Values of one dtype in one buffer, and, once there was a backward, their gradients in another of
/// the same order, so that an optimizer or an all-reduce sees one array of each.
///
/// They begin in the host's memory, from which layers run on any device. To be trained on a GPU
/// they have to be there: to(). What reads or assigns them by the host (state_dict, load, set,
/// fill_uniform) then waits for the context that they went with, and copies.
class Parameters {
 public:
  struct Declaration {
    std::string name;
    Shape shape;
  };

  Parameters() = default;
  /// Zero-filled, in the order given. Throws InvalidArgument unless `dtype` is floating and the
  /// names differ.
  Parameters(std::vector<Declaration> declarations, Dtype dtype);
  Parameters(Parameters&&) noexcept = default;
  Parameters& operator=(Parameters&&) noexcept = default;
  /// Another handle of the very same parameters, for what may outlive the layer or see it moved: a
  /// tape, an optimizer.
  Parameters shared() const noexcept { return Parameters(state_); }

  /// Moves values and gradients to the context's device, in the order of its stream, on which a
  /// GPU's parameters stay (also when the context is gone): contexts of other streams that use them
  /// are made to wait for it. Optimizers follow at their next step. Nothing to do where they are
  /// there already. Throws OutOfMemory, and then they are where they were.
  void to(Context& context);
  Device device() const noexcept { return state_->values.device(); }

  Dtype dtype() const noexcept { return state_->dtype; }
  std::int64_t count() const noexcept { return std::ssize(state_->entries); }
  const std::string& name(std::int64_t i) const;
  /// Views of values and gradients are where the parameters are, until to() moves them.
  TensorView value(std::int64_t i) const;
  /// By name; throws InvalidArgument naming what exists. Valid as long as this object.
  TensorView value(std::string_view name) const;
  bool contains(std::string_view name) const noexcept;

  /// Changes whenever a value may have changed; what was derived from an older version is stale.
  std::uint64_t version() const noexcept { return state_->version; }

  /// Assigns U(-bound, bound) to every parameter, one draw each, in order.
  void fill_uniform(Generator& generator, double bound);
  /// Assigns one parameter, converting floating dtypes. Throws InvalidArgument on a wrong name,
  /// shape or dtype. `value` may be another parameter of this object.
  void set(std::string_view name, const TensorView& value);

  /// A copy of all values in the host's memory, names with `prefix` before them.
  StateDict state_dict(std::string_view prefix = "") const;
  /// Assigns from `source`, converting floating dtypes. Everything is checked first: missing,
  /// unexpected, duplicate and misshaped entries are listed in one InvalidArgument, and then
  /// nothing has changed.
  LoadReport load(const StateDict& source, const LoadOptions& options = {});

  /// Whether a tape computes gradients of these. At first it does.
  bool trainable() const noexcept { return state_->trainable; }
  void set_trainable(bool trainable) noexcept { state_->trainable = trainable; }

  /// f32, or f64 for f64: what gradients add up in.
  Dtype gradient_dtype() const noexcept;
  /// The gradient of one parameter, of its shape, to which every backward adds. The buffer of
  /// zeros is made at the first call.
  TensorSpan gradient(std::int64_t i);
  TensorSpan gradient(std::string_view name);
  /// All gradients [S], each parameter's at the place of its values in values(); zeros between.
  TensorSpan gradients();
  /// Whether anything asked for gradients so far.
  bool has_gradients() const noexcept { return state_->gradients.defined(); }
  /// Assigns zeros to all gradients there are: before a step's first backward.
  void zero_gradients();

  /// All values [S], each aligned to kAlignment bytes; what lies between them is zero.
  TensorView values() const noexcept { return state_->values; }
  /// On a GPU: what `context` is asked for from here on sees what was done to the values so far.
  void hold_up(Context& context) const;
  /// For an optimizer: changes are announced to whatever was derived from the old values.
  TensorSpan change_values();
  /// The same of one parameter, of its shape.
  TensorSpan change_value(std::int64_t i);

 private:
  struct Entry {
    std::string name;
    Shape shape;
    std::int64_t offset;  // elements into the flat buffers
  };
  struct State {
    std::vector<Entry> entries;
    Tensor values, gradients;
    Dtype dtype = Dtype::f32;
    bool trainable = true;
    std::uint64_t version = 0;
    std::shared_ptr<DeviceQueue> queue;  // of the context they went to; null: in the host's memory
  };

  explicit Parameters(std::shared_ptr<State> state) noexcept : state_(std::move(state)) {}

  /// All values in the host's memory: themselves, or a copy.
  Tensor host_values() const;
  /// Lets `assign` change all values in the host's memory.
  template <class Assign>
  void change_on_host(Assign&& assign);
  std::optional<std::size_t> find(std::string_view name) const noexcept;
  std::size_t index(std::string_view name) const;
  const Entry& entry(std::int64_t i) const;
  static TensorView part(const TensorView& flat, const Entry& entry);
  static TensorSpan part(const TensorSpan& flat, const Entry& entry);
  /// Why `value` cannot be assigned to the parameter, or nothing.
  static std::string mismatch(const Entry& entry, const TensorView& value);
  std::string prefix_hint(const StateDict& source) const;

  std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace packrnn

// The named parameters of a layer, in one flat buffer, and their exchange with state dicts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

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

  Dtype dtype() const noexcept { return dtype_; }
  std::int64_t count() const noexcept { return static_cast<std::int64_t>(entries_.size()); }
  const std::string& name(std::int64_t i) const;
  TensorView value(std::int64_t i) const;
  /// By name; throws InvalidArgument naming what exists. Valid as long as this object.
  TensorView value(std::string_view name) const;
  bool contains(std::string_view name) const noexcept;

  /// Changes whenever a value may have changed; what was derived from an older version is stale.
  std::uint64_t version() const noexcept { return version_; }

  /// Assigns U(-bound, bound) to every parameter, one draw each, in order.
  void fill_uniform(Generator& generator, double bound);
  /// Assigns one parameter, converting floating dtypes. Throws InvalidArgument on a wrong name,
  /// shape or dtype. `value` may be another parameter of this object.
  void set(std::string_view name, const TensorView& value);

  /// A copy of all values, names with `prefix` before them.
  StateDict state_dict(std::string_view prefix = "") const;
  /// Assigns from `source`, converting floating dtypes. Everything is checked first: missing,
  /// unexpected, duplicate and misshaped entries are listed in one InvalidArgument, and then
  /// nothing has changed.
  LoadReport load(const StateDict& source, const LoadOptions& options = {});

 private:
  struct Entry {
    std::string name;
    Shape shape;
    std::int64_t offset;  // elements into the flat buffer
  };

  std::optional<std::size_t> find(std::string_view name) const noexcept;
  std::size_t index(std::string_view name) const;
  TensorSpan span(const Entry& entry);
  TensorView view(const Entry& entry) const;
  /// Why `value` cannot be assigned to the parameter, or nothing.
  static std::string mismatch(const Entry& entry, const TensorView& value);
  std::string prefix_hint(const StateDict& source) const;

  std::vector<Entry> entries_;
  Tensor flat_;  // [sum of elements], each parameter aligned to kAlignment
  Dtype dtype_ = Dtype::f32;
  std::uint64_t version_ = 0;
};

}  // namespace packrnn

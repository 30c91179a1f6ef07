// Remembers which algorithm was chosen for which problem, and why, so that the choice is made once
// and can be asked for (Context::explain).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <string>
#include <string_view>

namespace packrnn {

/// What a choice depends on: all of it. `op` is a string literal (it is not copied); unused dims
/// are 0.
struct PlanKey {
  std::string_view op;
  std::array<std::int64_t, 6> dims{};

  friend bool operator==(const PlanKey&, const PlanKey&) = default;
};

struct Plan {
  int algorithm = 0;                // meaning belongs to the op
  std::string reason;               // one line: what runs, and why nothing faster does
  std::array<int, 5> parameters{};  // of the algorithm
};

/// Least recently used plans are dropped beyond `capacity`, so a server that sees every shape does
/// not grow (at least one is kept). References stay valid until the next find().
class PlanCache {
 public:
  explicit PlanCache(std::size_t capacity = 64) : capacity_(capacity) {}

  /// The plan for `key`, made by `choose` the first time. If `choose` throws, nothing changes.
  const Plan& find(const PlanKey& key, const std::function<Plan()>& choose);
  std::size_t size() const noexcept { return entries_.size(); }
  /// One line per plan, the most recently used first: "op [dims]: reason".
  std::string explain() const;

 private:
  struct Entry {
    PlanKey key;
    Plan plan;
  };
  std::size_t capacity_;
  std::list<Entry> entries_;  // front: most recently used; few, so a linear search is the index
};

}  // namespace packrnn

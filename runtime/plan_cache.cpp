#include "packrnn/runtime/plan_cache.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <span>

namespace packrnn {

const Plan& PlanCache::find(const PlanKey& key, const std::function<Plan()>& choose) {
  const auto known = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& entry) { return entry.key == key; });
  if (known != entries_.end()) {
    entries_.splice(entries_.begin(), entries_, known);
  } else {
    entries_.push_front({key, choose()});
    while (entries_.size() > std::max<std::size_t>(capacity_, 1)) entries_.pop_back();
  }
  return entries_.front().plan;
}

std::string PlanCache::explain() const {
  std::string text;
  for (const Entry& entry : entries_) {
    const auto& dims = entry.key.dims;
    std::size_t used = dims.size();
    while (used > 0 && dims[used - 1] == 0) --used;
    fmt::format_to(std::back_inserter(text), "{} [{}]: {}\n", entry.key.op,
                   fmt::join(std::span(dims).first(used), ", "), entry.plan.reason);
  }
  return text;
}

}  // namespace packrnn

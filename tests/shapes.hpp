// How large the shapes of a test are. Small ones run the same lines on fewer units, steps, rows and
// combinations: in builds with a sanitizer, and where PACKRNN_SHAPES=small asks for them, which
// tests/simt/schedules.py does.
#pragma once

#include <cstdlib>
#include <string_view>
#include <utility>

#include "tests/sanitized.hpp"

namespace packrnn::tests {

inline bool small_shapes() {
  static const bool small = [] {
    const char* const wanted = std::getenv("PACKRNN_SHAPES");
    return kSanitized || (wanted != nullptr && std::string_view(wanted) == "small");
  }();
  return small;
}

template <class T>
T full_or_small(T full, T small) {
  return small_shapes() ? std::move(small) : std::move(full);
}

/// Whether a combination is not the one in n. Which one that is follows from the schedule's seed,
/// so that many seeds run them all.
inline bool left_out(unsigned combination, unsigned n) {
  if (kTsan) n = 2 * n + 1;  // 5, 7, 11, 23
  const char* const seed = std::getenv("PACKRNN_SIMT_SEED");
  const auto first = seed != nullptr ? std::strtoul(seed, nullptr, 10) : 0;
  return small_shapes() && (combination + first) % n != 0;
}

/// With small shapes, runs one in n combinations of what the case GENERATEs above; cases differ in
/// which. n is 2, 3, 5 or 11, without a factor in common with the numbers of values: so each value
/// meets each other sooner or later.
#define PACKRNN_ONE_IN(n)                 \
  static unsigned combination = __LINE__; \
  if (::packrnn::tests::left_out(combination++, n)) return

}  // namespace packrnn::tests

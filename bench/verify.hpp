// Before speeds are compared, results are.
#pragma once

#include <packrnn/layers/recurrent.hpp>
#include <stdexcept>

#include "bench/workload.hpp"

namespace packrnn::bench {

/// Two ways of computing the same numbers did not agree to the last bit.
class Mismatch : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Runs every batch both ways and compares bits. In one direction, the packed output must be what
/// the padded run has at valid positions. With both, a padded run is no yardstick (its reverse
/// direction starts in the padding), so the shortest, middle and longest sequence are run alone
/// instead. Throws Mismatch naming the first difference.
void verify(Context& context, const Recurrent& layer, const Workload& workload);

}  // namespace packrnn::bench

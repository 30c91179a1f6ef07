#include <utility>

#include "tests/catch.hpp"

namespace packrnn::tests {
namespace {

bool skipped = false;

}  // namespace

void mark_skipped() { skipped = true; }

bool take_skipped() { return std::exchange(skipped, false); }

}  // namespace packrnn::tests

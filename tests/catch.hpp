#pragma once

// The only file of this project that includes Catch2: version 3 where it is installed, else 2.
// It adds PACKRNN_SKIP, because version 2 cannot say "skipped".

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
#else
#define CATCH_CONFIG_ENABLE_BENCHMARKING 0
#include <catch2/catch.hpp>
namespace Catch {
using namespace Catch::Matchers;  // version 3 keeps matchers and Approx in these places
}
#endif

namespace packrnn::tests {

/// Notes that the test case now running cannot run on this machine. If that holds for every case
/// that ran, the executable ends with 77 and CTest says Skipped.
void mark_skipped();
/// Whether it was called since this was last asked.
bool take_skipped();

}  // namespace packrnn::tests

/// Leaves the running test case, saying why: PACKRNN_SKIP("no CUDA device");
#define PACKRNN_SKIP(reason)          \
  do {                                \
    WARN("skipped: " << (reason));    \
    ::packrnn::tests::mark_skipped(); \
    return;                           \
  } while (false)

// In builds with a sanitizer, that it sees through the engine: out of bounds with AddressSanitizer,
// races within and between blocks with ThreadSanitizer, and nothing in kernels that are right,
// which is what all the other tests show. A finding ends the process, so each is one of its own.
#include <vector>

#include "tests/catch.hpp"
#include "tests/sanitized.hpp"
#include "tests/simt/engine_fixture.hpp"

namespace packrnn::tests {
namespace {

using namespace kernels::cuda;
using Catch::Contains;

[[maybe_unused]] void expect_finding(const std::string& name, const std::string& finding) {
  INFO(name);
  // The schedule decides which accesses meet, so some may need more than one.
  std::string output;
  for (int seed = 1; seed <= 6 && output.find(finding) == std::string::npos; ++seed)
    output = output_of_case(name, "PACKRNN_SIMT_SEED=" + std::to_string(seed));
  CHECK_THAT(output, Contains(finding) && Contains("planted_cases.cpp:"));
  CHECK_THAT(output, !Contains("\nexit 0"));
}

TEST_CASE("AddressSanitizer finds accesses out of bounds and names the thread") {
#if defined(PACKRNN_ASAN)
  for (const char* name :
       {"global_oob", "dynamic_oob", "static_oob", "vector_oob", "copy_oob", "returned_block"}) {
    expect_finding(name, "ERROR: AddressSanitizer");
    CHECK_THAT(output_of_case(name), Contains("simt: block (") && Contains("'oob_kernel'"));
  }
#else
  PACKRNN_SKIP("no AddressSanitizer in this build");
#endif
}

TEST_CASE("ThreadSanitizer finds races within blocks and between them") {
#if defined(PACKRNN_TSAN)
  for (const char* name :
       {"missing_barrier", "second_barrier", "missing_grid_barrier", "relaxed_flag",
        "plain_counter", "plain_mailbox", "warp_without_barrier", "copy_without_barrier",
        "missing_cluster_barrier", "missing_mbarrier_wait", "mbarrier_not_made_known",
        "arrive_does_not_order"})
    expect_finding(name, "WARNING: ThreadSanitizer: data race");
#else
  PACKRNN_SKIP("no ThreadSanitizer in this build");
#endif
}

}  // namespace
}  // namespace packrnn::tests

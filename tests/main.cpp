// The main of every test executable. It ends with 0 (all passed), 1 (something failed; Catch2
// version 2 would return the number of failures, which can wrap to 0 or look like 77) or
// 77 (every case that ran called PACKRNN_SKIP; CTest reports it as Skipped).

#if !__has_include(<catch2/catch_all.hpp>)
#define CATCH_CONFIG_RUNNER
#endif
#include <cstdio>

#include "packrnn/runtime/device.hpp"
#include "tests/catch.hpp"

namespace packrnn::tests {
namespace {

int cases_run = 0;
int cases_skipped = 0;

#if __has_include(<catch2/catch_all.hpp>)
using ListenerBase = Catch::EventListenerBase;
#else
using ListenerBase = Catch::TestEventListenerBase;
#endif

class SkipCounter : public ListenerBase {
 public:
  using ListenerBase::ListenerBase;

  void testCaseEnded(const Catch::TestCaseStats& stats) override {
    ListenerBase::testCaseEnded(stats);
    ++cases_run;
    if (take_skipped()) ++cases_skipped;
  }
};

}  // namespace

CATCH_REGISTER_LISTENER(SkipCounter)

}  // namespace packrnn::tests

int main(int argc, char** argv) {
  constexpr int kSkipped = 77;
  const packrnn::Device device = packrnn::Device::best();
  if (device.type == packrnn::DeviceType::cuda && device.index >= packrnn::Device::cuda_count()) {
    std::fprintf(stderr, "skipped: %s\n", packrnn::Device::cuda_status().c_str());
    return kSkipped;
  }
  if (Catch::Session().run(argc, argv) != 0) {
    return 1;
  }
  using packrnn::tests::cases_run;
  using packrnn::tests::cases_skipped;
  return cases_run > 0 && cases_skipped == cases_run ? kSkipped : 0;
}

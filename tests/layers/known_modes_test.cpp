// B58: one context that serves calls of many shapes and flags in turn gives each of them what a
// context of its own would.

#include <memory>
#include <random>

#include "tests/layers/layer_fixture.hpp"

using namespace packrnn;
using namespace packrnn::tests;

TEST_CASE("B58: alternating shapes and flags in one context") {
  const Kind kind = GENERATE(from_range(kKinds));
  const int threads = GENERATE(from_range(teams({1, 2})));
  const std::vector<Counts> batches =
      on_device()
          ? std::vector<Counts>{{9, 9}, {9, 8}, {2, 5, 1}}
          : std::vector<Counts>{{75, 75}, {75, 74}, {74, 74}, {1, 1}, {3}, {2, 5, 1}, {4, 4, 4, 4}};
  struct Case {
    ref::Config config;
    Recurrent layer;
    Batch batch;
    std::vector<SequenceBits> expected;
  };
  std::vector<Case> cases;
  unsigned combination = 0;
  for (const Dtype dtype : layer_dtypes())
    for (const bool bias : {true, false})
      for (const bool bidirectional : {true, false})
        for (const std::int64_t num_layers : {1, 2})
          for (const Counts& lengths : batches) {
            if (left_out(combination++, 5)) continue;
            const ref::Config config = config_of(kind, 6, 12, num_layers, bidirectional, bias);
            Case item{config,
                      make_layer(config, random_parameters(config), {.dtype = dtype}),
                      random_batch(config, lengths),
                      {}};
            Context own(Device::best(), {.threads = threads});
            item.expected = all_bits(run(own, item.layer, config, item.batch));
            cases.push_back(std::move(item));
          }

  Context shared(Device::best(), {.threads = threads});
  std::mt19937 generator(58);
  for (int round = 0; round < (full_or_small(on_device() ? 50 : 400, on_device() ? 10 : 100));
       ++round) {
    const Case& item = cases[generator() % cases.size()];
    const auto got = all_bits(run(shared, item.layer, item.config, item.batch));
    INFO(describe(item.config) << " round " << round);
    CHECK(first_difference(got, item.expected) == -1);
  }
}

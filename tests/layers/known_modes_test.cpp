// B58: one context that serves calls of many shapes and flags in turn gives each of them what a
// context of its own would.

#include <memory>
#include <random>

#include "tests/layers/layer_fixture.hpp"

using namespace packrnn;
using namespace packrnn::tests;

TEST_CASE("B58: alternating shapes and flags in one context") {
  const Kind kind = GENERATE(from_range(kKinds));
  const int threads = GENERATE(1, 2);
  struct Case {
    ref::Config config;
    Recurrent layer;
    Batch batch;
    std::vector<SequenceBits> expected;
  };
  std::vector<Case> cases;
  for (const Dtype dtype : {Dtype::f32, Dtype::f64})
    for (const bool bias : {true, false})
      for (const bool bidirectional : {true, false})
        for (const std::int64_t num_layers : {1, 2})
          for (const Counts& lengths :
               {Counts{75, 75}, Counts{75, 74}, Counts{74, 74}, Counts{1, 1}, Counts{3},
                Counts{2, 5, 1}, Counts{4, 4, 4, 4}}) {
            const ref::Config config = config_of(kind, 6, 12, num_layers, bidirectional, bias);
            Case item{config,
                      make_layer(config, random_parameters(config), {.dtype = dtype}),
                      random_batch(config, lengths),
                      {}};
            Context own(Device::cpu(), {.threads = threads});
            item.expected = all_bits(run(own, item.layer, config, item.batch));
            cases.push_back(std::move(item));
          }

  Context shared(Device::cpu(), {.threads = threads});
  std::mt19937 generator(58);
  for (int round = 0; round < (kSanitized ? 100 : 400); ++round) {
    const Case& item = cases[generator() % cases.size()];
    const auto got = all_bits(run(shared, item.layer, item.config, item.batch));
    INFO(describe(item.config) << " round " << round);
    CHECK(first_difference(got, item.expected) == -1);
  }
}

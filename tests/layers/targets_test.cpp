// Every instruction set that this CPU has and the kernels are compiled for, not only the best one:
// a user's CPU may be another.

#include <vector>

#include "tests/kernels/cpu_targets.hpp"
#include "tests/layers/layer_fixture.hpp"

using namespace packrnn;
using namespace packrnn::tests;

TEST_CASE("every instruction set equals the reference and keeps contract C1") {
  const Kind kind = GENERATE(from_range(kKinds));
  const Dtype dtype = GENERATE(Dtype::f32, Dtype::f64);
  std::size_t targets = 0;
  for_each_cpu_target([&](const char* target) {
    CAPTURE(target);
    ++targets;
    for (const std::int64_t H : {3, 16, 33}) {
      const ref::Config config = config_of(kind, 5, H, 2, true);
      const std::vector<ref::Parameter> parameters = random_parameters(config);
      const Recurrent layer = make_layer(config, parameters, {.dtype = dtype});
      const Batch batch =
          random_batch(config, lengths_with_batch_sizes({53, 49, 14, 7, 6, 5, 4, 3, 2, 1, 1}));
      Context one(Device::cpu(), {.threads = 1}), three(Device::cpu(), {.threads = 3});
      const Run result = run(one, layer, config, batch);
      check_run(config, parameters, batch, result);
      const std::vector<SequenceBits> bits = all_bits(result);
      CHECK(first_difference(all_bits(run(three, layer, config, batch)), bits) == -1);
      for (const std::size_t n : {0, 20, 52})
        CHECK((bits_of(run(one, layer, config, {batch[n]}), 0) == bits[n]));
    }
  });
  CHECK(targets >= 1);
#if defined(__x86_64__)
  // Every x86-64 CPU has the portable code, and all that can run this in CI have more.
  CHECK(targets >= 2);
#endif
}

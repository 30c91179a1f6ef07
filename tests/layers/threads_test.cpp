// One loaded model, many threads: forward() is const, and each thread brings its own Context.

#include <atomic>
#include <latch>
#include <random>
#include <thread>

#include "tests/layers/layer_fixture.hpp"

using namespace packrnn;
using namespace packrnn::tests;

namespace {

struct Job {
  Batch batch;
  Counts ids;
  std::vector<SequenceBits> expected;
};

// Catch's assertions are not thread-safe, so threads count their failures.
int failures(const Recurrent& layer, const ref::Config& config,
             const std::vector<std::vector<Job>>& work, int threads_each, bool training) {
  std::atomic<int> wrong = 0;
  std::latch start(static_cast<std::ptrdiff_t>(work.size()));
  std::vector<std::thread> threads;
  for (const std::vector<Job>& jobs : work)
    threads.emplace_back([&, threads_each] {
      try {
        Context context(Device::best(), {.threads = threads_each, .seed = 5});
        start.arrive_and_wait();
        for (const Job& job : jobs) {
          context.random().reseed(5);
          const Run got = run(context, layer, config, job.batch, {.training = training});
          if (all_bits(got) != job.expected) ++wrong;
        }
      } catch (...) {
        ++wrong;
      }
    });
  for (std::thread& thread : threads) thread.join();
  return wrong;
}

}  // namespace

TEST_CASE("B84: eight threads may share one model, the first call included") {
  const Kind kind = GENERATE(from_range(kKinds));
  const int threads_each = GENERATE(from_range(teams({1, 2})));
  PACKRNN_ONE_IN(5);
  const std::size_t team = on_cpu_or_device(8U, 3U);
  const int calls = on_device() ? 3 : full_or_small(40, 6);
  const ref::Config config = config_of(kind, 6, 20, 2, true);
  const std::vector<ref::Parameter> parameters = random_parameters(config);

  const Recurrent serial = make_layer(config, parameters);
  Context context(Device::best(), {.threads = 1});
  std::mt19937 generator(13);
  std::vector<std::vector<Job>> work(team);
  for (std::vector<Job>& jobs : work)
    for (int i = 0; i < calls; ++i) {
      const auto N = static_cast<std::int64_t>(1 + generator() % on_cpu_or_device(9U, 4U));
      Job job;
      job.batch = random_batch(config, random_lengths(generator, N, 1, on_cpu_or_device(50, 9)),
                               generator() % 1000);
      job.expected = all_bits(run(context, serial, config, job.batch));
      jobs.push_back(std::move(job));
    }

  // A model that nobody has called yet: its packed weights are made in the race.
  for (int round = 0; round < (on_device() ? full_or_small(3, 1) : 3); ++round) {
    const Recurrent layer = make_layer(config, parameters);
    CHECK(failures(layer, config, work, threads_each, false) == 0);
  }
}

TEST_CASE("B84: masks do not depend on which thread draws them") {
  const ref::Config config = config_of(Kind::gru, 6, 20, 3, true);
  const std::vector<ref::Parameter> parameters = random_parameters(config);
  const Recurrent layer = make_layer(config, parameters, {.dropout = 0.4});
  Context context(Device::best(), {.threads = 1});
  std::vector<std::vector<Job>> work(4);
  for (std::size_t k = 0; k < work.size(); ++k)
    for (unsigned i = 0; i < on_cpu_or_device(5U, 2U); ++i) {
      Job job;
      job.batch = random_batch(config, on_cpu_or_device<Counts>({5, 30, 2, 17}, {5, 9, 2}),
                               10 * static_cast<unsigned>(k) + i);
      context.random().reseed(5);
      job.expected = all_bits(run(context, layer, config, job.batch, {.training = true}));
      work[k].push_back(std::move(job));
    }
  CHECK(failures(layer, config, work, 2, true) == 0);
}

// The race of CPU engines: what is said to the others and what they may answer, what is made of the
// times, and what the machine's limits allow.
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <packrnn/layers/safetensors.hpp>
#include <packrnn/runtime/error.hpp>
#include <string>

#include "bench/race/batch.hpp"
#include "bench/race/memory.hpp"
#include "bench/race/peer.hpp"
#include "bench/race/results.hpp"
#include "bench/race/rounds.hpp"
#include "bench/race/training.hpp"
#include "bench/temporary_folder.hpp"
#include "tests/catch.hpp"

namespace packrnn::tests {
namespace {

using namespace bench;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

/// A shell script that plays an engine: it says who it is, then answers each line by the next text.
std::vector<std::string> script(const std::string& first, const std::vector<std::string>& answers) {
  std::string text = "printf '" + first + "\\n'";
  for (const std::string& answer : answers) text += "; read -r line; " + answer;
  return {"sh", "-c", text};
}

RaceWorkload tiny() { return {"W0", "tiny", 3, 4, 1, false, {3, 1, 2}, 2.0, 3.0}; }

Contestant contestant(const char* engine, const char* variant, std::vector<Seconds> samples) {
  return {engine, variant, nullptr, "bits", 0, 1, std::move(samples)};
}

}  // namespace

TEST_CASE("a peer loads, runs and writes what it is told") {
  Peer peer(script("engine Other 1.2", {"printf 'ready\\tpacked\\tpadded\\n'",
                                        "printf 'seconds\\t0.25\\t0.5\\n'", "printf 'written\\n'"}),
            2);
  CHECK(peer.engine() == "Other 1.2");
  CHECK(peer.absent().empty());
  CHECK(peer.load("file", "lstm") == std::vector<std::string>{"packed", "padded"});
  const Seconds seconds = peer.run("packed", 3);
  CHECK(seconds.wall == 0.25);
  CHECK(seconds.cpu == 0.5);
  peer.output("packed", "file");
  CHECK_THROWS_WITH(peer.run("packed", 1), Contains("ended without an answer"));
  CHECK_THAT(peer.absent(), Contains("ended without an answer"));
  CHECK_THROWS_AS(peer.run("packed", 1), FileError);
}

TEST_CASE("a peer gets its threads, and the command as it was typed") {
  Peer peer({"sh", "-c", "printf \"engine %s $OMP_NUM_THREADS $OMP_PROC_BIND\\n\" \"$1\"", "sh"},
            3);
  CHECK(peer.engine() == "3 3 true");
}

TEST_CASE("a peer that is missing, refuses or talks nonsense says why") {
  CHECK_THAT(Peer({"no-such-program"}, 1).absent(), Contains("no-such-program"));
  CHECK(Peer(script("absent no such package", {}), 1).absent() == "no such package");
  CHECK(Peer(script("hello", {}), 1).absent() == "hello");
  CHECK_THAT(Peer({"true"}, 1).absent(), Contains("ended without an answer"));
  Peer refusing(script("engine x", {"printf 'failed out of memory\\n'", "printf 'ready\\n'"}), 1);
  CHECK_THROWS_WITH(refusing.load("file", "gru"), Contains("out of memory"));
  CHECK(refusing.load("file", "gru").empty());  // it goes on
  Peer confused(script("engine x", {"printf 'seconds\\tsoon\\n'"}), 1);
  CHECK_THROWS_WITH(confused.run("packed", 1), Contains("it answered"));
}

TEST_CASE("a batch hands over its layer and recognises its own output") {
  Context context(Device::cpu(), {.threads = 1});
  ForwardBatch batch(context, tiny(), "gru");
  const TemporaryFolder folder("packrnn-test");
  const std::filesystem::path file = folder.path() / "batch", output = folder.path() / "y";
  batch.save(file);
  const SafeTensors saved = SafeTensors::open(file);
  CHECK(saved.shape("x") == Shape{3, 3, 3});
  CHECK(saved.shape("lengths") == Shape{3});
  CHECK(saved.shape("weight_hh_l0") == Shape{12, 4});

  Recurrent layer = make_layer(tiny(), "gru");
  const Tensor x = saved.tensor("x");
  Tensor y = layer.forward_padded(context, x, tiny().lengths).output;
  const auto write = [&](std::int64_t bytes) {
    std::ofstream(output, std::ios::binary).write(static_cast<const char*>(y.view().raw()), bytes);
  };
  write(3 * 3 * 4 * 4);
  CHECK(batch.agreement(output) == "bits");
  y.values<float>()[0] += 1e-5F;
  write(3 * 3 * 4 * 4);
  CHECK_THAT(batch.agreement(output), Contains("e-"));
  y.values<float>()[0] += 1;
  write(3 * 3 * 4 * 4);
  CHECK_THAT(batch.agreement(output), StartsWith("WRONG"));
  write(100);
  CHECK_THROWS_WITH(batch.agreement(output), Contains("does not hold 36 numbers"));

  for (const Contestant& c : batch.ours()) {
    CHECK(c.ours());
    CHECK(c.run(2).wall > 0);
  }
}

TEST_CASE("a step of training hands over its data and recognises its own gradients") {
  const std::string cell = GENERATE("lstm", "gru");
  Context context(Device::cpu(), {.threads = 1});
  TrainingBatch batch(context, tiny(), cell);
  const TemporaryFolder folder("packrnn-test");
  const std::filesystem::path file = folder.path() / "batch", output = folder.path() / "gradients";
  batch.save(file);
  const SafeTensors saved = SafeTensors::open(file);
  const Tensor x = saved.tensor("x"), dy = saved.tensor("dy");
  REQUIRE(dy.shape() == Shape{3, 3, 4});
  const float* const last = dy.view().data<float>() + (2 * 3 + 1) * 4;
  CHECK(std::all_of(last, last + 4, [](float value) { return value == 0; }));  // padding

  // Another way to the same: padded input packed, run, and gone back from y * dy.
  Recurrent layer = make_layer(tiny(), cell);
  Tape tape(context);
  const Lengths lengths(tiny().lengths);
  const PackedVariable input = tape.input(pack_padded_sequence(context, x, lengths));
  const PackedVariable result = layer.forward(tape, input).output;
  const PackedSequence packed_dy = pack_padded_sequence(context, dy, lengths);
  tape.backward({{result.data, packed_dy.data()}});
  const Tensor dx = pad_packed_sequence(
      context, PackedSequence(Tensor::copy_of(input.data.gradient()), input.layout));
  std::vector<float> gradients;
  const auto append = [&](const TensorView& part) {
    const auto values = part.values<float>();
    gradients.insert(gradients.end(), values.begin(), values.end());
  };
  append(dx);
  for (std::int64_t i = 0; i < layer.parameters().count(); ++i)
    append(layer.parameters().gradient(i));
  const auto write = [&](std::size_t count) {
    std::ofstream(output, std::ios::binary)
        .write(reinterpret_cast<const char*>(gradients.data()),
               static_cast<std::streamsize>(count * sizeof(float)));
  };
  write(gradients.size());
  CHECK(batch.agreement(output) == "bits");
  gradients[(2 * 3 + 1) * 3] += 1;  // padding is not looked at
  gradients.back() *= 1.00001F;
  write(gradients.size());
  CHECK_THAT(batch.agreement(output), Contains("e-"));
  gradients.back() += 1;
  write(gradients.size());
  CHECK_THAT(batch.agreement(output), StartsWith("WRONG") && Contains("bias_hh_l0"));
  gradients.back() = NAN;
  write(gradients.size());
  CHECK_THAT(batch.agreement(output), StartsWith("WRONG: inf"));
  write(gradients.size() - 1);
  CHECK_THROWS_WITH(batch.agreement(output), Contains("does not hold"));

  const std::vector<Contestant> ours = batch.ours();
  REQUIRE(ours.size() >= 2);
  if (ours.size() == 3) CHECK(ours[2].agreement == "bits");
  for (const Contestant& c : ours) CHECK(c.run(2).wall > 0);
}

TEST_CASE("a peer says how much memory a step takes, or nothing") {
  Peer peer(script("engine x", {"printf 'bytes\\t4096\\n'", "printf 'failed no such command\\n'"}),
            1);
  CHECK(peer.memory("packed") == 4096);
  CHECK(peer.memory("packed") == 0);
  CHECK(peer.absent().empty());
}

TEST_CASE("the peak of memory counts what is freed again, and not what was there") {
  constexpr std::int64_t kMost = 64 << 20;
  constexpr std::int64_t kInexact = 1 << 20;  // Linux counts pages by threads and adds up later
  const auto take = [](std::int64_t bytes) {
    const Tensor memory = Tensor::zeros({bytes / 4}, Dtype::f32);
  };
  const std::int64_t peak = peak_of([&] { take(kMost); });
  if (peak == 0) PACKRNN_SKIP("this system has no high-water mark that can be reset");
  CHECK(peak >= kMost - kInexact);
  CHECK(peak_of([&] { take(kMost / 4); }) < kMost / 2);
}

TEST_CASE("in every round each contestant runs once, and in the first whatever it takes") {
  std::vector<Contestant> contestants = {contestant("a", "x", {}), contestant("b", "y", {})};
  std::string order;
  for (Contestant& c : contestants)
    c.run = [&order, name = c.engine](int passes) {
      order += name;
      return Seconds{0.25 * passes, 0.5 * passes};
    };
  int asked = 0;
  const auto go_on = [&](double) { return ++asked < 100; };
  run_rounds(contestants, {.rounds = 3, .run_seconds = 1.0}, go_on);
  CHECK(order ==
        "ab"
        "ab"
        "ba"
        "ab");  // one pass each to see how long it takes, then the rounds
  CHECK(contestants[0].passes == 4);
  CHECK(contestants[1].samples.size() == 3);
  CHECK(contestants[1].samples[0].cpu == 0.5);
  CHECK(asked == 3);
  for (Contestant& c : contestants) c.samples.clear();
  run_rounds(contestants, {.rounds = 3, .seconds = 0.0}, go_on);
  CHECK(contestants[0].samples.size() == 1);
  for (Contestant& c : contestants) c.samples.clear();
  run_rounds(contestants, {.rounds = 3}, [](double) { return false; });
  CHECK(contestants[1].samples.size() == 1);
}

TEST_CASE("the best peer is the fastest by the processor on one thread, by the clock on more") {
  const Result result{tiny(),
                      "lstm",
                      {contestant("packrnn", "packed", {{4, 1}, {6, 3}, {5, 2}}),
                       contestant("packrnn", "padded", {{8, 8}}),
                       contestant("packrnn", kStored, {{2.5, 1}}), contestant("a", "x", {{6, 5}}),
                       contestant("b", "y", {{7, 3}}), contestant("c", "never ran", {})},
                      0.5};
  CHECK(median_of(result.contestants[0], 1) == 2);
  CHECK(median_of(result.contestants[0], 2) == 5);
  CHECK(best_peer(result.contestants, 1)->engine == "b");
  CHECK(best_peer(result.contestants, 2)->engine == "a");
  CHECK_THAT(race_row(result, 1), Contains("b y") && Contains(" 1.50 ") && Contains(" 2.00 ") &&
                                      Contains(" 25%") && Contains("33%") && Contains(" 3.00 "));
  CHECK_THAT(race_row(result, 2),
             Contains("a x") && Contains(" 1.20 ") && Contains(" 3.00 ") && Contains(" 2.40 "));
  CHECK_THAT(race_foot({result, result}, 1), Contains("lstm: 1.50 times") && !Contains("gru:"));
  CHECK(json_of(result)["contestants"][3]["cpu_s"][0] == 5);
  Result trained = result;
  trained.training = true;
  trained.contestants[0].memory = 3 << 19;
  CHECK_THAT(race_row(trained, 1), Contains(" 1.00 ") && Contains(" 1.5 "));
  CHECK_THAT(race_head(true), Contains("MiB") && !Contains("bf16"));
  CHECK_THAT(race_foot({trained}, 1, true), Contains("MiB") && !Contains("bf16"));
  CHECK(json_of(trained)["goals"] == nlohmann::json{1.0, 1.0});
  CHECK(json_of(trained)["contestants"][0]["memory_bytes"] == 3 << 19);
  Result alone = result;
  alone.contestants.resize(3);
  CHECK(best_peer(alone.contestants, 1) == nullptr);
  CHECK_THAT(race_row(alone, 1), Contains("none"));
}

TEST_CASE("the bound is the arithmetic, or reading the weights where rows are few") {
  MachineLimits limits;
  limits.flops = 1e9;
  limits.clock = 1e18;  // cells take no time
  limits.lanes = 8;
  limits.bandwidths = {{1 << 20, 1e18}, {2 << 20, 1.0}};
  RaceWorkload w = tiny();
  // 6 tokens, each 2 * 4 gates * 4 units * (3 + 4) operations.
  CHECK(flops_of(w, "lstm") == 6 * 224);
  CHECK(least_seconds(limits, w, "lstm") == Approx(6 * 224 / 1e9));
  CHECK(flops_of(w, "gru") == 6 * 168);
  w.bidirectional = true;
  w.layers = 2;
  // Both directions; the second layer reads 8 features.
  CHECK(flops_of(w, "lstm") == 2 * 6 * 32 * (3 + 4 + 8 + 4));
  // One byte per second: 3 steps, 2 directions and 2 layers of 4 * 4 * 4 weights.
  limits.bandwidths = {{1 << 20, 1.0}};
  CHECK(least_seconds(limits, w, "lstm") == Approx(3 * 4 * 256.0));
  CHECK(limits.bandwidth(1e12) == 1.0);
  // A bound: what lies between two sizes is read no faster than the smaller one, and none slower
  // than a larger one.
  limits.bandwidths = {{1 << 20, 4.0}, {2 << 20, 2.0}, {4 << 20, 3.0}};
  CHECK(limits.bandwidth(1 << 10) == 4.0);
  CHECK(limits.bandwidth(1.5 * (1 << 20)) == 4.0);
  CHECK(limits.bandwidth(2 << 20) == 3.0);
  CHECK(limits.bandwidth(1e12) == 3.0);
  limits.bandwidths = {{1 << 20, 1.0}};
  // Training: three times the arithmetic; the weights are read on both ways.
  CHECK(flops_of(w, "lstm", true) == 3 * flops_of(w, "lstm"));
  CHECK(least_seconds(limits, w, "lstm", true) == Approx(2 * 3 * 4 * 256.0));
}

TEST_CASE("limits of this machine are positive") {
  ThreadPool pool(1, false);
  const MachineLimits limits = measure_limits(pool);
  CHECK(limits.flops > 1e8);
  CHECK(limits.clock > 1e8);
  CHECK(limits.lanes >= 1);
  for (const auto& b : limits.bandwidths) CHECK(b.rate > 1e7);
}

TEST_CASE("the nine workloads are what they are said to be") {
  const std::vector<RaceWorkload> all = race_workloads();
  REQUIRE(all.size() == 9);
  const std::int64_t tokens[] = {100, 3310, 1585, 1585, 2283, 1965, 1860, 3200, 100};
  for (std::size_t i = 0; i < all.size(); ++i) {
    CHECK(all[i].name == "W" + std::to_string(i + 1));
    CHECK(all[i].tokens() == tokens[i]);
    CHECK(std::ranges::is_sorted(all[i].lengths, std::greater<>()));
  }
  CHECK(all[5].padding() == Approx(0.877).margin(0.001));
}

}  // namespace packrnn::tests

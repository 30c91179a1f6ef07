// The cost model's numbers and the choices made by them: by hand-made candidates on every machine,
// and on devices of several kinds where they are simulated.
#include "packrnn/kernels/cuda/select.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "packrnn/kernels/cuda/calibrate.hpp"
#include "packrnn/kernels/cuda/plan_file.hpp"
#include "packrnn/kernels/cuda/tune.hpp"
#include "packrnn/kernels/cuda/wavefront.hpp"
#include "packrnn/runtime/error.hpp"
#include "tests/catch.hpp"
#include "tests/environment.hpp"

namespace packrnn::simt {
// Only in executables with simulated devices; null in the others (tests/simt/device.hpp).
__attribute__((weak)) void set_model(const gpu::Properties& model);
}  // namespace packrnn::simt

namespace packrnn::tests {
namespace {

using Catch::Contains;
using kernels::Cell;
using kernels::RecurrentShape;
using namespace kernels::cuda;

gpu::Properties h200() {
  gpu::Properties p;
  p.name = "H200";
  p.major = 9;
  p.multiprocessors = 132;
  p.memory = std::size_t{141} << 30;
  p.shared_per_block = std::size_t{227} << 10;
  p.clock_khz = 1'980'000;
  p.cooperative = p.clusters = true;
  return p;
}

RecurrentShape lstm(std::int64_t hidden, Dtype dtype = Dtype::bf16, std::int64_t projection = 0) {
  return {Cell::lstm, hidden, hidden, projection, dtype};
}

Mapping grid(int blocks, int units, int groups = 1, int rows = 8) {
  Mapping m;
  m.blocks = blocks;
  m.units = units;
  m.groups = groups;
  m.rows = rows;
  return m;
}

double step_us(const RecurrentShape& s, const Mapping& m, std::int64_t rows) {
  return 1e6 * step_seconds(estimated_constants(h200()), s, Arithmetic::bits16, m, rows, m.groups);
}

Problem problem(RecurrentShape shape, Arithmetic arithmetic, std::int64_t batch = 8,
                std::int64_t steps = 100) {
  return {shape, arithmetic, LengthProfile::equal(batch, steps), 1};
}

Candidate runs(Algorithm algorithm, double microseconds_per_step, Mapping m = {}) {
  return {algorithm, m, 100e-6 * microseconds_per_step, {}};
}
Candidate cannot(Algorithm algorithm, std::string why) { return {algorithm, {}, 0, why}; }

class Folder {
 public:
  Folder() : path_((std::filesystem::temp_directory_path() / "packrnn-select-XXXXXX").string()) {
    if (::mkdtemp(path_.data()) == nullptr) throw std::runtime_error("no temporary folder");
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const char* path() const { return path_.c_str(); }

 private:
  std::string path_;
};

/// The simulated devices are of another kind while it lives.
class Model {
 public:
  explicit Model(const gpu::Properties& model) : before_(gpu::properties(0)) {
    simt::set_model(model);
  }
  ~Model() { simt::set_model(before_); }
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

 private:
  gpu::Properties before_;
};

bool no_gpu() { return Device::best().type != DeviceType::cuda; }
bool simulated() { return !no_gpu() && &simt::set_model != nullptr; }

PackedLayoutPtr equal_lengths(std::int64_t batch, std::int64_t steps) {
  return PackedLayout::make(
      Lengths(std::vector<std::int64_t>(static_cast<std::size_t>(batch), steps)));
}

/// Spread evenly between 500 / batch and 500.
PackedLayoutPtr lengths_up_to_500(std::int64_t batch) {
  std::vector<std::int64_t> lengths;
  for (std::int64_t n = 1; n <= batch; ++n) lengths.push_back((n * 500 + batch - 1) / batch);
  return PackedLayout::make(Lengths(std::move(lengths)));
}

}  // namespace

TEST_CASE("the model gives the times it was derived with") {
  // docs/gpu-model.md: between the optimistic and the cautious end, of which it is the middle.
  CHECK_THAT(step_us(lstm(256), grid(32, 8), 8), Catch::WithinAbs(0.81, 0.19));
  CHECK_THAT(step_us(lstm(512), grid(64, 8), 1), Catch::WithinAbs(0.83, 0.19));
  CHECK_THAT(step_us(lstm(512), grid(32, 16, 4), 32), Catch::WithinAbs(2.01, 0.3));
  CHECK_THAT(step_us(lstm(1024), grid(128, 8), 8), Catch::WithinAbs(1.25, 0.19));
  CHECK_THAT(step_us(lstm(1024), grid(128, 8), 32), Catch::WithinAbs(2.72, 0.3));
  Mapping cluster = grid(16, 16, 8);
  cluster.cluster = true;
  CHECK_THAT(step_us(lstm(256), cluster, 8), Catch::WithinAbs(0.69, 0.14));
  CHECK_THAT(step_us(lstm(256), cluster, 1), Catch::WithinAbs(0.54, 0.14));
}

TEST_CASE("more work never takes less time, a faster device never more") {
  const DeviceConstants d = estimated_constants(h200());
  for (const Arithmetic a : {Arithmetic::f64, Arithmetic::exact, Arithmetic::tf32x3,
                             Arithmetic::tf32, Arithmetic::bits16}) {
    const Dtype dtype = a == Arithmetic::bits16 ? Dtype::bf16
                        : a == Arithmetic::f64  ? Dtype::f64
                                                : Dtype::f32;
    INFO(name_of(a));
    const auto step = [&](std::int64_t hidden, std::int64_t rows, const DeviceConstants& on) {
      return step_seconds(on, lstm(hidden, dtype), a, grid(32, int(hidden / 32)), rows, 2);
    };
    const auto whole = [&](std::int64_t batch, std::int64_t steps, int groups) {
      return persistent_seconds(d, lstm(256, dtype), a, grid(32, 8, groups),
                                LengthProfile::equal(batch, steps), 1);
    };
    const auto stepwise = [&](std::int64_t hidden, std::int64_t batch, std::int64_t steps) {
      return stepwise_seconds(d, lstm(hidden, dtype), a, LengthProfile::equal(batch, steps), 1);
    };
    for (std::int64_t rows = 1; rows < 64; ++rows) {
      INFO(rows);
      CHECK(step(256, rows, d) > 0);
      CHECK(step(256, rows + 1, d) >= step(256, rows, d));
      CHECK(whole(rows + 1, 50, 4) >= whole(rows, 50, 4));
      CHECK(stepwise(256, rows + 1, 50) >= stepwise(256, rows, 50));
    }
    for (const std::int64_t hidden : {256, 512, 1024, 2048}) {
      CHECK(step(2 * hidden, 8, d) > step(hidden, 8, d));
      CHECK(stepwise(2 * hidden, 64, 50) >= stepwise(hidden, 64, 50));
    }
    CHECK(whole(64, 51, 4) > whole(64, 50, 4));
    CHECK(whole(64, 50, 2) > whole(64, 50, 4));  // half of the groups: two chunks each
    CHECK(stepwise(256, 8, 51) > stepwise(256, 8, 50));
    DeviceConstants slower = d;
    slower.mailbox *= 2;
    CHECK(step(256, 8, slower) > step(256, 8, d));
    slower = d;
    slower.clock /= 2;
    CHECK(step(256, 8, slower) > step(256, 8, d));
  }
}

TEST_CASE("short sequences make room: packed batches cost what they hold") {
  const DeviceConstants d = estimated_constants(h200());
  const auto cost = [&](const std::vector<std::int64_t>& lengths, int groups) {
    const LengthProfile profile = LengthProfile::of(*PackedLayout::make(Lengths(lengths)));
    return persistent_seconds(d, lstm(512), Arithmetic::bits16, grid(32, 16, groups), profile, 1) -
           d.startup;
  };
  const std::vector<std::int64_t> equal(16, 100);
  std::vector<std::int64_t> mixed(16, 100);
  for (std::size_t i = 8; i < 16; ++i) mixed[i] = 10;
  CHECK(cost(mixed, 1) < 0.6 * cost(equal, 1));
  CHECK_THAT(cost(equal, 1),
             Catch::WithinRel(2 * cost(std::vector<std::int64_t>(8, 100), 1), 1e-9));
  CHECK(cost(equal, 2) < 0.7 * cost(equal, 1));
  CHECK(cost({0, 5, 0}, 1) == cost({5}, 1));
  CHECK(cost({0, 0}, 1) == 0);
  CHECK(LengthProfile::of(*PackedLayout::make(Lengths{0, 3, 5, 0, 3})).lengths ==
        std::vector<std::int64_t>{5, 3, 3});
  // Directions share the exchange; or, one after the other, take twice as long.
  Mapping turns = grid(32, 16);
  turns.directions_in_turn = true;
  const LengthProfile p = LengthProfile::equal(8, 100);
  const auto both = [&](const Mapping& m) {
    return persistent_seconds(d, lstm(512), Arithmetic::bits16, m, p, 2) - d.startup;
  };
  CHECK(both(turns) > 1.5 * both(grid(32, 16)));
}

TEST_CASE("every class of device has constants") {
  for (const auto& [major, minor] :
       {std::pair(7, 5), std::pair(8, 0), std::pair(8, 6), std::pair(8, 9), std::pair(9, 0),
        std::pair(10, 0), std::pair(12, 0), std::pair(13, 1)}) {
    gpu::Properties p = h200();
    p.major = major;
    p.minor = minor;
    INFO(major << "." << minor);
    for (const int khz : {0, 1'500'000}) {
      p.clock_khz = khz;
      const DeviceConstants d = estimated_constants(p);
      for (const double value :
           {d.clock, d.copy_bandwidth, d.l2_bandwidth, d.matrix_rate, d.product_flops, d.f32_rate,
            d.f64_rate, d.mailbox, d.grid_barrier, d.pointwise, d.launch, d.kernel_gap})
        CHECK((std::isfinite(value) && value > 0));
      CHECK((d.cluster_bandwidth > 0) == (major >= 9));
      CHECK_FALSE(d.calibrated);
    }
  }
}

TEST_CASE("the fastest that gives the same bits is picked") {
  const Problem tensor = problem(lstm(256), Arithmetic::bits16);
  // The step path is never picked by time: another batch would get other bits.
  const Choice kept = pick(
      {runs(Algorithm::persistent, 9, grid(32, 8)), runs(Algorithm::persistent, 7, grid(16, 16, 2)),
       cannot(Algorithm::cluster, "no clusters on sm_80"), runs(Algorithm::tensor_step, 1)},
      tensor);
  CHECK(kept.algorithm == Algorithm::persistent);
  CHECK(kept.mapping.units == 16);
  CHECK_THAT(kept.reason,
             Contains("persistent: 2 groups of 16 blocks of 16 units, 8 rows at a time"));
  CHECK_THAT(kept.reason, Contains("7.00 us per step predicted"));
  CHECK_THAT(kept.reason, Contains("cluster: no clusters on sm_80"));
  CHECK_THAT(kept.reason, Contains("step: 1.00 us, but in other bits"));
  CHECK_THAT(kept.reason, Contains("LSTM bf16 I=256 H=256 D=1, about 8 rows of 100 steps"));
  CHECK(kept.reason.find('\n') == std::string::npos);

  CHECK(pick({runs(Algorithm::persistent, 2), runs(Algorithm::cluster, 1),
              runs(Algorithm::tensor_step, 9)},
             tensor)
            .algorithm == Algorithm::cluster);
  CHECK(pick({cannot(Algorithm::persistent, "no cooperative launches"), runs(Algorithm::cluster, 5),
              runs(Algorithm::tensor_step, 1)},
             tensor)
            .algorithm == Algorithm::cluster);
  const Choice alone =
      pick({cannot(Algorithm::persistent, "not with projection"),
            cannot(Algorithm::cluster, "not with projection"), runs(Algorithm::tensor_step, 8)},
           tensor);
  CHECK(alone.algorithm == Algorithm::tensor_step);
  CHECK_THAT(alone.reason, Contains("persistent: not with projection"));

  const Problem exact = problem(lstm(256, Dtype::f32), Arithmetic::exact);
  for (const auto& [persistent, step] : {std::pair(1.0, 2.0), std::pair(2.0, 1.0)})
    CHECK(pick({runs(Algorithm::exact_persistent, persistent), runs(Algorithm::step, step)}, exact)
              .algorithm == (persistent < step ? Algorithm::exact_persistent : Algorithm::step));
}

TEST_CASE("a wish is granted or refused with the reason") {
  const Problem tensor = problem(lstm(256), Arithmetic::bits16);
  const std::vector<Candidate> all = {runs(Algorithm::persistent, 2), runs(Algorithm::cluster, 1),
                                      runs(Algorithm::tensor_step, 9)};
  CHECK(pick(all, tensor, "persistent").algorithm == Algorithm::persistent);
  CHECK(pick(all, tensor, "cluster").algorithm == Algorithm::cluster);
  const Choice step = pick(all, tensor, "step");
  CHECK(step.algorithm == Algorithm::tensor_step);
  CHECK_THAT(step.reason, Contains("as asked for") && Contains("other bits"));
  CHECK_THROWS_AS(pick({cannot(Algorithm::persistent, "because"), runs(Algorithm::tensor_step, 1)},
                       tensor, "persistent"),
                  Unsupported);
  CHECK_THROWS_WITH(pick({cannot(Algorithm::persistent, "needs 300 KB of 227 KB"),
                          runs(Algorithm::tensor_step, 1)},
                         tensor, "persistent"),
                    Contains("\"persistent\" cannot run: needs 300 KB of 227 KB"));
  const Problem exact = problem(lstm(256, Dtype::f32), Arithmetic::exact);
  const std::vector<Candidate> two = {runs(Algorithm::exact_persistent, 2),
                                      runs(Algorithm::step, 1)};
  CHECK(pick(two, exact, "persistent").algorithm == Algorithm::exact_persistent);
  CHECK_THROWS_WITH(pick(two, exact, "cluster"), Contains("there is none for f32 exact"));
  CHECK_THROWS_AS(pick(two, exact, "fast"), InvalidArgument);
}

TEST_CASE("choices follow the device") {
  if (!simulated()) PACKRNN_SKIP("no simulated device");
  const Environment no_wish("PACKRNN_ALGORITHM", nullptr);
  const PackedLayoutPtr layout = equal_lengths(16, 50);
  const auto chosen = [&](const gpu::Properties& model, const RecurrentShape& shape,
                          F32Math math = F32Math::exact) {
    const Model is(model);
    ContextOptions options;
    options.f32_math = math;
    Context context(Device::cuda(0), options);
    return choose(context, shape, *layout, 1);
  };
  gpu::Properties full = h200(), few = h200(), no_clusters = h200(), alone = h200();
  full.name = few.name = no_clusters.name = alone.name = "simulated";
  for (gpu::Properties* p : {&full, &few, &no_clusters, &alone})
    p->threads_per_multiprocessor = 2048;
  few.multiprocessors = 2;
  no_clusters.clusters = false;
  no_clusters.major = 8;
  alone.cooperative = alone.clusters = false;

  const Choice small = chosen(full, lstm(256));
  CHECK((small.algorithm == Algorithm::persistent || small.algorithm == Algorithm::cluster));
  CHECK(chosen(full, lstm(1024)).algorithm == Algorithm::persistent);
  CHECK(chosen(no_clusters, lstm(256)).algorithm == Algorithm::persistent);
  CHECK_THAT(chosen(no_clusters, lstm(256)).reason, Contains("no clusters on sm_80"));
  const Choice nowhere = chosen(few, lstm(1024));
  CHECK(nowhere.algorithm == Algorithm::tensor_step);
  CHECK_THAT(nowhere.reason, Contains("persistent: ") && Contains("cluster: "));
  CHECK(chosen(alone, lstm(256)).algorithm == Algorithm::tensor_step);
  CHECK(chosen(full, lstm(256, Dtype::bf16, 64)).algorithm == Algorithm::tensor_step);
  CHECK_THAT(chosen(full, lstm(256, Dtype::bf16, 64)).reason, Contains("projection"));
  CHECK(chosen(full, {Cell::gru_reset_before, 64, 64, 0, Dtype::f16}).algorithm ==
        Algorithm::tensor_step);

  CHECK(chosen(full, lstm(256, Dtype::f64)).algorithm == Algorithm::step);
  CHECK(chosen(alone, lstm(256, Dtype::f32)).algorithm == Algorithm::step);
  const Choice tf32 = chosen(full, lstm(256, Dtype::f32), F32Math::tf32);
  CHECK((tf32.algorithm == Algorithm::persistent || tf32.algorithm == Algorithm::cluster));
  CHECK_THAT(tf32.reason, Contains("LSTM f32") && Contains("by tf32"));
}

TEST_CASE("no batch changes the bits of another") {
  if (!simulated()) PACKRNN_SKIP("no simulated device");
  const Environment no_wish("PACKRNN_ALGORITHM", nullptr);
  gpu::Properties model = h200();
  model.name = "simulated";
  model.threads_per_multiprocessor = 2048;
  const Model is(model);
  for (const Dtype dtype : {Dtype::bf16, Dtype::f32})
    for (const std::int64_t hidden : {64, 512, 1024, 2048})
      for (const std::int64_t batch : {1, 8, 100, 3000})
        for (const std::int64_t steps : {1, 20, 2000}) {
          Context context(Device::cuda(0));
          const Choice c = choose(context, lstm(hidden, dtype), *equal_lengths(batch, steps), 2);
          INFO(c.reason);
          const bool tensor =
              c.algorithm == Algorithm::persistent || c.algorithm == Algorithm::cluster;
          CHECK(tensor == (dtype == Dtype::bf16));
          CHECK(c.algorithm != Algorithm::tensor_step);
        }
}

TEST_CASE("a choice is remembered for batches of about its size, and can be asked for") {
  if (no_gpu()) PACKRNN_SKIP("no CUDA device");
  const Environment no_wish("PACKRNN_ALGORITHM", nullptr);
  Context context;
  const Choice first = choose(context, lstm(32, Dtype::f32), *equal_lengths(9, 20), 1);
  const Choice again = choose(context, lstm(32, Dtype::f32), *equal_lengths(12, 30), 1);
  CHECK(again.reason == first.reason);
  CHECK(again.mapping.blocks == first.mapping.blocks);
  CHECK(again.mapping.rows == first.mapping.rows);
  CHECK(context.plans().size() == 1);
  CHECK_THAT(context.explain(), Contains(first.reason));
  choose(context, lstm(32, Dtype::f32), *equal_lengths(100, 30), 1);
  choose(context, lstm(32, Dtype::f32), *equal_lengths(100, 30), 2);
  choose(context, lstm(32, Dtype::f64), *equal_lengths(100, 30), 2);
  CHECK(context.plans().size() == 4);
  // Nothing to do is a batch, too.
  CHECK_NOTHROW(choose(context, lstm(32, Dtype::f32), *equal_lengths(3, 0), 1));
}

TEST_CASE("option and environment overrule") {
  if (no_gpu()) PACKRNN_SKIP("no CUDA device");
  const PackedLayoutPtr layout = equal_lengths(4, 10);
  const auto chosen = [&](const char* option, const RecurrentShape& shape) {
    ContextOptions options;
    options.algorithm = option;
    Context context(Device::best(), options);
    return choose(context, shape, *layout, 1);
  };
  {
    const Environment no_wish("PACKRNN_ALGORITHM", nullptr);
    CHECK(chosen("step", lstm(32, Dtype::f32)).algorithm == Algorithm::step);
    CHECK(chosen("step", lstm(32)).algorithm == Algorithm::tensor_step);
    CHECK(chosen("persistent", lstm(32, Dtype::f32)).algorithm == Algorithm::exact_persistent);
    CHECK(chosen("persistent", lstm(32)).algorithm == Algorithm::persistent);
    CHECK_THROWS_WITH(chosen("persistent", lstm(32, Dtype::f64)), Contains("not in f64"));
    CHECK_THROWS_AS(chosen("cluster", lstm(32, Dtype::f32)), Unsupported);
  }
  const Environment wish("PACKRNN_ALGORITHM", "step");
  CHECK(chosen("", lstm(32)).algorithm == Algorithm::tensor_step);
  CHECK(chosen("persistent", lstm(32)).algorithm == Algorithm::persistent);
}

TEST_CASE("calibration is measured, kept and used") {
  if (no_gpu()) PACKRNN_SKIP("no CUDA device");
  const Folder folder;
  const Environment cache("PACKRNN_CACHE", folder.path()), no_wish("PACKRNN_ALGORITHM", nullptr);
  const int device = Device::best().index;
  CHECK_FALSE(constants_for(device).calibrated);
  {
    Context before;
    CHECK_THAT(choose(before, lstm(32), *equal_lengths(4, 9), 1).reason,
               Contains("not calibrated"));
  }
  Context context;
  const DeviceConstants d = calibrate(context);
  CHECK(d.calibrated);
  for (const double value :
       {d.copy_bandwidth, d.grid_barrier, d.mailbox, d.launch, d.kernel_gap, d.matrix_rate})
    CHECK((std::isfinite(value) && value > 0));
  if (!simulated()) {  // where time is real, so are the numbers
    const DeviceConstants kept = constants_for(device);
    CHECK(kept.calibrated);
    CHECK(kept.mailbox == d.mailbox);
    CHECK_THAT(choose(context, lstm(32), *equal_lengths(4, 9), 1).reason, Contains("(calibrated)"));
  }
}

TEST_CASE("a calibration that cannot be is not believed, a damaged file is mentioned") {
  if (no_gpu()) PACKRNN_SKIP("no CUDA device");
  const Folder folder;
  const Environment cache("PACKRNN_CACHE", folder.path()), no_wish("PACKRNN_ALGORITHM", nullptr);
  const std::filesystem::path path = PlanFile::from_environment();
  const gpu::Properties& p = gpu::properties(Device::best().index);
  const DeviceConstants estimate = estimated_constants(p);
  const auto store = [&](double mailbox) {
    PlanFile file(path);
    REQUIRE(file.store(calibration_key(p), {{"copy_bandwidth", estimate.copy_bandwidth},
                                            {"grid_barrier", estimate.grid_barrier},
                                            {"kernel_gap", estimate.kernel_gap},
                                            {"launch", estimate.launch},
                                            {"mailbox", mailbox},
                                            {"matrix_rate", estimate.matrix_rate}}));
  };
  store(2 * estimate.mailbox);
  CHECK(constants_for(0).calibrated);
  CHECK(constants_for(0).mailbox == 2 * estimate.mailbox);
  for (const double mailbox : {0.0, -1e-6, 1e9}) {
    store(mailbox);
    CHECK_FALSE(constants_for(0).calibrated);
    CHECK(constants_for(0).mailbox == estimate.mailbox);
  }
  std::ofstream(path) << "{";
  Context context;
  CHECK_THAT(choose(context, lstm(32), *equal_lengths(4, 9), 1).reason,
             Contains("note: ") && Contains("is not a JSON object"));
}

TEST_CASE("what tuning finds is used by those who come later") {
  if (no_gpu()) PACKRNN_SKIP("no CUDA device");
  const Folder folder;
  const Environment cache("PACKRNN_CACHE", folder.path()), no_wish("PACKRNN_ALGORITHM", nullptr);
  const RecurrentShape shape = GENERATE(lstm(16, Dtype::f32), lstm(16, Dtype::bf16, 8),
                                        RecurrentShape{Cell::gru, 8, 16, 0, Dtype::f32});
  const PackedLayoutPtr layout = PackedLayout::make(Lengths{3, 0, 2, 3, 1});
  Context context;
  const Choice predicted = choose(context, shape, *layout, 2);
  const Choice best = tune_recurrent(context, shape, *layout, 2);
  CHECK(same_bits(best.algorithm, predicted.algorithm));
  CHECK_THAT(best.reason, Contains("tuned: "));
  CHECK(choose(context, shape, *layout, 2).reason == predicted.reason);  // it had chosen before
  Context later;
  const Choice found = choose(later, shape, *layout, 2);
  CHECK(found.algorithm == best.algorithm);
  CHECK(found.mapping.units == best.mapping.units);
  CHECK(found.mapping.groups == best.mapping.groups);
  CHECK(found.mapping.rows == best.mapping.rows);
  CHECK_THAT(found.reason, Contains(", tuned"));
  // What is in the file never overrules the rules: other bits, and mappings that do not exist.
  const Problem p = problem_of(later, shape, *layout, 2);
  PlanFile file = plan_file(gpu::properties(context.device().index));
  for (const double algorithm : {0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 0.5, -1.0, 1e300}) {
    REQUIRE(file.store(tuned_key(gpu::properties(0), p),
                       {{"algorithm", algorithm}, {"blocks", 77}, {"units", 8}, {"groups", 1}}));
    Context misled;
    const Choice c = choose(misled, shape, *layout, 2);
    CHECK(same_bits(c.algorithm, predicted.algorithm));
    CHECK_THAT(c.reason, !Contains(", tuned"));
  }
}

TEST_CASE("docs/gpu-model.md shows what the model predicts") {
  if (!simulated()) PACKRNN_SKIP("no simulated device");
  gpu::Properties model = h200();
  model.name = "simulated";
  model.threads_per_multiprocessor = 2048;
  const Model is(model);
  std::ifstream file(PACKRNN_SOURCE_DIR "/docs/gpu-model.md");
  const std::string page{std::istreambuf_iterator<char>(file), {}};
  std::string table;
  for (const Cell cell : {Cell::lstm, Cell::gru})
    for (const std::int64_t hidden : {256, 512, 768, 1024, 1536, 2048})
      for (const std::int64_t batch : {1, 32, 256}) {
        const Problem p{{cell, hidden, hidden, 0, Dtype::bf16},
                        Arithmetic::bits16,
                        LengthProfile::of(*lengths_up_to_500(batch)),
                        1};
        const std::vector<Candidate> all = candidates(0, estimated_constants(model), p);
        const auto best = [&](Algorithm algorithm) {
          double least = 0;
          for (const Candidate& c : all)
            if (c.algorithm == algorithm && c.obstacle.empty() && (least == 0 || c.seconds < least))
              least = c.seconds;
          return least == 0 ? std::string("-") : fmt::format("{:.2f}", least * 1e6 / 500);
        };
        const Choice choice = pick(all, p);
        const Mapping& m = choice.mapping;
        table += fmt::format("| {} | {} | {} | {} | {} | {} | {} |\n", kernels::name_of(cell),
                             hidden, batch, best(Algorithm::cluster), best(Algorithm::persistent),
                             best(Algorithm::tensor_step),
                             choice.algorithm == Algorithm::tensor_step
                                 ? "step"
                                 : fmt::format("{} {} x {}, {} rows", name_of(choice.algorithm),
                                               m.groups, m.blocks, m.rows));
      }
  // To renew them, replace the tables by those in the messages.
  CHECK_THAT(page, Contains(table));

  table.clear();
  for (const std::size_t count : {2, 4})
    for (const std::int64_t hidden : {256, 512, 1024})
      for (const std::int64_t batch : {1, 32}) {
        const RecurrentShape shape{Cell::lstm, hidden, hidden, 0, Dtype::bf16};
        const kernels::RecurrentDirection forwards;
        const std::vector<kernels::RecurrentLayer> layers(count, {shape, {&forwards, 1}, {}});
        Context context;
        choose_wavefront(context, *lengths_up_to_500(batch), layers);
        const std::string reason = context.explain();
        const std::string_view start = "layers: ";
        const std::size_t from = reason.find(start) + start.size();
        table += fmt::format("| {} | {} | {} | {} |\n", count, hidden, batch,
                             reason.substr(from, reason.find('\n') - from));
      }
  CHECK_THAT(page, Contains(table));
}

}  // namespace packrnn::tests

// packrnn_bench: what packing buys, on the length mixes we ship and on real data; on a GPU also
// against other engines (device/). See --help.
//
// The report goes to stdout, progress and complaints to stderr. Status: 0 done, 1 something failed
// (wrong results above all), 2 wrong command line, 130 interrupted (the table is then partial).

#include <fmt/format.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <functional>
#include <numeric>
#include <optional>
#include <packrnn/layers/gru.hpp>
#include <packrnn/layers/lstm.hpp>
#include <packrnn/layers/rnn.hpp>
#include <packrnn/runtime/error.hpp>
#include <string>
#include <vector>

#include "bench/bound_caller.hpp"
#include "bench/device/device_bench.hpp"
#include "bench/interrupt.hpp"
#include "bench/japanese_vowels.hpp"
#include "bench/machine.hpp"
#include "bench/measure.hpp"
#include "bench/mixes.hpp"
#include "bench/options.hpp"
#include "bench/progress.hpp"
#include "bench/race/rounds.hpp"
#include "bench/report.hpp"
#include "bench/stopwatch.hpp"
#include "bench/temporary_folder.hpp"
#include "bench/verify.hpp"
#include "bench/workload.hpp"

namespace packrnn::bench {
namespace {

constexpr int kFailed = 1, kInterrupted = 130;

/// A workload that is made when its turn comes, so that only one is in memory.
struct Job {
  std::string name;
  std::function<Workload(Context&)> make;
};

void print(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

/// Memory that was used once stays with the process: else each large output costs a page fault per
/// page, and the padded side, whose outputs are larger, would pay more of them.
void keep_memory() {
#ifdef __GLIBC__
  constexpr int kGigabyte = 1 << 30;
  mallopt(M_MMAP_MAX, 0);  // glibc refuses a larger M_MMAP_THRESHOLD than 32 MiB
  mallopt(M_TRIM_THRESHOLD, kGigabyte);
#endif
}

Dtype dtype_of(const Options& options) {
  return options.dtypes[0] == "f64" ? Dtype::f64 : Dtype::f32;
}

bool is_cpu_dtype(const std::string& name) { return name == "f32" || name == "f64"; }

BatchOptions batch_options(const Options& options) {
  return {.batch = options.batch, .seed = options.seed, .dtype = dtype_of(options)};
}

/// Lstm, Gru and Rnn differ from Recurrent in their constructors only.
Recurrent make_layer(const Options& options, std::int64_t features) {
  const auto with = [&](auto layer) {
    layer.input_size = features;
    layer.hidden_size = options.hidden;
    layer.num_layers = options.layers;
    layer.bidirectional = options.bidirectional;
    layer.dtype = dtype_of(options);
    layer.weight_storage = options.weights == "f16"    ? WeightStorage::f16
                           : options.weights == "bf16" ? WeightStorage::bf16
                                                       : WeightStorage::full;
    layer.seed = options.seed;
    return layer;
  };
  if (options.cell == "gru") return Gru(with(GruOptions{}));
  if (options.cell == "rnn") return Rnn(with(RnnOptions{}));
  return Lstm(with(LstmOptions{}));
}

Job mix_job(const Options& options, Mix mix) {
  std::string name = mix.name;
  return {std::move(name), [options, mix = std::move(mix)](Context& context) {
            return make_workload(context, mix, options.batches(), options.features,
                                 batch_options(options));
          }};
}

bool wanted(const Options& options, const std::string& name) {
  const auto& names = options.mixes;
  if (names.empty()) return options.lengths_file.empty();
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::vector<Job> choose_jobs(const Options& options) {
  constexpr std::int64_t kFileFeatures = 128;
  std::vector<Job> jobs;
  if (!options.lengths_file.empty())
    jobs.push_back(mix_job(options, mix_of("your lengths", read_lengths(options.lengths_file),
                                           kFileFeatures, options.batch)));
  for (Mix& mix : mixes())
    if (wanted(options, mix.name)) jobs.push_back(mix_job(options, std::move(mix)));
  if (!wanted(options, kRealData)) return jobs;
  if (const auto folder = find_japanese_vowels())
    jobs.push_back({kRealData, [options, data = read_japanese_vowels(*folder)](Context& context) {
                      return make_workload(context, data, batch_options(options));
                    }});
  return jobs;
}

Row run_job(Context& context, const Options& options, const Job& job, double seconds,
            Progress& progress) {
  const Workload workload = job.make(context);
  const Recurrent layer = make_layer(options, workload.features);
  verify(context, layer, workload);  // warms up, too
  const auto keep_going = [&](double used) {
    progress.update(used);
    return !interrupted();
  };
  return {workload.name, workload.features, size_of(workload),
          measure(context, layer, workload, {.seconds = seconds}, keep_going)};
}

/// The other engines, for as long as there is time: the smallest batches first, because a single
/// pass over the largest takes seconds.
class PeerRun {
 public:
  PeerRun(Context& context, const Options& options) : context_(context), options_(options) {
    std::vector<std::string> names;
    for (const char* name : {"torch", "onednn", "onnxruntime"})
      if (options.wants_peer(name)) names.emplace_back(name);
    if (names.empty()) return;
    if (options.cell == "rnn" || options.dtypes[0] != "f32" || options.weights != "full") {
      why_not_ = "they are compared for LSTM and GRU in f32 with full weights";
      return;
    }
    peers_ = start_peers(names, context.threads());
  }

  Engines engines() const {
    Engines all;
    for (const NamedPeer& named : peers_)
      all[named.name] =
          named.peer->absent().empty() ? named.peer->engine() : "absent: " + named.peer->absent();
    if (!why_not_.empty()) all["other engines"] = why_not_;
    return all;
  }

  void run(const std::vector<Job>& jobs, std::vector<Row>& rows) {
    if (std::ranges::none_of(peers_, [](const auto& p) { return p.peer->absent().empty(); }))
      return;
    std::vector<std::size_t> order(rows.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::sort(order, {}, [&](std::size_t i) { return rows[i].size.volume; });
    Progress progress(static_cast<int>(rows.size()));
    const Clock::time_point start = Clock::now();
    for (const std::size_t i : order) {
      if (interrupted()) break;
      if (seconds_since(start) > options_.budget()) {
        fmt::print(stderr, "no time left to measure other engines on {}\n", rows[i].name);
        continue;
      }
      progress.start(rows[i].name + " beside other engines");
      rows[i].beside = run_one(jobs[i], options_.budget() / static_cast<double>(rows.size()),
                               [&](double part) { progress.update(part); });
    }
  }

 private:
  Beside run_one(const Job& job, double seconds, const std::function<void(double)>& progress) {
    const Workload workload = job.make(context_);
    const PackedLayout& layout = workload.batches[0].packed.layout();
    const RaceWorkload race{job.name,
                            "",
                            workload.features,
                            options_.hidden,
                            options_.layers,
                            options_.bidirectional,
                            {layout.lengths().begin(), layout.lengths().end()}};
    ForwardBatch batch(context_, race, options_.cell);
    Beside beside{layout.total(), batch.ours()};
    beside.contestants.resize(1);
    add_peers(peers_, batch, race, options_.cell, folder_.path(), beside.contestants);
    constexpr int kRounds = 5;
    run_rounds(beside.contestants, {.rounds = kRounds, .seconds = seconds / 2, .run_seconds = 0.02},
               [&](double part) {
                 progress(part);
                 return !interrupted();
               });
    for (Contestant& c : beside.contestants) c.run = nullptr;  // the batch goes
    return beside;
  }

  Context& context_;
  const Options& options_;
  const TemporaryFolder folder_{"packrnn-bench"};
  std::vector<NamedPeer> peers_;
  std::string why_not_;
};

std::vector<Row> run_jobs(Context& context, const Options& options, const std::vector<Job>& jobs) {
  std::vector<Row> rows;
  Progress progress(static_cast<int>(jobs.size()));
  const double seconds = options.budget() / static_cast<double>(jobs.size());
  for (const Job& job : jobs) {
    if (interrupted()) break;
    progress.start(job.name);
    Row row = run_job(context, options, job, seconds, progress);
    progress.clear();
    if (row.timings.packed.seconds.empty()) break;
    print(table_row(row));
    rows.push_back(std::move(row));
  }
  return rows;
}

void list_mixes() {
  for (const Mix& mix : mixes())
    print(fmt::format("{:<15} {} (lengths {}-{}, mean {:.1f}; {} features)\n", mix.name, mix.what,
                      mix.lengths.min(), mix.lengths.max(), mix.lengths.mean(), mix.features));
  const auto folder = find_japanese_vowels();
  print(fmt::format("{:<15} every recording of the real data: {}\n", kRealData,
                    folder ? folder->lexically_normal().string() : japanese_vowels_missing()));
}

int run(const Options& options) {
  if (options.list) {
    list_mixes();
    return 0;
  }
  const Device device = options.device.empty() ? Device::best() : device_of(options.device);
  if (device.type == DeviceType::cuda) return run_device_bench(options, device);
  if (options.chose_dtype && (options.dtypes.size() != 1 || !is_cpu_dtype(options.dtypes[0])))
    throw InvalidArgument(
        "--dtype: layers on the CPU are of one of f32 and f64; f16 and bf16 are what --weights can "
        "store there");
  if (options.weights != "full" && options.dtypes[0] == "f64")
    throw InvalidArgument("--weights: 16 bits are for layers of f32, not of f64");
  if (!options.gpu_only.empty())
    throw InvalidArgument(fmt::format("{} is for a GPU, and the device is {} ({})",
                                      options.gpu_only, device.name(), Device::cuda_status()));
  keep_memory();
  const std::string json_file =
      options.json_file.empty() ? PACKRNN_RESULTS_DIR "/packed_vs_padded.json" : options.json_file;
  const std::vector<Job> jobs = choose_jobs(options);
  ResultFile file(json_file),
      csv(std::filesystem::path(json_file).replace_extension(".csv").string());
  catch_interrupt();
  Context context(device, {.threads = options.threads, .pin_threads = options.pin});
  PeerRun peers(context, options);  // before this thread is bound to a CPU: they inherit that
  std::optional<BoundCaller> bound;
  if (options.pin) bound.emplace();

  const Machine machine = describe_machine(context, options.pin);
  print(header_text(machine, options, peers.engines()));
  print(table_head());
  std::vector<Row> rows = run_jobs(context, options, jobs);
  if (wanted(options, kRealData) && !find_japanese_vowels())
    print(fmt::format("{:<14} skipped: {}\n", kRealData, japanese_vowels_missing()));
  if (!rows.empty()) print(table_foot(rows, options.bidirectional));
  peers.run(jobs, rows);
  print(beside_table(rows, context.threads()));
  const bool complete = !interrupted();
  if (!complete) print("Interrupted: the table is not complete.\n");
  file.finish(json_text(machine, options, peers.engines(), rows, complete));
  csv.finish(csv_text(rows, context.threads()));
  print(fmt::format("\nResults: {} and .csv\n", json_file));
  return complete ? 0 : kInterrupted;
}

}  // namespace
}  // namespace packrnn::bench

int main(int argc, char** argv) {
  using namespace packrnn::bench;
  try {
    const Parsed parsed = parse_options(argc, argv);
    return parsed.exit_status >= 0 ? parsed.exit_status : run(parsed.options);
  } catch (const Mismatch& mismatch) {
    fmt::print(stderr, "packrnn_bench: WRONG RESULTS, nothing further is measured: {}\n",
               mismatch.what());
  } catch (const std::exception& error) {
    fmt::print(stderr, "packrnn_bench: {}\n", error.what());
  }
  return kFailed;
}

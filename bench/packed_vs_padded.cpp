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
#include <functional>
#include <packrnn/layers/gru.hpp>
#include <packrnn/layers/lstm.hpp>
#include <packrnn/layers/rnn.hpp>
#include <packrnn/runtime/error.hpp>
#include <string>
#include <vector>

#include "bench/device/device_bench.hpp"
#include "bench/interrupt.hpp"
#include "bench/japanese_vowels.hpp"
#include "bench/machine.hpp"
#include "bench/measure.hpp"
#include "bench/mixes.hpp"
#include "bench/options.hpp"
#include "bench/progress.hpp"
#include "bench/report.hpp"
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

/// Lstm, Gru and Rnn differ from Recurrent in their constructors only.
Recurrent make_layer(const Options& options, std::int64_t features) {
  const auto with = [&](auto layer) {
    layer.input_size = features;
    layer.hidden_size = options.hidden;
    layer.num_layers = options.layers;
    layer.bidirectional = options.bidirectional;
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
            return make_workload(context, mix, options.batch, options.batches(), options.features,
                                 options.seed);
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
                      return make_workload(context, data, options.batch, options.seed);
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
  if (!options.gpu_only.empty())
    throw InvalidArgument(fmt::format("{} is for a GPU, and the device is {} ({})",
                                      options.gpu_only, device.name(), Device::cuda_status()));
  keep_memory();
  const std::string json_file =
      options.json_file.empty() ? PACKRNN_RESULTS_DIR "/packed_vs_padded.json" : options.json_file;
  const std::vector<Job> jobs = choose_jobs(options);
  ResultFile file(json_file);
  catch_interrupt();
  Context context(device, {.threads = options.threads, .pin_threads = options.pin});
  if (options.pin) pin_caller();

  const Machine machine = describe_machine(context, options.pin);
  print(header_text(machine, options));
  print(table_head());
  const std::vector<Row> rows = run_jobs(context, options, jobs);
  if (wanted(options, kRealData) && !find_japanese_vowels())
    print(fmt::format("{:<14} skipped: {}\n", kRealData, japanese_vowels_missing()));
  if (!rows.empty()) print(table_foot(rows, options.bidirectional));
  const bool complete = !interrupted();
  if (!complete) print("Interrupted: the table is not complete.\n");
  file.finish(json_text(machine, options, rows, complete));
  print(fmt::format("Results: {}\n", json_file));
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

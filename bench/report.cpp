#include "bench/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <packrnn/runtime/error.hpp>
#include <utility>

namespace packrnn::bench {
namespace {

using Json = nlohmann::ordered_json;

/// Three significant digits, in thousands.
std::string thousands(double value) {
  const double k = value / 1e3;
  return fmt::format("{:.{}f}", k, k >= 100.0 ? 0 : k >= 10.0 ? 1 : 2);
}

/// "812 (790-830)": of the median, the slowest and the fastest repetition.
std::string rates(const Row& row, const Samples& samples) {
  return fmt::format("{} ({}-{})", thousands(row.rate(samples.median())),
                     thousands(row.rate(samples.max())), thousands(row.rate(samples.min())));
}

std::string layer_text(const Options& options) {
  std::string text = options.cell;
  for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return fmt::format(
      "{}, {} layer{}, {}, H = {}, {}{}", text, options.layers, options.layers > 1 ? "s" : "",
      options.bidirectional ? "both directions" : "one direction", options.hidden,
      options.dtypes[0], options.weights == "full" ? "" : ", weights stored as " + options.weights);
}

Json json_of(const Samples& samples) {
  if (samples.seconds.empty()) return nullptr;
  return {{"median_s", samples.median()},
          {"min_s", samples.min()},
          {"max_s", samples.max()},
          {"seconds", samples.seconds}};
}

Json json_of(const Row& row) {
  Json beside = {{"tokens", row.beside.tokens}, {"contestants", Json::array()}};
  for (const Contestant& c : row.beside.contestants) beside["contestants"].emplace_back(json_of(c));
  return {{"name", row.name},
          {"features", row.features},
          {"batches", row.size.batches},
          {"batch", row.size.sequences},
          {"steps", row.size.steps},
          {"tokens", row.size.tokens},
          {"padded_volume", row.size.volume},
          {"padding_fraction", row.size.padding()},
          {"packed_tokens_per_s", row.packed_rate()},
          {"padded_tokens_per_s", row.padded_rate()},
          {"speed_up", row.speed_up()},
          {"speed_up_with_packing", row.speed_up_with_packing()},
          {"bound", row.size.bound()},
          {"bucketed_padding_fraction", 1.0 - static_cast<double>(row.size.tokens) /
                                                  static_cast<double>(row.size.bucketed_volume)},
          {"speed_up_over_bucketed", row.speed_up_over_bucketed()},
          {"repetitions", row.timings.packed.seconds.size()},
          {"packed", json_of(row.timings.packed)},
          {"padded", json_of(row.timings.padded)},
          {"packing", json_of(row.timings.packing)},
          {"bucketed", json_of(row.timings.bucketed)},
          {"beside", beside}};
}

double beside_rate(const Row& row, const Contestant& c, int threads) {
  return static_cast<double>(row.beside.tokens) / median_of(c, threads);
}

std::size_t column(const std::string& name) { return std::max<std::size_t>(8, name.size()); }

constexpr const char* kRow =
    "{:<14} {:>4} {:>5} {:>7} {:>7} {:>16} {:>16} {:>8} {:>6} {:>6} {:>7} {:>8} {:>8}\n";

}  // namespace

std::string header_text(const Machine& machine, const Options& options, const Engines& engines) {
  std::string text = fmt::format(
      "packrnn: packed against padded\n"
      "  machine  {}, {} CPUs\n"
      "  device   {}, {} kernels, {} thread{}{}\n"
      "  gpu      {}\n"
      "  commit   {}\n"
      "  date     {}\n"
      "  layer    {}\n"
      "  batches  {} sequences, seed {}\n",
      machine.cpu, machine.cpus, machine.device, machine.target, machine.threads,
      machine.threads > 1 ? "s" : "", machine.pinned ? ", pinned" : "", machine.cuda,
      machine.commit, machine.date, layer_text(options), options.batch, options.seed);
  const char* label = "beside";
  for (const auto& [name, state] : engines)
    text += fmt::format("  {:<8} {}: {}\n", std::exchange(label, ""), name, state);
  return text + "\n";
}

std::string table_head() {
  std::string head = fmt::format(kRow, "", "", "", "", "", "packed", "padded", "", "", "of the",
                                 "with", "bucketed", "over");
  head += fmt::format(kRow, "mix", "N", "T", "tokens", "padding", "k tokens/s", "k tokens/s",
                      "speed-up", "bound", "bound", "packing", "k tok/s", "bucketed");
  return head;
}

std::string table_row(const Row& row) {
  const bool bucketed = !row.timings.bucketed.seconds.empty();
  return fmt::format(kRow, row.name, row.size.sequences, row.size.steps, row.size.tokens,
                     fmt::format("{:.1f}%", 100.0 * row.size.padding()),
                     rates(row, row.timings.packed), rates(row, row.timings.padded),
                     fmt::format("{:.2f}", row.speed_up()), fmt::format("{:.2f}", row.size.bound()),
                     fmt::format("{:.0f}%", 100.0 * row.speed_up() / row.size.bound()),
                     fmt::format("{:.2f}", row.speed_up_with_packing()),
                     bucketed ? thousands(row.rate(row.timings.bucketed.median())) : "-",
                     bucketed ? fmt::format("{:.2f}", row.speed_up_over_bucketed()) : "-");
}

std::string table_foot(const std::vector<Row>& rows, bool bidirectional) {
  double speed_up = 0.0, bound = 0.0;
  for (const Row& row : rows) {
    speed_up += std::log(row.speed_up());
    bound += std::log(row.size.bound());
  }
  const auto count = static_cast<double>(rows.size());
  return fmt::format(
      "\n"
      "Geometric mean: speed-up {:.2f}, bound {:.2f}.\n"
      "Same engine both ways: forward from packed input to packed output, and from the batch "
      "padded\n"
      "to its longest sequence. Tokens are valid ones, summed over the batches of a mix (T: the\n"
      "longest). Speeds: median (slowest-fastest) of alternating repetitions, caches warm; "
      "speed-up:\n"
      "median of the ratios of neighbours.\n"
      "Bound: padded volume / valid tokens. With packing: the speed-up when packing the padded "
      "input\n"
      "and padding the output count as part of the packed run. Bucketed: padded after sorting the\n"
      "sequences of all batches by length and batching them anew; over: packed to that.\n"
      "Checked first, bit for bit: {}.\n",
      std::exp(speed_up / count), std::exp(bound / count),
      bidirectional ? "sequences of every batch give the same output when run alone"
                    : "packed output = padded output at all valid positions");
}

std::string beside_table(const std::vector<Row>& rows, int threads) {
  std::vector<std::string> names;  // in the order they come in
  for (const Row& row : rows)
    for (const Contestant& c : row.beside.contestants)
      if (std::ranges::find(names, c.name()) == names.end()) names.push_back(c.name());
  if (names.size() < 2) return {};
  std::string text =
      "\nBeside other engines, on the first batch of each mix, in thousands of tokens per second "
      "(medians):\n" +
      fmt::format("{:<14}", "mix");
  for (const std::string& name : names) text += fmt::format(" {:>{}}", name, column(name));
  text += fmt::format(" {:>8}\n", "to best");
  for (const Row& row : rows) {
    const auto& all = row.beside.contestants;
    if (all.empty()) continue;
    text += fmt::format("{:<14}", row.name);
    for (const std::string& name : names) {
      const auto c = std::ranges::find(all, name, &Contestant::name);
      text += fmt::format(
          " {:>{}}", c == all.end() ? "-" : thousands(beside_rate(row, *c, threads)), column(name));
    }
    const Contestant* best = best_peer(all, threads);
    text += fmt::format(
        " {:>8}\n",
        best ? fmt::format("{:.2f}", median_of(*best, threads) / median_of(all[0], threads)) : "-");
  }
  return text;
}

std::string csv_text(const std::vector<Row>& rows, int threads) {
  std::string text =
      "mix,sequences,steps,tokens,padding,packed_tokens_per_s,padded_tokens_per_s,"
      "bucketed_tokens_per_s,speed_up,bound,speed_up_with_packing,speed_up_over_bucketed,"
      "best_other,packed_to_best_other\n";
  for (const Row& row : rows) {
    const bool bucketed = !row.timings.bucketed.seconds.empty();
    const auto& all = row.beside.contestants;
    const Contestant* best = best_peer(all, threads);
    text += fmt::format(
        "{},{},{},{},{:.4f},{:.1f},{:.1f},{},{:.4f},{:.4f},{:.4f},{},{},{}\n", row.name,
        row.size.sequences, row.size.steps, row.size.tokens, row.size.padding(), row.packed_rate(),
        row.padded_rate(),
        bucketed ? fmt::format("{:.1f}", row.rate(row.timings.bucketed.median())) : "",
        row.speed_up(), row.size.bound(), row.speed_up_with_packing(),
        bucketed ? fmt::format("{:.4f}", row.speed_up_over_bucketed()) : "",
        best ? best->name() : "",
        best ? fmt::format("{:.4f}", median_of(*best, threads) / median_of(all[0], threads)) : "");
  }
  return text;
}

std::string json_text(const Machine& machine, const Options& options, const Engines& engines,
                      const std::vector<Row>& rows, bool complete) {
  Json json = {{"benchmark", "packed_vs_padded"},
               {"complete", complete},
               {"machine",
                {{"cpu", machine.cpu},
                 {"cpus", machine.cpus},
                 {"device", machine.device},
                 {"cuda", machine.cuda},
                 {"target", machine.target},
                 {"threads", machine.threads},
                 {"pinned", machine.pinned}}},
               {"commit", machine.commit},
               {"date", machine.date},
               {"layer",
                {{"cell", options.cell},
                 {"layers", options.layers},
                 {"bidirectional", options.bidirectional},
                 {"hidden", options.hidden},
                 {"dtype", options.dtypes[0]},
                 {"weights", options.weights}}},
               {"batch", options.batch},
               {"seed", options.seed},
               {"engines", engines},
               {"rows", Json::array()}};
  for (const Row& row : rows) json["rows"].push_back(json_of(row));
  return json.dump(2) + "\n";
}

ResultFile::ResultFile(std::string path) : path_(std::move(path)), part_(path_ + ".part") {
  const std::filesystem::path folder = std::filesystem::path(path_).parent_path();
  std::error_code error;
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  file_ = error ? nullptr : std::fopen(part_.c_str(), "wb");
  if (!file_)
    throw FileError(
        fmt::format("cannot write {}: {}", part_, error ? error.message() : std::strerror(errno)));
}

ResultFile::~ResultFile() {
  if (!file_) return;
  std::fclose(file_);
  std::remove(part_.c_str());
}

void ResultFile::finish(const std::string& text) {
  const bool written = std::fwrite(text.data(), 1, text.size(), file_) == text.size();
  const bool closed = std::fclose(std::exchange(file_, nullptr)) == 0;
  if (!written || !closed || std::rename(part_.c_str(), path_.c_str()) != 0) {
    const std::string reason = std::strerror(errno);
    std::remove(part_.c_str());
    throw FileError(fmt::format("cannot write {}: {}", path_, reason));
  }
}

}  // namespace packrnn::bench

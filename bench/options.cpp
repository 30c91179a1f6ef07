#include "bench/options.hpp"

#include <CLI/CLI.hpp>

#include "bench/mixes.hpp"

namespace packrnn::bench {
namespace {

std::vector<std::string> mix_names() {
  std::vector<std::string> names;
  for (const Mix& mix : mixes()) names.push_back(mix.name);
  names.emplace_back(kRealData);
  return names;
}

}  // namespace

Parsed parse_options(int argc, char** argv) {
  constexpr std::int64_t kMaxSize = 1 << 20;
  Parsed parsed;
  Options& options = parsed.options;
  CLI::App app(
      "Runs one recurrent layer on batches of uneven sequences, packed and padded to the longest,\n"
      "with the same engine, and reports valid tokens per second. Without arguments: every length\n"
      "mix, and real data where it is found.",
      "packrnn_bench");
  app.add_option("--cell", options.cell, "lstm, gru or rnn")
      ->check(CLI::IsMember({"lstm", "gru", "rnn"}))
      ->capture_default_str();
  app.add_option("--hidden", options.hidden, "Hidden size H")
      ->check(CLI::Range(std::int64_t{1}, kMaxSize))
      ->capture_default_str();
  app.add_option("--layers", options.layers, "Stacked layers")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_flag("--bidirectional", options.bidirectional, "Both directions");
  app.add_option("--batch", options.batch, "Sequences in a batch")
      ->check(CLI::Range(std::int64_t{1}, kMaxSize))
      ->capture_default_str();
  app.add_option("--mix", options.mixes, "Only this length mix (may be repeated); see --list")
      ->check(CLI::IsMember(mix_names()))
      ->type_name("NAME")
      ->allow_extra_args(false);
  app.add_option(
         "--lengths", options.lengths_file,
         "Your own lengths, one a line: up to --batch of them are one batch, more are drawn "
         "from; the mixes run only where --mix names them")
      ->type_name("FILE");
  app.add_option("--features", options.features,
                 "Input width (default: each mix's; 128 for a file)")
      ->check(CLI::Range(std::int64_t{1}, kMaxSize));
  app.add_option("--seed", options.seed, "Of lengths, values and weights")->capture_default_str();
  app.add_flag("--list", options.list, "List the length mixes and end");
  app.add_option("--threads", options.threads, "Threads (default: all CPUs of this process)")
      ->check(CLI::Range(1, 4096));
  app.add_flag("--pin,!--no-pin", options.pin, "Bind each thread to a CPU (default: yes)");
  app.add_flag("--quick", options.quick, "One batch per mix, and 10 seconds");
  app.add_option("--budget", options.budget_seconds, "Seconds to measure for (default: 75)")
      ->check(CLI::Range(0.1, 86400.0));
  app.add_option("--json", options.json_file,
                 "Where results go (default: results/packed_vs_padded.json in the build folder)")
      ->type_name("FILE");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    constexpr int kUsage = 2;
    parsed.exit_status = app.exit(error) == 0 ? 0 : kUsage;
  }
  return parsed;
}

}  // namespace packrnn::bench

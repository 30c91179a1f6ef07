#include "bench/options.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <packrnn/runtime/error.hpp>

#include "bench/mixes.hpp"
#include "bench/program.hpp"
#include "bench/text.hpp"

namespace packrnn::bench {
namespace {

std::vector<std::string> mix_names() {
  std::vector<std::string> names;
  for (const Mix& mix : mixes()) names.push_back(mix.name);
  names.emplace_back(kRealData);
  return names;
}

std::string is_device(const std::string& name) {
  try {
    device_of(name);
    return {};
  } catch (const InvalidArgument& error) {
    return error.what();
  }
}

std::string command_line(int argc, char** argv) {
  std::string text = "packrnn_bench";  // not the path, which is the reader's own
  for (int i = 1; i < argc; ++i) text += fmt::format(" {}", argv[i]);
  return text;
}

}  // namespace

Device device_of(const std::string& name) {
  if (name == "cpu") return Device::cpu();
  if (name == "cuda") return Device::cuda(0);
  std::string_view rest = name;
  if (take_until(rest, ':') == "cuda")
    if (const auto index = number<int>(rest); index && *index >= 0) return Device::cuda(*index);
  throw InvalidArgument(fmt::format("device '{}', expected cpu, cuda or cuda:N", name));
}

Parsed parse_options(int argc, char** argv) {
  constexpr std::int64_t kMaxSize = 1 << 20;
  Parsed parsed;
  Options& options = parsed.options;
  CLI::App app(
      "Runs one recurrent layer on batches of uneven sequences: packed, padded to the longest, "
      "padded\n"
      "after sorting by length, and by other engines; reports valid tokens per second. Without\n"
      "arguments: every length mix, and real data where it is found. On a GPU: every algorithm.",
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
  app.add_flag("--quick", options.quick, "Fewer batches, and 10 seconds (GPU: 40)");
  app.add_option("--budget", options.budget_seconds,
                 "Seconds to measure for (default: 60; GPU: 200)")
      ->check(CLI::Range(0.1, 86400.0));
  app.add_option("--json", options.json_file,
                 "Where results go (default: results/packed_vs_padded.json, on a GPU device.json, "
                 "in the build folder)")
      ->type_name("FILE");
  constexpr const char* kGpu = "On a GPU";
  app.add_option("--device", options.device, "cpu, cuda or cuda:N (default: a GPU if there is one)")
      ->check(CLI::Validator(is_device, "DEVICE"));
  const auto add_list = [&](const char* name, std::vector<std::string>& list, const char* what,
                            const std::vector<std::string>& known) {
    return app.add_option(name, list, what)
        ->check(CLI::IsMember(known))
        ->type_name("NAME")
        ->delimiter(',');
  };
  add_list("--peers", options.peers,
           "Measured beside it, with commas: torch, onednn, onnxruntime; on a GPU torch, cudnn; or "
           "none (default: all that are installed)",
           {"torch", "onednn", "onnxruntime", "cudnn", "none"});
  const auto* dtype = add_list("--dtype", options.dtypes,
                               "f32 or f64; on a GPU several of f32, f64, f16, bf16 with commas "
                               "(default: f32; on a GPU also bf16, and f16 for equal lengths)",
                               {"f32", "f64", "f16", "bf16"});
  app.add_option("--weights", options.weights,
                 "How the CPU stores the weights of f32: full, f16 or bf16")
      ->check(CLI::IsMember({"full", "f16", "bf16"}))
      ->capture_default_str();
  add_list("--math", options.maths, "Of f32: exact, tf32x3, tf32 (default: exact, tf32)",
           {"exact", "tf32x3", "tf32"})
      ->group(kGpu);
  add_list("--algorithm", options.algorithms,
           "Of packrnn: auto, step, persistent, cluster (default: auto, step)",
           {"auto", "step", "persistent", "cluster"})
      ->group(kGpu);
  options.command = command_line(argc, argv);
  parsed.exit_status = parse_command_line(app, argc, argv);
  options.chose_cell = app.count("--cell") > 0;
  options.chose_hidden = app.count("--hidden") > 0;
  options.chose_batch = app.count("--batch") > 0;
  options.chose_dtype = dtype->count() > 0;
  for (const char* name : {"--math", "--algorithm"})
    if (app.count(name) > 0) options.gpu_only = name;
  return parsed;
}

}  // namespace packrnn::bench

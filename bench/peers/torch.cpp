#include "bench/peers/torch.hpp"

#include <fmt/format.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <packrnn/layers/gru.hpp>
#include <packrnn/layers/lstm.hpp>
#include <packrnn/layers/safetensors.hpp>
#include <packrnn/runtime/error.hpp>
#include <utility>

#include "bench/temporary_folder.hpp"
#include "bench/text.hpp"

namespace packrnn::bench {
namespace {

using Json = nlohmann::json;

/// 'text', safe for a shell.
std::string quoted(const std::string& text) {
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return result + "'";
}

/// What a command prints, and its status.
std::pair<std::string, int> output_of(const std::string& command) {
  std::FILE* pipe = popen(command.c_str(), "r");
  if (!pipe) throw FileError(fmt::format("cannot run {}", command));
  std::string text;
  std::array<char, 4096> part{};
  while (const std::size_t count = std::fread(part.data(), 1, part.size(), pipe))
    text.append(part.data(), count);
  const int status = pclose(pipe);
  return {std::move(text), WIFEXITED(status) ? WEXITSTATUS(status) : -1};
}

/// A small layer of ours with its input and output, for the other side to compare with.
void write_check(const std::string& cell, const std::filesystem::path& file) {
  Context context(Device::cpu(), {.threads = 1});
  constexpr std::int64_t kInput = 5, kHidden = 9;
  const auto layer = [&]() -> Recurrent {
    if (cell == "gru") return Gru({.input_size = kInput, .hidden_size = kHidden, .seed = 3});
    return Lstm({.input_size = kInput, .hidden_size = kHidden, .seed = 3});
  }();
  Tensor x = Tensor::empty({7, 3, kInput}, Dtype::f32);
  Generator generator(5);
  fill_uniform(generator, x, -1.0, 1.0);
  const std::vector<std::int64_t> lengths{4, 7, 1};
  DenseOutput y = layer.forward_padded(context, x, lengths);
  StateDict state = layer.state_dict();
  state.push_back({"x", std::move(x)});
  state.push_back({"y", std::move(y.output)});
  state.push_back({"lengths", Tensor::from(lengths, {3})});
  save_safetensors(file, state);
}

Json request_of(const std::vector<Problem>& problems, const TorchRequest& request,
                const std::filesystem::path& folder) {
  Json json = {{"device", request.device},
               {"seconds", request.seconds},
               {"flush_bytes", request.flush_bytes},
               {"cases", Json::array()},
               {"checks", Json::array()}};
  for (const Problem& problem : problems)
    json["cases"].push_back({{"cell", problem.cell},
                             {"input", problem.input},
                             {"hidden", problem.hidden},
                             {"lengths", problem.lengths},
                             {"dtype", name_of(problem.mode.dtype)},
                             {"math", name_of(problem.mode.math)}});
  for (const char* cell : {"lstm", "gru"}) {
    const std::filesystem::path file = folder / fmt::format("{}.safetensors", cell);
    write_check(cell, file);
    json["checks"].push_back({{"cell", cell}, {"file", file.string()}});
  }
  return json;
}

/// The first Python that has PyTorch, else the one that has been asked.
TorchAnswer ask(const std::vector<Problem>& problems, const TorchRequest& request) {
  const std::string script = PACKRNN_SOURCE_DIR "/bench/peers/torch_rnn.py";
  if (!std::filesystem::exists(script)) return {.absent = "bench/peers/torch_rnn.py is not there"};
  const TemporaryFolder folder("packrnn-torch");
  const std::filesystem::path file = folder.path() / "request.json";
  std::ofstream(file) << request_of(problems, request, folder.path());
  TorchAnswer answer{.absent = "no python3"};
  const char* chosen = std::getenv("PACKRNN_PYTHON");
  for (const std::string python : {chosen ? chosen : "python3", "/usr/bin/python3"}) {
    const auto [text, status] = output_of(fmt::format("{} -B {} {} 2>/dev/null", quoted(python),
                                                      quoted(script), quoted(file.string())));
    if (status == 0) answer = parse_torch_answer(text, problems.size());
    if (status == 0 && answer.absent.empty()) break;
    if (chosen) break;
  }
  return answer;
}

Samples samples_of(const Json& json) { return {json.get<std::vector<double>>()}; }

}  // namespace

TorchAnswer parse_torch_answer(std::string_view text, std::size_t problems) {
  try {
    const Json json = Json::parse(text);
    TorchAnswer answer;
    if (json.contains("absent")) {
      answer.absent = json.at("absent").get<std::string>();
      return answer;
    }
    answer.version = json.at("version").get<std::string>();
    for (const Json& row : json.at("rows")) {
      const auto problem = row.at("case").get<std::size_t>();
      if (problem >= problems)
        throw FileError(fmt::format("PyTorch's answer has case {} of {}", problem, problems));
      answer.rows.push_back({problem,
                             row.at("what").get<std::string>(),
                             {samples_of(row.at("cold_s")), samples_of(row.at("warm_s")),
                              row.at("failure").get<std::string>()}});
    }
    for (const Json& check : json.at("checks")) {
      const Json& largest = check.at("largest");
      answer.checks.push_back(
          {check.at("cell").get<std::string>(),
           largest.is_number() ? largest.get<double>() : std::numeric_limits<double>::quiet_NaN()});
    }
    return answer;
  } catch (const Json::exception& error) {
    throw FileError(fmt::format("PyTorch's answer: {}", error.what()));
  }
}

TorchAnswer run_torch(const std::vector<Problem>& problems, const TorchRequest& request) noexcept {
  try {
    return ask(problems, request);
  } catch (const std::exception& error) {
    return {.absent = error.what()};
  }
}

}  // namespace packrnn::bench
